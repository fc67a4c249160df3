"""A run folder that cannot be read is refused in one message that says what to do."""

import json

import pandas as pd
import pytest

from draftlab.report.run import read_run


def test_a_run_folder_is_read_whole(fake_run):
    run = read_run(fake_run("demo", prompts=3))
    assert run.name == "demo"
    assert run.temperatures == [0.0, 1.0]
    assert len(run.prompts) == 9
    assert run.commands == ("python src/train.py experiment=demo seed=3", "python src/evaluate.py run=outputs/x")
    assert "num_layers: 2" in run.config
    assert {"train/loss", "val/accepted_length"} <= set(run.metrics.columns)


def test_a_run_without_curves_configuration_or_texts_is_read_too(fake_run):
    folder = fake_run(prompts=2)
    for name in ("metrics.csv", "outputs.jsonl", ".hydra/config.yaml", ".hydra/overrides.yaml"):
        (folder / name).unlink()
    run = read_run(folder)
    assert run.metrics is None and run.config is None and len(run.prompts) == 6


@pytest.mark.parametrize("name", ["rounds.parquet", "evaluation.json"])
def test_an_evaluation_that_did_not_end_is_refused_with_the_command_to_run(fake_run, name):
    folder = fake_run(prompts=2)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name}.*python src/evaluate.py run="):
        read_run(folder)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.*check the name"):
        read_run(tmp_path / "nowhere")


def test_a_missing_column_is_named(fake_run):
    folder = fake_run(prompts=2)
    pd.read_parquet(folder / "rounds.parquet").drop(columns="committed").to_parquet(folder / "rounds.parquet")
    with pytest.raises(ValueError, match=r"missing committed"):
        read_run(folder)


@pytest.mark.parametrize("change", [{"accepted": 9, "committed": 9}, {"committed": 0, "accepted": 0}, {"accepted": -1}])
def test_a_round_that_cannot_be_is_refused(fake_run, change):
    folder = fake_run(prompts=2)
    rounds = pd.read_parquet(folder / "rounds.parquet")
    for column, value in change.items():
        rounds.loc[3, column] = value
    rounds.to_parquet(folder / "rounds.parquet")
    with pytest.raises(ValueError, match=r"expected 0 <= accepted <= proposed"):
        read_run(folder)


def test_no_rounds_at_all_are_refused(fake_run):
    folder = fake_run(prompts=2)
    pd.read_parquet(folder / "rounds.parquet").iloc[:0].to_parquet(folder / "rounds.parquet")
    with pytest.raises(ValueError, match=r"at least one decode round"):
        read_run(folder)


def test_an_evaluation_without_settings_is_refused(fake_run):
    folder = fake_run(prompts=2)
    (folder / "evaluation.json").write_text(json.dumps({"speed": []}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"'settings'"):
        read_run(folder)
