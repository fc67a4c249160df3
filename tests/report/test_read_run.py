"""A run folder that cannot be read is refused in one message that says what to do."""

import json

import pandas as pd
import pytest

from draftlab.report import compare_runs, read_run, write_report, write_reports


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


def damage(folder, name, content):
    """Overwrite a file: bytes as they are, a function as a change of what evaluation.json or rounds.parquet hold."""
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif name == "rounds.parquet":
        content(pd.read_parquet(path)).to_parquet(path)
    else:
        evaluation = json.loads(path.read_text())
        content(evaluation)
        path.write_text(json.dumps(evaluation))


def column(name, change):
    return lambda rounds: rounds.assign(**{name: change(rounds[name])})


def gap(values):
    return values.astype(float).where(values.index > 0)


DAMAGES = [
    ("evaluation.json", b"[1]", "'settings'"),
    ("evaluation.json", b'{"settings": {', "expected JSON"),
    ("evaluation.json", b"\xff\xfe\x00", "UTF-8"),
    ("evaluation.json", lambda it: it.update(settings=[]), "'settings'"),
    ("evaluation.json", lambda it: it.update(counts=5), "list of objects at 'counts', got 5"),
    ("evaluation.json", lambda it: it["counts"][0].update(truncated="2"), "number at counts.truncated, got '2'"),
    ("evaluation.json", lambda it: it.update(speed={"ratio": 1}), "list of objects at 'speed'"),
    ("evaluation.json", lambda it: it["speed"][1].pop("ratio"), "a ratio in every row"),
    ("evaluation.json", lambda it: it["speed"][1].update(temperature=None), "number at speed.temperature"),
    ("evaluation.json", lambda it: it["speed"][0].update(draft_seconds="1"), "number at speed.draft_seconds"),
    ("evaluation.json", lambda it: it["settings"].update(drafter={"parameters": "1M"}), "drafter.parameters"),
    ("evaluation.json", lambda it: it.update(command=5), "text at 'command', got 5"),
    (".hydra/overrides.yaml", b"- a\n- [", "expected a list as YAML"),
    (".hydra/overrides.yaml", b"a: 1", "list of overrides"),
    (".hydra/config.yaml", b"\x80\x81", "UTF-8"),
    ("outputs.jsonl", b'{"benchmark": "a", "prompt_id": "1"}\n{"benchm', "in line 2"),
    ("outputs.jsonl", b'{"benchmark": "a"}\n', "in line 1"),
    ("outputs.jsonl", b"5\n", "in line 1"),
    ("metrics.csv", b"step,train/loss\n1,low\n", "numbers in the column train/loss"),
    ("metrics.csv", b'step\n1\n1,2,"', "table as CSV"),
    ("rounds.parquet", b"PAR1 and no more", "Parquet table"),
    *(
        ("rounds.parquet", column(name, lambda values: values.astype(str)), f"numbers in the column {name}")
        for name in ("accepted", "proposed", "committed", "temperature")
    ),
    ("rounds.parquet", column("temperature", gap), "value in every row of temperature"),
    ("rounds.parquet", column("benchmark", lambda values: values.where(values.index > 0)), "every row of benchmark"),
    ("rounds.parquet", column("proposed", lambda values: values + 0.5), "whole numbers in the column proposed"),
    ("rounds.parquet", column("confidence", lambda values: values.map(lambda one: one * 3)), "from 0 to 1"),
    ("rounds.parquet", column("confidence", lambda values: values.map(lambda one: ["x"])), "lists of numbers"),
]


@pytest.mark.parametrize(("name", "content", "reason"), DAMAGES)
def test_a_damaged_file_is_refused_by_name_with_what_to_do(fake_run, name, content, reason):
    folder = fake_run(prompts=2)
    damage(folder, name, content)
    with pytest.raises(ValueError, match=reason) as caught:
        read_run(folder)
    assert name in str(caught.value) and any(word in str(caught.value) for word in ("again", "mend or remove"))


def test_damaged_runs_are_left_out_of_reports_and_comparison_by_name_and_the_others_go_on(fake_run, tmp_path, capsys):
    folders = [fake_run(f"good{seed}", prompts=2, temperatures=(1.0,), seed=seed) for seed in (0, 1)]
    for place, (name, content, _) in enumerate(DAMAGES):
        if place % 6 == 0:
            folders.append(fake_run(f"bad{place}", prompts=2))
            damage(folders[-1], name, content)
    assert [page.parent.name for page in write_reports(folders)] == ["good0", "good1"]
    out = compare_runs(folders, tmp_path / "out").parent
    shown = capsys.readouterr().out
    assert len(folders) > 5 and all(f"left out: {folder.name}: " in shown for folder in folders[2:])
    assert set(pd.read_csv(out / "runs.csv")["run"]) == {"good0", "good1"}


def test_a_ratio_that_is_unknown_and_counts_as_decimal_numbers_are_no_damage(fake_run):
    folder = fake_run(prompts=2)
    damage(folder, "evaluation.json", lambda it: [row.update(ratio=None) for row in it["speed"]])
    damage(folder, "rounds.parquet", lambda rounds: rounds.astype({"accepted": float, "committed": float}))
    write_report(folder)
    run = read_run(folder)
    assert run.speed["ratio"].isna().all() and run.rounds["committed"].dtype == "int64"
