"""src/evaluate.py on a run folder: files and report are written, and what cannot be evaluated is refused in one line."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf
from torch import nn

from draftlab.decode.evaluation import described
from draftlab.decode.trained import open_drafter
from draftlab.runs import read_run_config
from draftlab.target.products import FrozenLinear
from draftlab.training.build import build
from draftlab.training.checkpoint import load_drafter
from runs import composed, tiny_run, write_checkpoint

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "src" / "evaluate.py"


@pytest.fixture(scope="module")
def evaluate():
    spec = importlib.util.spec_from_file_location("draftlab_evaluate_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run(target_folder, tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("runs") / "tiny", target_folder)


@pytest.fixture
def prompts(tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    lines = [{"id": f"gsm8k-{i}", "turns": [f"{i} + {i}?", "Sure?"]} for i in range(3)]
    (folder / "gsm8k.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def config(*overrides):
    small = ["max_new_tokens=8", "batch_size=2", "speed.prompts=2", "speed.max_new_tokens=4", "device=cpu"]
    return composed("evaluate", ["run=unused", *small, *overrides])


def test_a_run_is_evaluated_on_a_folder_of_prompts_into_rounds_outputs_and_a_report(evaluate, run, prompts):
    page = evaluate.evaluate_run(
        run, config(f"prompts_dir={prompts}", "limit=2"), command="python src/evaluate.py run=x"
    )
    assert page == run / "report.html" and page.stat().st_size > 1000
    rounds = pd.read_parquet(run / "rounds.parquet")
    assert (
        set(rounds.benchmark) == {"gsm8k"}
        and set(rounds.domain) == {"math"}
        and set(rounds.prompt_id)
        == {
            "gsm8k-0",
            "gsm8k-1",
        }
    )
    assert set(rounds.temperature) == {0.0, 1.0}
    stated = json.loads((run / "evaluation.json").read_text())
    assert stated["settings"]["drafter"]["checkpoint"] == "best-10.ckpt" and stated["settings"]["gamma"] == 3
    assert [speed["prompts"] for speed in stated["speed"]] == [2, 2]
    assert stated["command"] == "python src/evaluate.py run=x"
    assert not (run / "evaluation.partial").exists()


def test_a_schedule_verifies_prefixes_only_and_stands_in_the_evaluation(evaluate, run, prompts, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    words = [f"prompts_dir={prompts}", "limit=2", "temperatures=[0.0]"]
    evaluate.evaluate_run(copy, config(*words, "schedule=threshold", "schedule.value=1.0"))
    rounds = pd.read_parquet(copy / "rounds.parquet")
    assert (rounds.proposed == 0).all() and (rounds.committed == 1).all()
    stated = json.loads((copy / "evaluation.json").read_text())
    assert stated["settings"]["schedule"]["scheduler"] == "Threshold" and stated["settings"]["schedule"]["lossless"]
    assert stated["speed"][0]["identical_outputs"] == 2
    with pytest.raises(ValueError, match=r"schedule\.py profile"):
        evaluate.evaluate_run(copy, config(*words, "schedule=early_stop"))


def test_the_builtin_held_out_prompts_are_the_default(evaluate):
    benchmarks = evaluate.read_benchmarks(config("limit=2"))
    assert sorted(b.name for b in benchmarks) == ["heldout-chat", "heldout-code", "heldout-math"]
    assert all(len(benchmark.prompts) == 2 for benchmark in benchmarks)


def test_runs_that_cannot_be_evaluated_are_refused_before_any_target_loads(
    evaluate, run, prompts, tmp_path, monkeypatch
):
    monkeypatch.setattr("draftlab.decode.trained.load_target", lambda *_: pytest.fail("the target was loaded"))
    with pytest.raises(ValueError, match=r"expected a folder written by src/train.py, found none"):
        evaluate.evaluate_run(tmp_path / "nowhere", config())
    with pytest.raises(ValueError, match=r"no \.hydra/config\.yaml"):
        evaluate.evaluate_run(tmp_path, config())
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text((run / ".hydra" / "config.yaml").read_text())
    with pytest.raises(ValueError, match="no whole checkpoint"):
        evaluate.evaluate_run(tmp_path, config())
    with pytest.raises(ValueError, match="no such file"):
        evaluate.evaluate_run(run, config("checkpoint=missing.ckpt"))
    (prompts / "bad.jsonl").write_text('{"id": 1, "turns": ["a"]}\n[1]\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2: expected a JSON object"):
        evaluate.evaluate_run(run, config(f"prompts_dir={prompts}"))
    for override, message in [
        ("benchmarks=[gsm8k]", "set prompts_dir=FOLDER"),
        ("limit=null", "needs prompts_dir=FOLDER"),
        ("temperatures=[]", "temperatures must be one or more"),
    ]:
        with pytest.raises(ValueError, match=message):
            evaluate.evaluate_run(run, config(override))


@pytest.mark.parametrize(
    "change",
    [{"target": "other"}, {"sample_from_anchor": False}, {"target_layer_ids": [0, 1]}, {"block_size": 4}],
    ids=lambda change: next(iter(change)),
)
def test_a_checkpoint_of_another_target_or_layout_is_refused(evaluate, run, tmp_path, change):
    """Case 17's cousin: the tensors would fit, the drafts would be rubbish."""
    drafter = build(OmegaConf.load(run / ".hydra" / "config.yaml")).drafter
    write_checkpoint(tmp_path / "foreign.ckpt", drafter, **change)
    with pytest.raises(ValueError, match=f"trained for something else .*{next(iter(change))}"):
        evaluate.evaluate_run(run, config(f"checkpoint={tmp_path / 'foreign.ckpt'}"))


def test_the_command_line_names_a_mistake_in_one_line_without_traceback(tmp_path):
    command = [sys.executable, str(SCRIPT), f"run={tmp_path / 'nowhere'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: run: expected a folder") and len(done.stderr.splitlines()) == 1


def test_an_opened_drafter_multiplies_as_a_frozen_target_does_and_stays_the_same_drafter(run):
    opened = open_drafter(run)
    linears = [module for module in opened.drafter.modules() if isinstance(module, nn.Linear)]
    assert linears and all(type(module) is FrozenLinear for module in linears)
    trained = load_drafter(opened.checkpoint, build(read_run_config(run)).drafter)
    assert opened.drafter.state_dict().keys() == trained.state_dict().keys()
    assert opened.identity["parameters"] == sum(parameter.numel() for parameter in trained.parameters())


def test_an_exit_policy_is_read_and_one_that_is_off_changes_nothing(evaluate):
    cfg = composed("evaluate", ["run=x", "exit.survival=0.3", "exit.rest=2"])
    settings = evaluate.read_settings(cfg)
    assert (settings.exit.survival, settings.exit.accepted, settings.exit.rest) == (0.3, None, 2)
    assert settings.decode(1.0, ()).exit == settings.exit
    off = evaluate.read_settings(composed("evaluate", ["run=x"]))
    assert off.exit is None and "exit" not in described(off) and described(settings)["exit"]["survival"] == 0.3
