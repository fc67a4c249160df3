"""Codecs keep exact sizes, agree with slow twins, and cost what their number of bits says."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from draftlab.data import codecs, lowrank
from draftlab.data.codecs import CODECS, Integer, PerLayer, mean_cosine, relative_error

WIDTHS = (1, 7, 32, 64, 96)
BITS = {"bf16": 16, "fp8": 8, "int8": 8, "int4": 4}


def states(width: int, tokens: int = 9) -> torch.Tensor:
    """Rows of very different size, one of zeros, one with a single huge value."""
    generator = torch.Generator().manual_seed(width)
    values = torch.randn(tokens, width, generator=generator) * torch.logspace(-4, 4, tokens).unsqueeze(-1)
    values[2] = 0
    values[5, 0] = 3e4
    return values


def bfloat16(value: float) -> float:
    return torch.tensor(value).to(torch.bfloat16).item()


def twin_of_integers(row: list[float], bits: int, group: int) -> tuple[bytes, list[float]]:
    """Bytes and values of one row by Python's own numbers."""
    size, largest = math.gcd(len(row), group), 2 ** (bits - 1) - 1
    scales, steps = [], []
    for first in range(0, len(row), size):
        part = row[first : first + size]
        # float32 division, as everywhere in the codec
        scale = bfloat16(max((torch.tensor(max(map(abs, part))) / largest).item(), codecs.LEAST_SCALE))
        scales.append(scale)
        quotients = [(torch.tensor(value) / torch.tensor(scale)).item() for value in part]
        steps += [min(max(round(quotient), -largest), largest) for quotient in quotients]
    values = [step * scales[i // size] for i, step in enumerate(steps)]
    stored = b"".join(struct.pack("<f", scale)[2:] for scale in scales)
    if bits == 8:
        return stored + b"".join(struct.pack("b", step) for step in steps), values
    halves = [step & 15 for step in steps] + [0] * (len(steps) % 2)
    return stored + bytes(low | high << 4 for low, high in zip(halves[::2], halves[1::2], strict=True)), values


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CODECS)
def test_every_row_takes_exactly_the_bytes_that_are_said(name, width):
    stored = CODECS[name].encode(states(width))
    assert stored.dtype == torch.uint8 and stored.shape == (9, codecs.bytes_per_token(name, width))
    decoded = CODECS[name].decode(stored, width)
    assert decoded.shape == (9, width) and decoded.dtype == torch.float32 and decoded.isfinite().all()
    assert CODECS[name].encode(states(width)[:0]).shape == (0, stored.shape[1])


def test_bytes_of_the_papers_hidden_size():
    assert {name: codecs.bytes_per_token(name, 2560) for name in CODECS} == {
        "bf16": 5120, "fp8": 2562, "int8": 2560 + 80, "int4": 1280 + 80,
    }  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("bits", "group"), [(8, 64), (4, 64), (4, 32), (8, 5)])
def test_whole_steps_are_those_of_the_slow_twin(bits, group, width):
    codec, values = Integer(bits, group), states(width)
    stored = codec.encode(values)
    decoded = codec.decode(stored, width)
    for row, got, back in zip(values, stored, decoded, strict=True):
        expected, numbers = twin_of_integers(row.tolist(), bits, group)
        assert got.numpy().tobytes() == expected
        torch.testing.assert_close(back, torch.tensor(numbers), rtol=1e-6, atol=0)


@pytest.mark.parametrize("width", WIDTHS)
def test_e4m3_keeps_every_value_to_four_bits_above_its_smallest(width):
    values = states(width)
    decoded = CODECS["fp8"].decode(CODECS["fp8"].encode(values), width)
    scale = values.abs().amax(-1, keepdim=True) / 448
    # half a step of a 3-bit fraction, or of the smallest number 2^-9; the scale's rounding may clip the largest by 2^-8
    allowed = torch.maximum(values.abs() * 2**-4, scale * 2**-10) * 1.01
    assert ((decoded - values).abs() <= allowed).all()


@pytest.mark.parametrize("name", CODECS)
def test_bfloat16_is_exact_for_bfloat16_and_errors_grow_as_bits_shrink(name):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(50, 64, generator=generator).to(torch.bfloat16).float()
    decoded = CODECS[name].decode(CODECS[name].encode(values), 64)
    error, cosine = relative_error(values, decoded), mean_cosine(values, decoded)
    low, high = {"bf16": (0, 0), "fp8": (5e-3, 0.05), "int8": (1e-3, 1.5e-2), "int4": (0.05, 0.2)}[name]
    assert low <= error <= high
    assert 1 - cosine <= error**2 + 1e-12
    assert (error == 0) == (name == "bf16")


