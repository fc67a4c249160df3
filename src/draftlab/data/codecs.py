"""Codecs of stored target states: float rows [T, D] to bytes [T, S] and back, S exact and the same for every token.

    bf16   2 D                       rounded to bfloat16
    fp8    D + 2                     e4m3, one scale a token
    int8   D + 2 D/g                 whole steps -127 … 127, one scale a token and group of g values
    int4   D/2 + 2 D/g               whole steps -7 … 7, two a byte, one scale a token and group

A scale is bfloat16, and values are measured against the *rounded* scale. g is the largest common divisor of D and ``group``.
What is not finite is refused: no codec has a place for it. Several layers of a token are encoded one after the other, so that
a loud layer costs the others nothing. The codec that learns a basis over all layers is in lowrank.py. The module knows
nothing of files, layers or targets.

    >>> stored = CODECS["int4"].encode(torch.randn(10, 64))
    >>> stored.shape, CODECS["int4"].bytes_per_token(64)
    (torch.Size([10, 34]), 34)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E4M3_MAX = torch.finfo(E4M3).max
SCALE_BYTES = torch.bfloat16.itemsize
LEAST_SCALE = 2.0**-60  # of a group of zeros; far below any state, far above what bfloat16 can still hold


class Codec(Protocol):
    """What every codec does."""

    def bytes_per_token(self, width: int) -> int:
        """S, the bytes of one row of ``width`` values."""

    def encode(self, values: Tensor) -> Tensor:
        """Bytes uint8 [T, S] of finite ``values`` [T, D] of any float dtype.

        Raises:
            ValueError: a value is NaN or infinite.
        """

    def decode(self, stored: Tensor, width: int) -> Tensor:
        """Values float32 [T, D] of ``stored`` [T, S], where D is ``width``."""


@dataclass(frozen=True)
class Bfloat16:
    """Rounding to bfloat16: 8 significant bits."""

    def bytes_per_token(self, width: int) -> int:
        return 2 * width

    def encode(self, values: Tensor) -> Tensor:
        return as_bytes(_finite(values).to(torch.bfloat16))

    def decode(self, stored: Tensor, width: int) -> Tensor:
        return from_bytes(stored, torch.bfloat16).float()


@dataclass(frozen=True)
class Float8:
    """e4m3 with one scale a token: 4 significant bits, small values keep them."""

    def bytes_per_token(self, width: int) -> int:
        return width + SCALE_BYTES

    def encode(self, values: Tensor) -> Tensor:
        values = _finite(values)
        scale = _scales(values, E4M3_MAX)
        # Without the bound a value a rounding of the scale too large would become NaN.
        steps = (values / scale.float()).clamp(-E4M3_MAX, E4M3_MAX)
        return torch.cat([as_bytes(scale), as_bytes(steps.to(E4M3))], dim=-1)

    def decode(self, stored: Tensor, width: int) -> Tensor:
        scale = from_bytes(stored[:, :SCALE_BYTES], torch.bfloat16).float()
        return from_bytes(stored[:, SCALE_BYTES:], E4M3).float() * scale


@dataclass(frozen=True)
class Integer:
    """Whole steps of one scale a token and group of values.

    Args:
        bits: 8, or 4: two values a byte, the first in the low half.
        group: values that share a scale, at most.

    Raises:
        ValueError: a value outside its range.
    """

    bits: int
    group: int = 64

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"codec bits must be 4 or 8, got {self.bits!r}")
        if self.group < 1:
            raise ValueError(f"codec group must be at least 1, got {self.group!r}")

    @property
    def largest(self) -> int:
        """The largest step: 7 or 127."""
        return 2 ** (self.bits - 1) - 1

    def num_groups(self, width: int) -> int:
        """Groups, and so scales, of a row of ``width`` values."""
        return width // math.gcd(width, self.group)

    def bytes_per_token(self, width: int) -> int:
        return -(-width * self.bits // 8) + SCALE_BYTES * self.num_groups(width)

    def encode(self, values: Tensor) -> Tensor:
        groups = _finite(values).unflatten(-1, (self.num_groups(values.shape[-1]), -1))
        scale = _scales(groups, self.largest)
        steps = (groups / scale.float()).round().clamp(-self.largest, self.largest)
        steps = steps.flatten(-2).to(torch.int8)
        packed = steps.view(torch.uint8) if self.bits == 8 else pack_halves(steps)
        return torch.cat([as_bytes(scale.flatten(-2)), packed], dim=-1)

    def decode(self, stored: Tensor, width: int) -> Tensor:
        groups = self.num_groups(width)
        scale, packed = stored.split([SCALE_BYTES * groups, stored.shape[-1] - SCALE_BYTES * groups], dim=-1)
        steps = packed.contiguous().view(torch.int8) if self.bits == 8 else unpack_halves(packed, width)
        values = steps.float().unflatten(-1, (groups, -1)) * from_bytes(scale, torch.bfloat16).float().unsqueeze(-1)
        return values.flatten(-2)


@dataclass(frozen=True)
class PerLayer:
    """``codec`` for each of ``layers`` layers of a token on its own: rows [T, M*D] as M rows of D values."""

    codec: Codec
    layers: int

    def bytes_per_token(self, width: int) -> int:
        return self.layers * self.codec.bytes_per_token(width // self.layers)

    def encode(self, values: Tensor) -> Tensor:
        rows = self.codec.encode(values.reshape(len(values) * self.layers, -1))
        return rows.reshape(len(values), -1)

    def decode(self, stored: Tensor, width: int) -> Tensor:
        rows = stored.reshape(len(stored) * self.layers, stored.shape[-1] // self.layers)
        return self.codec.decode(rows, width // self.layers).reshape(len(stored), width)


CODECS: dict[str, Codec] = {"bf16": Bfloat16(), "fp8": Float8(), "int8": Integer(8), "int4": Integer(4)}


def bytes_per_token(codec: str, width: int) -> int:
    """Bytes of one token's ``width`` values under the codec of that name.

    Raises:
        ValueError: no such codec.
    """
    if codec not in CODECS:
        raise ValueError(f"codec must be one of {', '.join(CODECS)}, got {codec!r}")
    return CODECS[codec].bytes_per_token(width)


def relative_error(values: Tensor, decoded: Tensor) -> float:
    """‖decoded - values‖ / ‖values‖ over all rows; 0 for zeros that stayed zeros."""
    error, size = (decoded.double() - values.double()).norm(), values.double().norm()
    return 0.0 if error == 0 else (error / size).item()


def mean_cosine(values: Tensor, decoded: Tensor) -> float:
    """Mean over rows [T, D] of the cosine between a row and what came back."""
    return torch.nn.functional.cosine_similarity(values.double(), decoded.double(), dim=-1).mean().item()


def pack_halves(steps: Tensor) -> Tensor:
    """Two whole numbers of -8 … 7 a byte: int8 [T, D] -> uint8 [T, ceil(D / 2)]; an odd last one stands alone."""
    halves = torch.nn.functional.pad(steps, (0, steps.shape[-1] % 2)).view(torch.uint8) & 15
    return halves[..., 0::2] | (halves[..., 1::2] << 4)


def unpack_halves(packed: Tensor, width: int) -> Tensor:
    """Inverse of :func:`pack_halves`: uint8 [T, ceil(D / 2)] -> int8 [T, D], where D is ``width``."""
    halves = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)[..., :width].to(torch.int8)
    return torch.where(halves > 7, halves - 16, halves)


def as_bytes(values: Tensor) -> Tensor:
    """The bytes uint8 [T, S] of rows of any dtype."""
    return values.contiguous().view(torch.uint8)


def from_bytes(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of ``dtype`` from bytes [T, S]."""
    return stored.clone(memory_format=torch.contiguous_format).view(dtype)  # a copy is aligned, a slice may not be


def _finite(values: Tensor) -> Tensor:
    """``values`` in float32.

    Raises:
        ValueError: one is NaN or infinite.
    """
    values = values.float()
    if not torch.isfinite(values).all():
        bad = int((~torch.isfinite(values)).any(-1).sum())
        raise ValueError(
            f"{bad} of {len(values)} rows hold NaN or infinity, which a codec cannot store; see the target's dtype"
        )
    return values


def _scales(values: Tensor, largest: float) -> Tensor:
    """Scale bfloat16 [..., 1] under which the largest of ``values`` [..., g] becomes ``largest``."""
    return (values.abs().amax(-1, keepdim=True) / largest).clamp_min(LEAST_SCALE).to(torch.bfloat16)
