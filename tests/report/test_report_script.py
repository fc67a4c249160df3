"""src/report.py refuses what it cannot do before it rewrites a report, and hands on only the runs that were compared."""

import runpy
import sys
from pathlib import Path

import pytest

from draftlab.report import wandb_report
from draftlab.report.comparable import check_out, run_folders

SCRIPT = Path(__file__).parents[2] / "src" / "report.py"


@pytest.fixture
def report(tmp_path, monkeypatch):
    """``report("runs=[a]")`` runs the script in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)

    def run(*overrides):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *overrides])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return run


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["runs=[a,b]", "out=file"], "out: expected a folder"),
        (["runs=[a,b]", "out=file/below"], "out: expected a folder"),
        (["runs=[a,b]", "out=null"], "out: expected the name"),
        (["runs=[a,a]"], "more than once"),
        (["runs=[a,./a]"], "more than once"),
        (["runs=5"], "runs: expected names of folders"),
        (["runs=[null,a]"], "runs: expected names of folders"),
        (["runs={a:a}"], "runs: expected names of folders"),
        (["runs=[]"], "runs: expected names of folders"),
    ],
)
def test_a_mistake_is_refused_in_one_message_before_any_report(report, fake_run, tmp_path, capsys, overrides, reason):
    fake_run("a", prompts=2), fake_run("b", prompts=2, seed=1)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        report(*overrides)
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and reason in said.err and len(said.err.splitlines()) == 1
    assert not said.out and not list(tmp_path.glob("*/report.html"))


def test_a_trial_of_out_leaves_nothing_behind(tmp_path):
    assert check_out(tmp_path / "new" / "deep") == tmp_path / "new" / "deep" and not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    check_out(tmp_path / "old")
    assert list(tmp_path.iterdir()) == [tmp_path / "old"]


def test_one_folder_may_be_named_without_a_list():
    assert run_folders("outputs/a") == ["outputs/a"]


def test_a_wandb_report_holds_the_compared_runs_only(report, fake_run, tmp_path, monkeypatch, capsys):
    fake_run("a", prompts=2), fake_run("b", prompts=2, seed=1), fake_run("few", prompts=1)
    (fake_run("torn", prompts=2) / "evaluation.json").write_text("{")
    (tmp_path / "b" / ".hydra" / "config.yaml").write_text("a: [")
    sent = []
    monkeypatch.setattr(wandb_report, "check_ready", lambda: None)
    monkeypatch.setattr(wandb_report, "publish", lambda runs, *_: sent.extend(map(wandb_report.wandb_name, runs)))
    report("runs=[a,torn,few,b]", "out=out", "report=wandb")
    assert sent == ["a", "b"] and "left out: torn: " in capsys.readouterr().out
