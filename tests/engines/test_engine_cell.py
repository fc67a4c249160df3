"""A cell of a drafter that no engine takes is a result with our words; what is wrong with the command is refused before it."""

from __future__ import annotations

import pytest

from draftlab.engines.cell import Cell, CellSettings
from draftlab.engines.table import faults, page
from exporting import make_run

PROMPTS = {"math": [[1, 2, 3]]}


@pytest.fixture
def settings(tmp_path):
    """Programs that are not there: nothing may be started."""
    return CellSettings(tmp_path / "llama-server", tmp_path / "convert.py", max_new_tokens=4, threads=1)


def test_a_family_that_no_format_carries_says_so_and_is_no_fault(settings, target_folder, tmp_path):
    run = make_run(tmp_path / "mtp", target_folder, "drafter=mtp", "drafter.num_layers=1")
    result = Cell(run, "f32", settings).measure(PROMPTS)
    assert not result["loads"] and "engines read MTP modules out of the target's own checkpoint" in result["message"]
    assert faults(result) == [] and "| MTP | none | 3 | no: “" in page([result])


def test_words_that_no_cell_is_made_of_are_refused(settings, target_folder, tmp_path):
    run = make_run(tmp_path / "run", target_folder, "drafter=dspark", "head.rank=4")
    with pytest.raises(ValueError, match="draft_tokens: expected 1 to 3"):
        Cell(run, "f32", settings, 4)
    with pytest.raises(ValueError, match="weights: expected f32"):
        Cell(run, "wheel", settings)
    with pytest.raises(ValueError, match="draft_weights: expected f32"):
        Cell(run, "f32", CellSettings(settings.server, settings.converter, 4, draft_weights="q2_k"))
