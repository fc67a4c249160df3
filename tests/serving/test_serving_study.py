"""A study goes on where it was stopped, and refuses a folder of another one."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from draftlab.data.files import MANIFEST, read_json
from draftlab.serving.study import SUMMARY, Cell, mean_over_seeds, run_cells

CELLS = [Cell(f"lag_{lag}-seed_{seed}", {"lag": lag, "seed": seed}) for lag in (1, 2) for seed in (0, 1)]


def figures(cell):
    return {"speed": 10.0 * cell.keys["lag"] + cell.keys["seed"], "never": float("nan")}


def test_a_study_is_a_row_a_cell_and_its_manifest_comes_last(tmp_path):
    table = run_cells(CELLS, figures, tmp_path / "study", {"seed": 0})
    assert table["speed"].tolist() == [10, 11, 20, 21] and table["never"].isna().all()
    assert pd.read_csv(tmp_path / "study" / SUMMARY)["lag"].tolist() == [1, 1, 2, 2]
    assert read_json(tmp_path / "study" / MANIFEST)["cells"] == 4


def test_a_stopped_study_goes_on_and_computes_no_cell_twice(tmp_path):
    seen = []

    def stopped(cell):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(cell.name)
        return figures(cell)

    with pytest.raises(KeyboardInterrupt):
        run_cells(CELLS, stopped, tmp_path, {"seed": 0})
    assert not (tmp_path / MANIFEST).exists() and not (tmp_path / SUMMARY).exists()
    again = []
    table = run_cells(CELLS, lambda cell: again.append(cell.name) or figures(cell), tmp_path, {"seed": 0})
    assert again == [cell.name for cell in CELLS[2:]] and table["speed"].tolist() == [10, 11, 20, 21]


def test_another_identity_and_a_damaged_cell_are_refused(tmp_path):
    run_cells(CELLS, figures, tmp_path, {"seed": 0})
    with pytest.raises(ValueError, match="made with another seed"):
        run_cells(CELLS, figures, tmp_path, {"seed": 1})
    path = tmp_path / "cells" / "lag_1-seed_0.json"
    path.write_text('{"keys": {"lag": 9}, "figures": {}}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"lag_1-seed_0.json does not hold the figures"):
        run_cells(CELLS, figures, tmp_path, {"seed": 0})
    with pytest.raises(ValueError, match="different names"):
        run_cells([CELLS[0], CELLS[0]], figures, tmp_path / "other", {})


def test_means_over_seeds_have_the_lowest_and_highest_beside_them():
    rows = pd.DataFrame([{**cell.keys, **figures(cell), "name": "x"} for cell in CELLS]).astype({"lag": float})
    rows.loc[2:, "lag"] = math.nan  # of what has no lag
    table = mean_over_seeds(rows, ["lag"])
    assert table["speed"].tolist() == [10.5, 20.5] and table["speed_low"].tolist() == [10, 20]
    assert table["speed_high"].tolist() == [11, 21] and "seed" not in table and "name" not in table
    alone = mean_over_seeds(rows[rows["seed"] == 0], ["lag"])
    assert "speed_low" not in alone, "one seed has no spread"
