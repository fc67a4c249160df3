"""T_draft(R, j): how long drafting takes for R rows and j tokens a row, from a measured table (method 5).

    T_draft(R, j) = T(R, G) - (G - j) · [T(R, G) - T(R, 1)] / (G - 1)       blocks of G tokens and of one are measured

A parallel stage takes about the same whatever the length of its block; a sequential one, or a chain of passes, does not. The
file has the form of an SPS table, rows for tokens, with two keys more; without them the length of a block is taken to cost
nothing. The module measures nothing.

    drafting = Drafting([1, 8], [0.010, 0.020], 7, [0.004, 0.008])
    drafting.seconds(8, tokens=4)                                     # 0.014
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from draftlab.data.files import read_json, write_json
from draftlab.scheduling.throughput import Throughput

BLOCK_SIZE, ONE_TOKEN = "block_size", "one_token_steps_per_sec"


@dataclass(frozen=True)
class Drafting:
    """Seconds of drafting by rows; between measured rows linear, outside the nearest.

    Args:
        rows: R, whole and increasing. whole: seconds of blocks of ``block_size`` tokens.
        one: seconds of blocks of one token; None: the length of a block costs nothing.

    Raises:
        ValueError: rows that do not increase, or seconds that do not fit them or are not positive.
    """

    rows: Sequence[int]
    whole: Sequence[float]
    block_size: int = 1
    one: Sequence[float] | None = None

    def __post_init__(self) -> None:
        rows = np.asarray(self.rows)
        if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu" or rows[0] < 1 or np.any(np.diff(rows) <= 0):
            raise ValueError(
                f"the rows of a drafting table must be whole, positive and increasing, got {rows.tolist()}"
            )
        if not isinstance(self.block_size, int) or self.block_size < 1:
            raise ValueError(
                f"the block size of a drafting table must be a whole number of at least 1, got {self.block_size}"
            )
        for name in ("whole", "one"):
            values = getattr(self, name)
            if values is None and name == "one":
                continue
            values = np.asarray(values, dtype=np.float64)
            if values.shape != rows.shape or not np.isfinite(values).all() or values.min() <= 0:
                raise ValueError(
                    f"a drafting table needs positive seconds for each of its {len(rows)} numbers of rows, got {values.tolist()}"
                )
            object.__setattr__(self, name, values)
        object.__setattr__(self, "rows", rows.astype(np.int64))

    def seconds(self, rows: int, tokens: int | None = None) -> float:
        """Of drafting ``tokens`` (None: a whole block) for each of ``rows``."""
        whole = float(np.interp(rows, self.rows, self.whole))
        return whole if tokens is None else whole - (self.block_size - tokens) * self.token_seconds(rows)

    def token_seconds(self, rows: int) -> float:
        """What one token a row more takes, for all ``rows`` together; at least 0."""
        if self.one is None or self.block_size == 1:
            return 0.0
        more = np.interp(rows, self.rows, self.whole) - np.interp(rows, self.rows, self.one)
        return max(float(more), 0.0) / (self.block_size - 1)

    def save(self, path: str | Path) -> None:
        """Write the table; atomically."""
        table = {
            "sample_batch_tokens": self.rows.tolist(),
            "sample_steps_per_sec": (1.0 / self.whole).tolist(),
            "max_batch_tokens": int(self.rows[-1]),
            BLOCK_SIZE: self.block_size,
        }
        write_json(Path(path), table | ({} if self.one is None else {ONE_TOKEN: (1.0 / self.one).tolist()}))

    @classmethod
    def load(cls, path: str | Path) -> Drafting:
        """Read what :meth:`save` wrote, or a table of rows alone.

        Raises:
            ValueError: no such file, a missing key, or values that are no table.
        """
        table = Throughput.load(path)
        more = read_json(Path(path))
        try:
            one = None
            if ONE_TOKEN in more:
                one = np.asarray(more[ONE_TOKEN], dtype=np.float64)
                if not np.isfinite(one).all() or one.min() <= 0:
                    raise ValueError(f"{ONE_TOKEN} must be positive and finite, got {more[ONE_TOKEN]}")
                one = 1.0 / one
            return cls(table.batch_tokens, 1.0 / table.steps_per_second, more.get(BLOCK_SIZE, 1), one)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None