def test_errors_are_those_of_a_hand_sum():
    values, decoded = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    assert relative_error(values, decoded) == pytest.approx(math.sqrt(2 / 26))
    assert mean_cosine(values, decoded) == pytest.approx(0.5)
    assert relative_error(torch.zeros(1, 2), torch.zeros(1, 2)) == 0


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_refused(name, bad):
    """Case 10."""
    values = states(32)
    values[1, 3] = bad
    with pytest.raises(ValueError, match="1 of 9 rows hold NaN or infinity"):
        CODECS[name].encode(values)


def test_an_unknown_codec_and_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="codec must be one of bf16, fp8, int8, int4, got 'int2'"):
        codecs.bytes_per_token("int2", 8)
    with pytest.raises(ValueError, match="bits must be 4 or 8"):
        Integer(5)
    with pytest.raises(ValueError, match="group must be at least 1"):
        Integer(4, 0)


@pytest.mark.parametrize("name", CODECS)
def test_layers_of_a_token_do_not_share_a_scale(name):
    values = torch.cat([states(32), 1e3 * states(32).flip(0)], dim=-1)
    both = PerLayer(CODECS[name], 2)
    stored = both.encode(values)
    assert stored.shape[1] == both.bytes_per_token(64) == 2 * codecs.bytes_per_token(name, 32)
    decoded = both.decode(stored, 64)
    for part, alone in zip(decoded.split(32, -1), values.split(32, -1), strict=True):
        assert torch.equal(part, CODECS[name].decode(CODECS[name].encode(alone), 32))


def redundant(tokens: int) -> torch.Tensor:
    """Three layers of 32 values that lie in 8 directions, the second layer 50 times louder, one token 1,000 times."""
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(8, 96, generator=torch.Generator().manual_seed(4))
    values = torch.randn(tokens, 8, generator=generator) @ base
    values[:, 32:64] *= 50
    values[0] *= 1000
    return values


def test_a_learned_basis_stores_redundant_layers_in_a_fraction_of_the_bytes():
    basis = lowrank.fit_basis(redundant(300), layers=3, rank=32)
    codec, values = lowrank.LowRank(basis), redundant(300)[100:]
    stored = codec.encode(values)
    assert stored.shape[1] == codec.bytes_per_token(96) == lowrank.bytes_per_token(3, 32) == 16 + 2 + 3 * 2
    assert codec.bytes_per_token(96) < 96 * 2 / 7
    for part, back in zip(values.split(32, -1), codec.decode(stored, 96).split(32, -1), strict=True):
        assert relative_error(part, back) < 0.2


def test_a_full_basis_leaves_only_the_error_of_its_coefficients():
    """A slow twin without quantisation: with all directions the projection is the identity."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(200, 24, generator=generator)
    basis = lowrank.fit_basis(values, layers=2, rank=24)
    torch.testing.assert_close(basis.directions.T @ basis.directions, torch.eye(24), rtol=1e-5, atol=1e-5)
    back = lowrank.LowRank(basis).decode(lowrank.LowRank(basis).encode(values), 24)
    assert 0 < relative_error(values, back) < 0.2


def test_a_basis_survives_its_file_and_a_damaged_one_is_refused(tmp_path):
    basis = lowrank.fit_basis(redundant(50), layers=3, rank=8)
    path = tmp_path / "basis.safetensors"
    lowrank.save_basis(path, basis)
    again = lowrank.load_basis(path, 3)
    assert again.digest == basis.digest and torch.equal(again.directions, basis.directions)
    assert lowrank.fit_basis(redundant(51), layers=3, rank=8).digest != basis.digest
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="not a whole basis"):
        lowrank.load_basis(path, 3)


def test_a_sample_that_cannot_tell_the_directions_is_refused():
    with pytest.raises(ValueError, match="learns 32 directions from a sample of 20 tokens"):
        lowrank.fit_basis(redundant(20), layers=3, rank=32)
    assert [lowrank.default_rank(width) for width in (4, 96, 2880, 12800)] == [1, 19, 576, 2560]
