"""What an earlier runner left on disk: a damaged file is refused by name, and what the refusal advises works."""

import json
from pathlib import Path

import pytest

from draftlab.sweeps import make_cells, make_plan, read_sweep, run_plan

FOUR = {"n": {"values": [1, 2, 3, 4]}}
OUT = Path("outputs/sweeps/try")
CELL = {
    "name": "n_1",
    "values": {"n": 1},
    "arguments": ["n=1"],
    "state": "finished",
    "exit_code": 0,
    "seconds": 1.0,
    "metric": None,
}
DAMAGED = [[], {}, 5, {"state": "failed"}, CELL | {"new": 1}, CELL | {"state": "done"}, CELL | {"arguments": "n=1"}]
DAMAGED += [CELL | {"seconds": "1"}, CELL | {"metric": [1]}, CELL | {"values": None}, CELL | {"state": ["failed"]}]


@pytest.mark.parametrize("cell", DAMAGED, ids=str)
@pytest.mark.parametrize("name", ["sweep.json", "n_1/finished.json"])
def test_a_damaged_state_of_a_cell_is_refused_with_its_file(bench, name, cell):
    sweep = read_sweep(bench.write(FOUR))
    path = OUT / name
    (OUT / "n_1").mkdir(parents=True)
    path.write_text(json.dumps(cell if "/" in name else {"sweep": "try", "cells": {"n_1": cell}}))
    with pytest.raises(ValueError, match=f"{name} is damaged: .*remove that file"):
        run_plan(make_plan(sweep, make_cells(sweep), OUT))
    path.write_text(json.dumps(CELL if "/" in name else {"sweep": "try", "cells": {"n_1": CELL}}))
    assert {state.state for state in run_plan(make_plan(sweep, make_cells(sweep), OUT))} == {"finished"}


@pytest.mark.parametrize("content", [[], {}, {"cells": []}, {"cells": None}, 5])
def test_a_damaged_file_of_a_sweep_is_refused(bench, content):
    sweep = read_sweep(bench.write(FOUR))
    OUT.mkdir(parents=True)
    (OUT / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"sweep\.json is damaged: .*remove that file"):
        run_plan(make_plan(sweep, make_cells(sweep), OUT))
