"""The low-rank codec: all tapped layers of a token in one basis that was learned from a sample of tokens.

    u = [x_1 / s_1; …; x_M / s_M] - μ     every layer at size one (s_l: its root mean square), less the mean of the sample
    c = Uᵀ u                               U [M*D, R]: the first R principal directions of the sample, M layers together
    stored: s_1 … s_M in bfloat16, and c in 4 bits, groups of 32 with a scale

Neighbouring layers of a residual stream say much of the same, so R may be a fifth of M*D: R/2 + R/16 + 2 M bytes, which with a
4-bit last hidden state is under a tenth of what bfloat16 takes. Sizes are divided out because a few tokens (the first, as a
rule) are hundreds of times larger than all others and would own the basis. The basis lies beside the shards and its digest is
stamped into each of them. The module knows nothing of targets.

    basis = fit_basis(sample, layers=5, rank=576)         # sample [T, M*D]
    stored = LowRank(basis).encode(values)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from draftlab.data.codecs import SCALE_BYTES, Integer, as_bytes, from_bytes
from draftlab.data.files import write_bytes_atomically

NAME = "lowrank"
COEFFICIENTS = Integer(4, group=32)
TOKENS_PER_RANK = 4  # sample tokens a direction: fewer, and the last directions fit the sample's noise
LEAST_SIZE = 2.0**-60


@dataclass(frozen=True)
class Basis:
    """Mean [M*D] and principal directions [M*D, R] of states of ``layers`` layers at size one."""

    mean: Tensor
    directions: Tensor
    layers: int

    @property
    def digest(self) -> str:
        """Digest of all values."""
        return hashlib.sha256(_serialised(self)).hexdigest()[:16]


def default_rank(width: int) -> int:
    """R for states [M*D] of ``width``: a fifth, in whole groups of coefficients where there are as many."""
    return max(1, width // 5 // COEFFICIENTS.group * COEFFICIENTS.group or width // 5)


def bytes_per_token(layers: int, rank: int) -> int:
    """Bytes of one token: coefficients and the sizes of its layers."""
    return COEFFICIENTS.bytes_per_token(rank) + SCALE_BYTES * layers


def fit_basis(sample: Tensor, layers: int, rank: int) -> Basis:
    """The principal directions of ``sample`` [T, M*D].

    Raises:
        ValueError: fewer tokens than directions.
    """
    if len(sample) < rank:
        raise ValueError(
            f"data.codec={NAME} learns {rank} directions from a sample of {len(sample)} tokens, which cannot tell them; "
            "give more data, or another codec"
        )
    units = _units(sample.float(), layers)[0]
    mean = units.mean(0)
    covariance = (units - mean).T.double() @ (units - mean).double() / len(units)
    directions = torch.linalg.eigh(covariance).eigenvectors.flip(-1)[:, :rank]
    # The sign of an eigenvector is free; one rule for it makes the basis the same wherever it is learned.
    signs = directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
    return Basis(mean, (directions * signs).float().contiguous(), layers)


@dataclass(frozen=True)
class LowRank:
    """The codec of one basis; see :class:`draftlab.data.codecs.Codec` for the contract of its methods."""

    basis: Basis

    @property
    def rank(self) -> int:
        """R, the stored coefficients of a token."""
        return self.basis.directions.shape[1]

    def bytes_per_token(self, width: int) -> int:
        return bytes_per_token(self.basis.layers, self.rank)

    def encode(self, values: Tensor) -> Tensor:
        units, sizes = _units(values.float(), self.basis.layers)
        coefficients = (units - self.basis.mean) @ self.basis.directions
        return torch.cat([as_bytes(sizes), COEFFICIENTS.encode(coefficients)], dim=-1)

    def decode(self, stored: Tensor, width: int) -> Tensor:
        split = SCALE_BYTES * self.basis.layers
        sizes = from_bytes(stored[:, :split], torch.bfloat16).float()
        coefficients = COEFFICIENTS.decode(stored[:, split:], self.rank)
        units = coefficients @ self.basis.directions.T + self.basis.mean
        return (units.unflatten(-1, (self.basis.layers, -1)) * sizes.unsqueeze(-1)).flatten(-2)


def save_basis(path: Path, basis: Basis) -> None:
    """Write the basis, atomically."""
    write_bytes_atomically(path, _serialised(basis))


def load_basis(path: Path, layers: int) -> Basis:
    """The basis of a file.

    Raises:
        ValueError: the file is missing or damaged.
    """
    try:
        tensors = load_file(path)
        mean, directions = tensors["mean"], tensors["directions"]
        if mean.dim() != 1 or directions.dim() != 2 or len(mean) != len(directions) or len(mean) % layers:
            raise KeyError(f"a mean {list(mean.shape)} and directions {list(directions.shape)} for {layers} layers")
        return Basis(mean, directions, layers)
    except (OSError, SafetensorError, KeyError) as error:
        raise ValueError(
            f"{path} is not a whole basis of data.codec={NAME}: {error}; remove it and run "
            "prepare.py stage=features again"
        ) from None


def _units(values: Tensor, layers: int) -> tuple[Tensor, Tensor]:
    """Layers [T, M*D] at size one, and their sizes bfloat16 [T, M]."""
    parts = values.unflatten(-1, (layers, -1))
    sizes = parts.square().mean(-1).sqrt().clamp_min(LEAST_SIZE).to(torch.bfloat16)
    return (parts / sizes.float().unsqueeze(-1)).flatten(-2), sizes


def _serialised(basis: Basis) -> bytes:
    return save({"mean": basis.mean.contiguous(), "directions": basis.directions})
