"""SPS(B): how many forward passes of B tokens the target makes a second, from a measured table (method 5).

    SPS(B) = value of the largest measured B' ≤ B                    look_up="floor", as engines read it
           = linear between the two measured neighbours of B         look_up="linear"

    convex                              of the greatest convex curve below the seconds of a pass: no step, no bump, one best size

Outside the table the nearest end holds. A table that hardly falls means that verifying costs nothing, and a scheduler then
verifies everything; one that rises somewhere is a staircase with bumps, over which early stopping and global search differ.
Both are said by :meth:`Throughput.shape`. The module measures nothing.

    table = Throughput([1, 2, 3], [1.0, 0.5, 0.45])
    table([1, 2, 5])                                                  # array([1.  , 0.5 , 0.45])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftlab.data.files import read_json, write_json

LOOK_UPS = ("floor", "linear")
SHOWN = 6  # rises that are named
LARGEST = 10_000_000  # tokens of a pass; beyond that a table is a mistake
FLAT = 0.05  # a table that loses less than this share from its first to its last entry is called flat


@dataclass(frozen=True)
class Throughput:
    """A table of forward passes a second by tokens in a pass.

    Args:
        batch_tokens: B, whole and increasing. steps_per_second: SPS(B), positive.
        look_up: ``floor`` or ``linear``.
        fixed_seconds: what a step takes besides its pass, such as drafting; SPS is then 1 / (1/SPS + fixed_seconds).
        token_seconds: part of it that every token a row that is drafted takes; of that, a scheduler may draft less.

    Raises:
        ValueError: fewer than two points, tokens that are not whole or do not increase, or a value that is not positive.
    """

    batch_tokens: Sequence[int]
    steps_per_second: Sequence[float]
    look_up: str = "floor"
    fixed_seconds: float = 0.0
    token_seconds: float = 0.0

    def __post_init__(self) -> None:
        tokens, values = (_numbers(given) for given in (self.batch_tokens, self.steps_per_second))
        if tokens.ndim != 1 or len(tokens) < 2 or tokens.shape != values.shape:
            raise ValueError(
                "an SPS table needs at least two points and a value a point, got "
                f"{tokens.size} token counts and {values.size} values; profile more batch sizes"
            )
        whole = np.all(tokens == np.floor(tokens)) and tokens[0] >= 1 and tokens[-1] <= LARGEST
        if not whole or np.any(np.diff(tokens) <= 0):
            raise ValueError(
                f"the tokens of an SPS table must be whole, positive and increasing, at most {LARGEST:,}, got {tokens.tolist()}"
            )
        if not np.all(np.isfinite(values)) or np.any(values <= 0):
            raise ValueError(f"the steps per second of an SPS table must be positive and finite, got {values.tolist()}")
        if self.look_up not in LOOK_UPS:
            raise ValueError(f"look_up must be one of {', '.join(LOOK_UPS)}, got {self.look_up!r}")
        object.__setattr__(self, "batch_tokens", tokens.astype(np.int64))
        object.__setattr__(self, "steps_per_second", values)

    def __call__(self, tokens) -> np.ndarray:
        """Steps a second [...] with passes of ``tokens`` [...] tokens."""
        passes = self.passes(tokens)
        return 1.0 / (1.0 / passes + self.fixed_seconds) if self.fixed_seconds else passes

    def passes(self, tokens) -> np.ndarray:
        """Passes a second [...] of ``tokens`` [...] tokens, by themselves."""
        tokens = np.asarray(tokens)
        if self.look_up == "linear":
            return np.interp(tokens, self.batch_tokens, self.steps_per_second)
        place = np.searchsorted(self.batch_tokens, tokens, side="right") - 1
        return self.steps_per_second[np.clip(place, 0, None)]

    def plus(self, seconds: float, token_seconds: float = 0.0) -> Throughput:
        """The same passes in steps that take ``seconds`` more, whatever they verify; see ``token_seconds``."""
        return replace(
            self, fixed_seconds=self.fixed_seconds + seconds, token_seconds=self.token_seconds + token_seconds
        )

    def upto(self, tokens: int) -> np.ndarray:
        """SPS [tokens + 1] of passes of 0, 1, …, ``tokens`` tokens: a scheduler looks every size up at once."""
        return self(np.arange(tokens + 1))

    @property
    def is_flat(self) -> bool:
        """Whether verifying more costs next to nothing anywhere in the table."""
        return bool(self.steps_per_second.min() > (1.0 - FLAT) * self.steps_per_second.max())

    @property
    def bumps(self) -> list[int]:
        """Token counts B of the table at which SPS rises; a monotone table has none."""
        return self.batch_tokens[1:][np.diff(self.steps_per_second) > 0].tolist()

    def convex(self) -> Throughput:
        """The table of the greatest convex function below the seconds 1 / SPS of a pass, at every size up to the last; read as
        linear, below those of the entries.

        Expected tokens are concave in what is admitted, so their ratio to convex seconds has a single peak: early stopping
        over this table halts nowhere else.
        """
        begin, seconds = self.batch_tokens, 1.0 / self.steps_per_second
        if begin[0] > 1:  # smaller passes take as long as the first entry's
            begin, seconds = np.append(1, begin), np.append(seconds[0], seconds)
        # Read as floor, seconds stay the same up to the next entry.
        ends = begin if self.look_up == "linear" else np.append(begin[1:] - 1, begin[-1])
        points = sorted(
            {*zip(begin.tolist(), seconds.tolist(), strict=True), *zip(ends.tolist(), seconds.tolist(), strict=True)}
        )
        hull: list[tuple[int, float]] = []
        for x, y in points:
            while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (x - hull[-2][0]) >= (y - hull[-2][1]) * (
                hull[-1][0] - hull[-2][0]
            ):
                hull.pop()
            hull.append((x, y))
        sizes = np.arange(begin[0], begin[-1] + 1)
        return Throughput(sizes, 1.0 / np.interp(sizes, *zip(*hull, strict=True)), fixed_seconds=self.fixed_seconds)

    def shape(self) -> str:
        """In words: flat (with a warning), monotone, or a staircase with bumps."""
        if self.is_flat:
            return (
                "warning: the SPS table is flat: a pass costs the same whatever it holds, so every drafted token will be "
                "verified; profile larger batches or longer contexts if the target's memory is not the limit"
            )
        if not self.bumps:
            return "the SPS table falls monotonically"
        where = ", ".join(map(str, self.bumps[:SHOWN])) + (
            f" and {more} more" if (more := len(self.bumps[SHOWN:])) else ""
        )
        return f"the SPS table is a staircase that rises at {where} tokens: early stopping may halt before such a rise"

    def save(self, path: str | Path) -> None:
        """Write the table in the form that engines read; atomically."""
        write_json(
            Path(path),
            {
                "sample_batch_tokens": self.batch_tokens.tolist(),
                "sample_steps_per_sec": self.steps_per_second.tolist(),
                "max_batch_tokens": int(self.batch_tokens[-1]),
            },
        )

    @classmethod
    def load(cls, path: str | Path, look_up: str = "floor") -> Throughput:
        """Read a table that :meth:`save` or an engine wrote.

        Raises:
            ValueError: no such file, a missing key, or values that are no table.
        """
        table: dict[str, Any] = read_json(Path(path))
        keys = ("sample_batch_tokens", "sample_steps_per_sec")
        missing = [key for key in keys if not isinstance(table, dict) or key not in table]
        if missing:
            raise ValueError(
                f"{path}: expected an SPS table with {' and '.join(keys)}; {', '.join(missing)} is missing"
            )
        try:
            return cls(table[keys[0]], table[keys[1]], look_up)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _numbers(values: Any) -> np.ndarray:
    """``values`` in float64.

    Raises:
        ValueError: they are no numbers; NumPy would make some of a text or a truth.
    """
    try:
        array = np.asarray(values)
    except ValueError:  # lists of unequal length
        array = np.asarray(None)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"an SPS table consists of numbers, got {values!r:.200}")
    return array.astype(np.float64)
