"""The cells of a sweep: one set of values each, under a name that is safe as a folder.

    grid      Π_i values_i, the first parameter slowest
    random    cell n is drawn from a generator seeded by (seed, n), so a larger count keeps the cells before it

A name is made of the values that vary: ``drafter_dspark-block_size_8``. It depends on the cell alone, so that a larger count
renames nothing, and no two cells share one. The module knows nothing of how cells are run.

    >>> [cell.name for cell in make_cells(read_sweep("sweeps/gamma.yaml"))][:1]
    ['drafter_dspark-block_size_4']
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from draftlab.data.files import digest
from draftlab.sweeps.spec import Sweep

UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")
LONGEST_NAME = 120  # file systems take 255 bytes
DRAWS_A_CELL = 100  # before a random sweep is said to have no further ones


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its name and the value of every parameter."""

    name: str
    values: dict[str, Any]

    @property
    def arguments(self) -> list[str]:
        """``key=value`` words, written as W&B writes them."""
        return [f"{key}={value}" for key, value in self.values.items()]


def make_cells(sweep: Sweep, count: int | None = None, seed: int = 0) -> list[Cell]:
    """The cells of ``sweep``, in the order in which they run.

    Args:
        count: the first so many; a random sweep without ``run_cap`` needs it. seed: of a random sweep's draws.

    Raises:
        ValueError: a count below 1, or none for a random sweep; a drawn number that is no float.
    """
    count = sweep.run_cap if count is None else count
    if count is not None and count < 1:
        raise ValueError(f"--count must be at least 1, got {count}")
    if sweep.method == "grid":
        drawn = list(itertools.islice(_grid(sweep), count))
    elif count is None:
        raise ValueError(f"{sweep.path}: a random sweep has no end of its own; say how many cells with --count N")
    else:
        drawn = _random(sweep, count, seed)
    varying = [parameter.name for parameter in sweep.parameters if parameter.distribution != "constant"]
    return [Cell(cell_name(values, varying), values) for values in drawn]


def _grid(sweep: Sweep):
    names = [parameter.name for parameter in sweep.parameters]
    for values in itertools.product(*(parameter.choices() for parameter in sweep.parameters)):
        yield dict(zip(names, values, strict=True))


def _random(sweep: Sweep, count: int, seed: int) -> list[dict[str, Any]]:
    """``count`` different cells, or all there are."""
    drawn: dict[str, dict[str, Any]] = {}
    for number in range(DRAWS_A_CELL * count):
        if len(drawn) == count:
            break
        rng = Random(f"{seed}-{number}")
        try:
            values = {parameter.name: parameter.draw(rng) for parameter in sweep.parameters}
        except ValueError as error:
            raise ValueError(f"{sweep.path}: {error}") from None
        drawn.setdefault(str(values), values)
    return list(drawn.values())


def cell_name(values: Mapping[str, Any], varying: list[str]) -> str:
    """``last part of the key_value`` of every varying parameter, joined by dashes; a digest where other values could have the
    same name, or where it is not safe as a folder.

    >>> cell_name({"drafter.num_layers": 2, "head": "rnn"}, ["drafter.num_layers", "head"])
    'num_layers_2-head_rnn'
    """
    short = {name: name.rsplit(".", 1)[-1] for name in varying}
    ambiguous = len(set(short.values())) < len(short)
    parts = [(name if ambiguous else short[name], str(values[name])) for name in varying]
    exact = "-".join(f"{key}_{value}" for key, value in parts) or "only"
    safe = UNSAFE.sub("_", exact)
    if safe == exact and len(safe) <= LONGEST_NAME and _reads_one_way(safe, [key for key, _ in parts]):
        return safe
    return f"{safe[:LONGEST_NAME]}-{digest(dict(values))[:8]}"


def _reads_one_way(name: str, keys: list[str]) -> bool:
    """Whether only one set of values gives ``name``: shortest and longest first values that fit are then the same.

    ``a_1-b_2-b_3`` reads as a = 1 and as a = 1-b_2.
    """
    shortest, longest = (
        re.match("-".join(f"{re.escape(key)}_({value})" for key in keys) + r"\Z", name) for value in (".*?", ".*")
    )
    return not keys or shortest.groups() == longest.groups()
