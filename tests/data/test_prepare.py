"""src/prepare.py: answers on disk from one command, with every refusal in one message."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

import tiny
from draftlab.data.answers import read_manifest
from draftlab.data.prompts import builtin_prompts

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "src" / "prepare.py"


@pytest.fixture(scope="module")
def prepare():
    spec = importlib.util.spec_from_file_location("prepare", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def overrides(target_folder, folder, *more: str) -> list[str]:
    return [
        "target=custom",
        f"target.path={target_folder}",
        "target.name=tiny",
        "data=laptop",
        f"data.path={folder}",
        "count=12",
        "responses.max_new_tokens=6",
        "responses.batch_size=4",
        "sampling.temperature=1.0",
        *more,
    ]


def run(prepare, *given: str) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        prepare.main.__wrapped__(compose("prepare", overrides=list(given)))


def test_one_command_writes_answers_and_their_manifest(prepare, target_folder, tmp_path, capsys):
    run(prepare, *overrides(target_folder, tmp_path))
    manifest = read_manifest(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "responses.jsonl").read_text().splitlines()]
    assert len(lines) == manifest["counts"]["answers"] == 12
    assert manifest["identity"]["target"] == {
        "name": "tiny", "source": Path(target_folder).name, "revision": None, "dtype": "float32",
    }  # fmt: skip
    assert manifest["identity"]["sampling"]["temperature"] == 1.0
    said = capsys.readouterr().out
    assert f"{manifest['counts']['truncated']} cut at 6 tokens" in said and "tokens/s" in said


def test_another_run_in_the_same_folder_is_refused_before_weights_load(
    prepare, target_folder, tmp_path, capsys, monkeypatch
):
    run(prepare, *overrides(target_folder, tmp_path))
    monkeypatch.setattr("draftlab.target.load_target", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(SystemExit) as exit_code:
        run(prepare, *overrides(target_folder, tmp_path, "seed=1"))
    assert exit_code.value.code == 1
    assert "answers made with another seed: there it is 0, now it is 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["stage=answers"], "stage must be one of responses, features, stream, got 'answers'"),
        (["stage=features"], "stage=features fills the cache of data.features=cache, got data.features=memory"),
        (["stage=stream"], "stage=stream fills the stream of data.features=stream, got data.features=memory"),
        (
            ["stage=stream", "data.features=stream", "predict.devices=2", "predict.accelerator=cpu"],
            "data.features=stream has one process on either side",
        ),
        (["count=0"], "count must be null or at least 1"),
        (["sampling.temperature=-1"], "sampling.temperature must be a finite number >= 0"),
        (["responses.batch_size=0"], "responses.batch_size must be at least 1"),
        (["responses.batch_size=2.5"], "responses.batch_size must be at least 1"),
        (["device=gpu0"], "device must be auto, cpu, cuda"),
        ([f"data.path={SCRIPT}"], "data.path must be a folder for the answers"),
        ([f"data.path={SCRIPT}/below"], "data.path: no folder for the answers can be made at"),
        (["responses.max_new_tokens=99999"], "leaves no room for a prompt"),
        (["data=jsonl", "data.path=x"], "prompts.path is not set"),
        (["decontaminate.ngram=0"], "decontaminate.ngram must be at least 1"),
        (["decontaminate.prompts_dir=/no/such/folder"], "decontaminate.prompts_dir: expected a folder of JSONL files"),
        (["data.prompts.split=dev"], "prompts.split must be one of train, heldout, got 'dev'"),
    ],
)
def test_mistakes_end_in_one_message(prepare, target_folder, tmp_path, capsys, given, message):
    with pytest.raises(SystemExit) as exit_code:
        run(prepare, *overrides(target_folder, tmp_path / "new"), *given)
    assert exit_code.value.code == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_half_of_max_length_is_for_the_answer_unless_said(prepare):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("prepare", overrides=["target=custom", "data=laptop"])
    spec = tiny.tiny_spec(tiny.tiny_model())
    settings = prepare.response_settings(cfg, spec, 300)
    assert settings.max_new_tokens == 150 and settings.sampling == spec.sampling


def test_prompts_that_leave_no_position_for_their_answer_count_as_too_long(prepare):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("prepare", overrides=["target=custom", "data=laptop", "responses.max_new_tokens=200"])
    spec = tiny.tiny_spec(tiny.tiny_model())
    assert prepare.response_settings(cfg, spec, 512).max_prompt_tokens == spec.max_position - 200


def test_prompts_that_stand_in_evaluation_prompts_are_not_asked(prepare, target_folder, tmp_path, capsys):
    asked = [prompt.messages[0]["content"] for prompt in builtin_prompts(12)]
    (tmp_path / "bench").mkdir()
    lines = [{"id": "0", "turns": [asked[3].upper()]}, {"id": "1", "turns": ["Something else"]}]
    (tmp_path / "bench" / "known.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    clean = f"decontaminate.prompts_dir={tmp_path / 'bench'}"
    given = overrides(target_folder, tmp_path / "answers", "data.prompts.count=12")
    run(prepare, *given, clean, "decontaminate.builtin_heldout=30")
    manifest = read_manifest(tmp_path / "answers")
    assert manifest["counts"]["answers"] == 11
    report = manifest["prompts"]["decontamination"]
    assert (report["checked"], report["removed"], report["ngram"]) == (12, 1, 13)
    assert report["benchmarks"] == {
        "known": {"prompts": 2, "exact": 1, "ngram": 0, "examples": ["train-math-1"]},
        "built-in held-out": {"prompts": 30, "exact": 0, "ngram": 0, "examples": []},
    }
    assert asked[3] not in (tmp_path / "answers" / "responses.jsonl").read_text()
    assert "1 of 12 prompts dropped" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run(prepare, *given)  # other prompts than those that were asked
    assert "answers made with another decontaminate" in capsys.readouterr().err


def test_answers_become_a_feature_cache_by_a_second_command(prepare, target_folder, tmp_path, capsys):
    given = overrides(target_folder, tmp_path / "answers")
    run(prepare, *given)
    cache = [
        "stage=features",
        "data.val_samples=2",
        "data.features=cache",
        "data.codec=int4",
        f"data.cache_dir={tmp_path / 'cache'}",
    ]
    run(prepare, *given, *cache)
    manifest = json.loads((tmp_path / "cache" / "manifest.json").read_text())
    assert manifest["identity"]["codec"] == "int4" and manifest["counts"]["samples"] > 0
    said = capsys.readouterr().out
    assert f"{manifest['counts']['bytes_per_token']:,.1f} bytes a token with data.codec=int4" in said
    with pytest.raises(SystemExit):
        run(prepare, *given, *cache, "data.codec=fp8")
    assert "features made with another codec: there it is 'int4', now it is 'fp8'" in capsys.readouterr().err
