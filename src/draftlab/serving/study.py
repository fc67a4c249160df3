"""A study: many cells, each a row of figures, kept one file a cell, so that a stopped study goes on where it was.

    <folder>/cells/<name>.json     the figures of one cell, written when it is done
    <folder>/summary.csv           a row a cell: what it was, and its figures
    <folder>/manifest.json         what the study is of; written last

A folder begun with other settings is refused. The module does not know what a cell does.

    rows = run_cells([Cell("lag_2", {"lag": 2})], work, Path("outputs/bursts"), identity={"seed": 0})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from draftlab.data.files import claim, digest, read_json, seal, write_atomically, write_json
from draftlab.data.progress import Progress

SUMMARY = "summary.csv"


@dataclass(frozen=True)
class Cell:
    """One experiment: a name that is safe as a file's, and the values that tell it from others."""

    name: str
    keys: Mapping[str, Any]


Work = Callable[[Cell], Mapping[str, Any]]  # the figures of one cell


def run_cells(
    cells: Sequence[Cell], work: Work, folder: Path, identity: Mapping[str, Any], label: str = "cells"
) -> pd.DataFrame:
    """Run what is not done yet; a row a cell in the order given: its keys, then its figures.

    Raises:
        ValueError: two cells of one name, a folder of another study, or a cell's file that cannot be read.
    """
    names = [cell.name for cell in cells]
    if not cells or len(set(names)) < len(names):
        raise ValueError(f"a study needs cells with different names, got {names}")
    claim(folder, dict(identity), "a study", "out")
    paths = {cell.name: folder / "cells" / f"{cell.name}.json" for cell in cells}
    done = sum(path.is_file() for path in paths.values())
    rows = []
    with Progress(label, len(cells), done) as progress:
        for cell in cells:
            path = paths[cell.name]
            if not path.is_file():
                write_json(path, {"keys": dict(cell.keys), "figures": dict(work(cell))})
                progress.advance(1)
            rows.append({**cell.keys, **_read(path, cell)})
    table = pd.DataFrame(rows)
    write_atomically(folder / SUMMARY, table.to_csv(index=False, float_format="%.6g"))
    seal(folder, {"identity": dict(identity), "cells": len(cells), "summary": digest(table.to_csv(index=False))})
    return table


def _read(path: Path, cell: Cell) -> Mapping[str, Any]:
    found = read_json(path)
    if (
        not isinstance(found, dict)
        or found.get("keys") != dict(cell.keys)
        or not isinstance(found.get("figures"), dict)
    ):
        raise ValueError(f"{path} does not hold the figures of {dict(cell.keys)}; remove it to run that cell again")
    return found["figures"]


def mean_over_seeds(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """One row for every value of ``keys``, in their first order: means of all figures, lowest and highest as _low and _high."""
    figures = [name for name in rows.columns if name not in (*keys, "seed") and is_numeric_dtype(rows[name])]
    grouped = rows.groupby(list(keys), sort=False, dropna=False)
    table = grouped[figures].mean()
    for name in figures if rows.duplicated(list(keys)).any() else []:
        table[f"{name}_low"], table[f"{name}_high"] = grouped[name].min(), grouped[name].max()
    return table.reset_index()
