"""The notebooks run from top to bottom on run folders, show pictures, and are kept without their outputs."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from draftlab.report import find_runs

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
DRAFTER = {"_target_": "draftlab.drafters.DSpark", "num_layers": 2}


@pytest.fixture
def runs(fake_run, tmp_path):
    """Two seeds of one drafter and a DFlash, at two draft lengths, and beside them what a comparison leaves out or cannot place."""
    for name, gamma, seed, family in [
        ("a", 3, 0, "DSpark"),
        ("b", 3, 1, "DSpark"),
        ("c", 5, 0, "DSpark"),
        ("d", 5, 0, "DFlash"),
    ]:
        folder = fake_run(f"runs/{name}", gamma=gamma, seed=seed, prompts=4)
        config = {"drafter": DRAFTER | {"_target_": f"draftlab.drafters.{family}"}, "seed": seed}
        config["block"] = {"block_size": gamma}
        (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (tmp_path / "runs" / "unfinished" / ".hydra").mkdir(parents=True)
    (tmp_path / "runs" / "compare").mkdir()
    fake_run("runs/elsewhere", gamma=3, prompts=3)
    fake_run("runs/thinking", gamma=3, prompts=4, settings={"thinking": True})
    (fake_run("runs/torn", gamma=3, prompts=4) / "outputs.jsonl").write_text("{", encoding="utf-8")
    (fake_run("runs/broken", gamma=3, prompts=4) / ".hydra" / "config.yaml").write_text("a: [", encoding="utf-8")
    shutil.rmtree(fake_run("runs/bare", gamma=3, prompts=4) / ".hydra")
    return tmp_path / "runs"


@pytest.mark.parametrize("name", ["conditional_acceptance", "ablation"])
def test_a_notebook_runs_on_run_folders_and_shows_pictures(name, runs, monkeypatch):
    monkeypatch.setenv("DRAFTLAB_RUNS", str(runs))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOKS.parent / "src"), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": NOTEBOOKS}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 1
    assert sum("text/html" in output.get("data", {}) for output in outputs) >= 2
    said = "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")
    for left_out in ("unfinished", "elsewhere", "thinking", "torn"):
        assert f"left out: {left_out}: " in said
    assert not [output for output in outputs if output.get("name") == "stderr"], "a notebook warns of nothing"
    if name == "ablation":
        assert (
            "'broken': 'its .hydra/config.yaml is no YAML" in said
            and "'bare': 'its .hydra/config.yaml is missing" in said
        )


def test_notebooks_are_kept_without_outputs_and_all_of_them_are_tried():
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert [path.stem for path in paths] == ["ablation", "conditional_acceptance"]
    for path in paths:
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert cells and all(not cell.outputs and cell.execution_count is None for cell in cells)


def test_runs_are_found_by_name_and_a_folder_without_any_is_refused(runs, tmp_path, capsys):
    assert [run.name for run in find_runs(runs)] == ["a", "b", "bare", "broken", "c", "d"]
    shown = capsys.readouterr().out
    assert "left out: unfinished" in shown and "left out: thinking: thinking is on, but off in a" in shown
    with pytest.raises(ValueError, match="expected folders of evaluated runs"):
        find_runs(tmp_path)
