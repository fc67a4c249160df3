"""Loggers: metrics.csv goes on after a resume, and W&B never asks, hangs or ends a training."""

import csv

import pytest
import wandb

from draftlab.training import loggers
from draftlab.training.loggers import MetricsFile, wandb_logger


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    wandb.finish()


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_metrics_lie_straight_in_the_run_folder(tmp_path):
    logger = MetricsFile(str(tmp_path))
    logger.log_metrics({"train/loss": 2.0}, step=1)
    logger.save()
    assert rows(tmp_path) == [{"step": "1", "train/loss": "2.0"}]


def test_a_resumed_run_goes_on_in_the_same_file_also_with_a_new_column(tmp_path):
    for step, metrics in ((1, {"train/loss": 2.0}), (2, {"train/loss": 1.0, "val/loss": 3.0})):
        logger = MetricsFile(str(tmp_path))
        logger.log_metrics(metrics, step=step)
        logger.save()
    assert [(row["step"], row["train/loss"], row["val/loss"]) for row in rows(tmp_path)] == [
        ("1", "2.0", ""),
        ("2", "1.0", "3.0"),
    ]


def test_without_a_key_w_and_b_logs_offline_and_says_how_to_upload(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a prompt"))
    logger = wandb_logger(str(tmp_path / "run"), "draftlab")
    logger.log_metrics({"train/loss": 1.0}, step=1)
    wandb.finish()
    output = capsys.readouterr().out
    assert output.count("logging offline") == 1 and f"wandb sync {tmp_path}/run/wandb/offline-run-*" in output
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))


def test_with_a_key_but_without_a_server_w_and_b_falls_back_to_offline(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    modes = []

    def started(folder, project, name, mode):
        modes.append(mode)
        if mode == "online":
            raise wandb.errors.CommError("no route to host\nmore")
        return "logger"

    monkeypatch.setattr(loggers, "_started", started)
    assert wandb_logger(str(tmp_path), "draftlab") == "logger" and modes == ["online", "offline"]
    assert "logging offline (CommError: no route to host); to upload later" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_the_mode_that_the_user_set_is_honoured(tmp_path, monkeypatch, mode, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_MODE", mode)
    seen = []
    monkeypatch.setattr(loggers, "_started", lambda *arguments: seen.append(arguments[-1]))
    wandb_logger(str(tmp_path), "draftlab")
    assert seen == [mode] and ("logging offline" in capsys.readouterr().out) == (mode == "offline")
