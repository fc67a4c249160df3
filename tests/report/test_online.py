"""What goes to W&B is what the report wrote, into the run that is open; nothing where there is none."""

import pandas as pd
import pytest
import wandb

from draftlab.report import write_report
from draftlab.report.online import headline, log_report


@pytest.fixture
def reported(fake_run):
    folder = fake_run("demo", prompts=5)
    write_report(folder, show=False)
    return folder


class OpenRun:
    def __init__(self):
        self.logged, self.summary = {}, {}

    def log(self, values):
        self.logged |= values


def test_tables_and_pictures_of_the_report_and_its_headline_are_logged(reported, monkeypatch):
    run = OpenRun()
    monkeypatch.setattr(wandb, "run", run)
    log_report(reported)
    tables = {path.stem for path in (reported / "tables").glob("*.csv")}
    pictures = {path.stem for path in (reported / "figures").glob("*.png")}
    assert tables and pictures
    assert set(run.logged) == {f"evaluation/tables/{name}" for name in tables} | {
        f"evaluation/figures/{name}" for name in pictures
    }
    lengths = pd.read_csv(reported / "tables" / "accepted_length.csv")
    table = run.logged["evaluation/tables/accepted_length"]
    assert table.columns == list(lengths.columns) and len(table.data) == len(lengths)
    overall = lengths[lengths["scope"] == "all"].set_index("temperature")
    assert run.summary["evaluation/accepted_length_T0"] == overall.loc[0.0, "accepted_length"]
    assert run.summary["evaluation/accepted_length_high_T1"] == overall.loc[1.0, "accepted_length_high"]


def test_without_an_open_run_nothing_is_read_or_sent(monkeypatch, tmp_path):
    monkeypatch.setattr(wandb, "run", None)
    log_report(tmp_path / "nowhere")


def test_the_headline_holds_one_value_a_temperature():
    rows = [
        {"temperature": t, "scope": s, **dict.fromkeys(COLUMNS, 1.5)} for t in (0.0, 0.7) for s in ("all", "domain")
    ]
    assert set(headline(pd.DataFrame(rows))) == {f"evaluation/{c}_T{t}" for c in COLUMNS for t in ("0", "0.7")}


COLUMNS = ("accepted_length", "accepted_length_low", "accepted_length_high")
