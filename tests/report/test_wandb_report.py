"""The W&B Report is built from the comparison's own tables; it is refused before any work where it could not be sent."""

import pandas as pd
import pytest
import yaml

from draftlab.report import compare_runs, wandb_report
from draftlab.report.wandb_report import build_report, check_ready, markdown, publish, wandb_name

parts = pytest.importorskip(
    "wandb_workspaces.reports.v2", reason="needs wandb-workspaces: pip install -e '.[wandb-report]'"
)


@pytest.fixture
def compared(fake_run, tmp_path):
    folders = [fake_run(name, prompts=4, seed=seed) for seed, name in enumerate(("first", "second"))]
    config = {"run_name": "its W&B name", "drafter": {"_target_": "draftlab.drafters.DSpark"}, "seed": 1}
    (folders[1] / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    compare_runs(folders, tmp_path / "out", show=False)
    return folders, tmp_path / "out"


def test_the_report_holds_the_tables_and_the_runs_curves_and_pictures(compared):
    folders, out = compared
    report = build_report(folders, out, "draftlab", "team")
    assert report.project == "draftlab" and report.entity == "team" and "its W&B name" in report.title
    texts = [block.text for block in report.blocks if isinstance(block, parts.MarkdownBlock)]
    lengths = pd.read_csv(out / "runs.csv")
    value = lengths.loc[lengths["run"] == "second", "accepted_length"].iloc[0]
    assert any("| second |" in text and f"{value:.2f}" in text for text in texts)
    assert any("drafter._target_" in text for text in texts), "what differs is told"
    grids = [block for block in report.blocks if isinstance(block, parts.PanelGrid)]
    assert all(
        "first" in str(grid.runsets[0].filters) and "its W&B name" in str(grid.runsets[0].filters) for grid in grids
    )
    media = [
        key
        for grid in grids
        for panel in grid.panels
        if isinstance(panel, parts.MediaBrowser)
        for key in panel.media_keys
    ]
    assert "evaluation/figures/conditional_acceptance" in media
    curves = [panel for grid in grids for panel in grid.panels if isinstance(panel, parts.LinePlot)]
    assert any("val/accepted_length" in str(panel.y) for panel in curves)
    shown = {getattr(key, "name", key) for panel in curves for key in panel.y or ()}
    readings = ("survival_ece", "survival_roc_auc", "conditional_ece", "conditional_roc_auc")
    assert shown >= {f"val/sts/{name}_{when}" for name in readings for when in ("before", "after")}


def test_publishing_saves_once_and_gives_the_address(compared, monkeypatch):
    saved = []

    class Report:
        url = "https://wandb.ai/team/draftlab/reports/1"

        def save(self):
            saved.append(self)

    monkeypatch.setattr(wandb_report, "build_report", lambda *args: Report())
    assert publish(*compared, "draftlab") == Report.url and len(saved) == 1


def test_without_login_or_package_it_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(wandb_report, "logged_in", lambda host: False)
    with pytest.raises(ValueError, match="wandb login"):
        check_ready()
    monkeypatch.setattr(wandb_report, "PACKAGE", "no_such_package")
    with pytest.raises(ValueError, match="wandb-report"):
        check_ready()


def test_a_folder_without_a_comparison_is_refused(fake_run, tmp_path):
    with pytest.raises(ValueError, match="holds no comparison"):
        build_report([fake_run("one")], tmp_path, "draftlab")


def test_a_run_without_a_recorded_name_goes_by_its_folder(fake_run):
    assert wandb_name(fake_run("alone")) == "alone"


def test_markdown_escapes_bars_and_shows_what_is_missing():
    assert markdown(pd.DataFrame({"a|b": [1.5, None], "c": ["x|y", "z"]})).splitlines() == [
        "| a\\|b | c |",
        "| --- | --- |",
        "| 1.5 | x\\|y |",
        "| – | z |",
    ]
