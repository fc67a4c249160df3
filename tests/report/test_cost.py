"""What drafters cost is read from their evaluations; what was not recorded is a dash, never a guess."""

import json

import numpy as np
import pytest

from draftlab.report import compare_runs, read_run
from draftlab.report.cost import cost_cells, cost_section, cost_table, round_milliseconds


@pytest.fixture
def pair(fake_run):
    """A run that recorded everything, and one of an older version."""
    new, old = fake_run("new", prompts=4), fake_run("old", prompts=4)
    path = new / "evaluation.json"
    evaluation = json.loads(path.read_text())
    evaluation["settings"]["drafter"] = {"drafter": "DSpark", "parameters": 12_345_678}
    for speed in evaluation["speed"]:
        speed |= {"rounds": 200, "draft_seconds": 1.5, "verify_seconds": 4.0, "batch_size": 1}
    path.write_text(json.dumps(evaluation))
    return read_run(new), read_run(old)


def test_a_row_says_parameters_milliseconds_and_speed(pair):
    row = cost_table(pair, [1.0]).set_index("run").loc["new"]
    assert row["parameters"] == 12_345_678 and row["over_plain"] == 1.3
    assert row["draft_ms"] == pytest.approx(7.5) and row["verify_ms"] == pytest.approx(20.0)
    rounds = pair[0].rounds[pair[0].rounds["temperature"] == 1.0]
    assert row["accepted_length"] == pytest.approx(rounds["committed"].sum() / len(rounds))


def test_what_was_not_recorded_is_a_dash(pair):
    cells = cost_cells(cost_table(pair, [0.0, 1.0]))
    assert [row[:3] for row in cells[:2]] == [["0", "new", "12,345,678"], ["0", "old", "–"]]
    assert cells[1][4:] == ["–", "–", "1.30"]
    assert np.isnan(round_milliseconds({"rounds": 0, "draft_seconds": 1.0, "verify_seconds": 1.0})["draft_ms"])


def test_the_comparison_shows_it_and_nothing_where_nothing_is_known(pair, tmp_path, capsys):
    page = compare_runs([run.folder for run in pair], tmp_path / "out")
    assert "What the drafters cost" in page.read_text() and "12,345,678" in capsys.readouterr().out
    assert (tmp_path / "out" / "cost.csv").is_file()
    unknown = cost_table(pair[1:], [1.0]).assign(over_plain=np.nan)
    assert cost_section(unknown) == []
