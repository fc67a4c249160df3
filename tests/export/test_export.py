"""What an export brings along, what it refuses before writing, and what a killed one leaves."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import torch
import yaml
from safetensors import safe_open

import draftlab.export.run as exporting_run
from draftlab.calibration import Calibration
from draftlab.decode.trained import open_drafter
from draftlab.export.card import read_lengths
from draftlab.export.engines import ENGINES, require_engine
from draftlab.export.facts import facts_of
from draftlab.export.run import ExportSettings
from draftlab.scheduling import Throughput
from exporting import export, make_run
from runs import ROOT


@pytest.fixture(scope="module")
def made(tmp_path_factory, target_folder):
    return make_run(tmp_path_factory.mktemp("runs") / "dspark", target_folder, "drafter=dspark", "head.rank=4")


@pytest.fixture
def run(made, tmp_path):
    """A copy that a test may add to."""
    return shutil.copytree(made, tmp_path / "run")


def files(folder):
    return {path.name for path in folder.iterdir()}


def calibrated(run, temperatures, **identity):
    Calibration(temperatures, "prompts", 9, [0.1] * 3, [0.05] * 3, drafter=identity, measures=[{"name": "x"}]).save(
        run / "calibration.json"
    )


def test_calibration_and_sps_table_go_along_in_exactly_the_keys_of_engines(run, tmp_path):
    calibrated(run, [0.5, 1.0, 2.0], digest=open_drafter(run).identity["digest"])
    Throughput([1, 4, 9], [30.0, 20.0, 10.0]).save(run / "sps.json")
    folder = export(run, tmp_path / "out", "deepspec")
    sts, sps = (json.loads((folder / name).read_text()) for name in ("calibration.json", "sps.json"))
    assert sts == {
        "temperatures": [0.5, 1.0, 2.0], "dataset": "prompts", "num_samples": 9,
        "ece_before": [0.1] * 3, "ece_after": [0.05] * 3,
    }  # fmt: skip
    assert sps == {"sample_batch_tokens": [1, 4, 9], "sample_steps_per_sec": [30.0, 20.0, 10.0], "max_batch_tokens": 9}
    assert {"config.json", "model.safetensors", "README.md", "draftlab.json", "tokenizer.json"} <= files(folder)
    text = (folder / "README.md").read_text()
    assert "--speculative-dspark-confidence-sts-path ./this-folder/calibration.json" in text
    assert "--speculative-dspark-sps-table-path ./this-folder/sps.json" in text


def test_a_calibration_of_another_checkpoint_stays_behind_and_that_is_said(run, tmp_path, capsys):
    calibrated(run, [0.5, 1.0, 2.0], digest="of another")
    folder = export(run, tmp_path / "out", "deepspec")
    assert "calibration.json" not in files(folder) and "left out" in capsys.readouterr().out
    assert "calibration.json" not in (folder / "README.md").read_text()


def test_a_calibration_of_another_length_is_refused(run, tmp_path):
    calibrated(run, [0.5, 1.0])
    with pytest.raises(ValueError, match="has 2 temperatures, but the drafter drafts 3 tokens"):
        export(run, tmp_path / "out", "deepspec")


def test_the_block_layout_is_written_down_and_stamped_into_the_weights(run, tmp_path):
    folder = export(run, tmp_path / "out", "deepspec")
    with safe_open(folder / "model.safetensors", "pt") as opened:
        stamp = opened.metadata()
    assert stamp["block_layout"] == "anchor-first" and stamp["block_size"] == "3" and stamp["format"] == "pt"
    config = json.loads((folder / "config.json").read_text())
    assert config["sample_from_anchor"] is True and config["block_size"] == 3
    assert config["dflash_config"] == {"mask_token_id": 3, "target_layer_ids": [0, 1, 2]}


def test_no_path_of_this_machine_is_written(run, target_folder, tmp_path):
    folder = export(run, tmp_path / "out", "speculators")
    for name in ("README.md", "config.json", "draftlab.json"):
        text = (folder / name).read_text()
        assert str(target_folder) not in text and str(tmp_path) not in text
    assert json.loads((folder / "config.json").read_text())["speculators_config"]["verifier"] == {
        "name_or_path": "tiny",
        "architectures": ["LlamaForCausalLM"],
    }


def evaluated(run, digest):
    rows = [
        {"temperature": 0.0, "benchmark": "b", "domain": "math", "prompt_id": str(i // 5), "round": i % 5, "proposed": 3,
         "accepted": i % 3, "committed": i % 3 + 1}
        for i in range(20)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    settings = {"gamma": 3, "drafter": {"digest": digest}, "benchmarks": ["b"], "thinking": False, "max_new_tokens": 8}
    counts = [{"temperature": 0.0, "benchmark": "b", "domain": "math", "prompts": 4, "stopped": 4, "truncated": 0}]
    frame.to_parquet(run / "rounds.parquet")
    content = {"settings": settings | {"temperatures": [0.0]}, "counts": counts, "speed": [], "command": None}
    (run / "evaluation.json").write_text(json.dumps(content))
    return frame


def test_the_card_states_accepted_lengths_of_this_checkpoint_only(run, tmp_path):
    digest = open_drafter(run).identity["digest"]
    frame = evaluated(run, digest)
    lengths, reason, _ = read_lengths(run, digest)
    assert reason == "" and lengths["accepted_length"].iloc[0] == pytest.approx(frame["committed"].mean())
    text = (export(run, tmp_path / "out", "deepspec", licence="mit") / "README.md").read_text()
    assert f"| 0 | 4 | all prompts | {frame['committed'].mean():.2f} [" in text and "bootstrap over prompts" in text
    head = yaml.safe_load(text.split("---")[1])
    assert head["license"] == "mit" and "dspark" in head["tags"] and "base_model" not in head
    evaluated(run, "of another")
    text = (export(run, tmp_path / "other", "deepspec") / "README.md").read_text()
    assert "evaluation is of another checkpoint" in text and "all prompts" not in text and "license" not in text[:200]


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (
            ("drafter=dspark", "head=gated", "head.rank=4"),
            {"vllm": "head=gated", "sglang": "", "llama.cpp": "refuses it"},
        ),
        (
            ("drafter=dspark", "head=none"),
            {"vllm": "markov head", "llama.cpp": "confidence head without a markov head"},
        ),
        (("drafter=dspark", "drafter.train_head=true"), {"llama.cpp": "drops a trained LM head"}),
        (("drafter=dflash", "block.sample_from_anchor=false"), {}),
        (("drafter=eagle3", "drafter.num_layers=1"), {}),
        (
            ("drafter=eagle3", "drafter.num_layers=1", "target.target_layer_ids=[0,2]"),
            {"llama.cpp": "exactly three tapped layers"},
        ),
    ],
    ids=["gated", "none", "own-head", "dflash", "eagle3", "eagle3-of-two"],
)
def test_engines_that_do_not_run_a_drafter_are_named_on_the_card_and_refused_when_asked_for(
    words, refused, target_folder, tmp_path
):
    run = make_run(tmp_path / "run", target_folder, *words)
    name = "dflash" if "drafter=dflash" in words else "deepspec"
    drafter = open_drafter(run).drafter
    for engine, built in ENGINES.items():
        objections = built.objections(facts_of(drafter), name)
        assert bool(objections) == (engine in refused), (engine, objections)
        if objections:
            assert refused[engine] in "; ".join(objections)
            with pytest.raises(ValueError, match=f"engine={engine} does not run this drafter"):
                export(run, tmp_path / "refused", name, engine=engine)
    text = (export(run, tmp_path / "out", name) / "README.md").read_text()
    for engine, built in ENGINES.items():
        assert (f"**{built.name}** does not run it" in text) == (engine in refused)
    assert not (tmp_path / "refused").exists()


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match=r"engine must be one of vllm, sglang, llama\.cpp or null, got 'tgi'"):
        require_engine("tgi", None, "deepspec")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        ({"ends": "both"}, "ends must be one of shared, copied, got 'both'"),
        ({"format": "gguf", "outtype": "q2"}, "outtype must be one of f32"),
    ],
)
def test_unknown_words_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ExportSettings(**({"format": "deepspec"} | settings))


def test_an_unknown_format_is_refused_with_the_list(run, tmp_path):
    with pytest.raises(ValueError, match="format must be one of deepspec, dflash, speculators, gguf; got 'onnx'"):
        export(run, tmp_path / "out", "onnx")


def test_an_unfinished_training_is_refused_unless_asked_for(run, tmp_path):
    path = run / "checkpoints" / "best-10.ckpt"
    content = torch.load(path, weights_only=True)
    torch.save({**content, "global_step": 10, "epoch": 0}, path)
    with pytest.raises(ValueError, match=r"unfinished training: 1 of 10 \(max_epochs\)"):
        export(run, tmp_path / "out", "deepspec")
    export(run, tmp_path / "out", "deepspec", unfinished=True)


def test_the_same_export_again_writes_nothing_and_another_one_is_refused(run, tmp_path, capsys):
    folder = export(run, tmp_path / "out", "deepspec")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    export(run, folder, "deepspec")
    assert (folder / "model.safetensors").stat().st_mtime_ns == before and "already" in capsys.readouterr().out
    with pytest.raises(
        ValueError, match="holds another drafter or other settings: architecture is 'Qwen3DSparkModel' there"
    ):
        export(run, folder, "speculators")
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds something that was not written by this command"):
        export(run, other, "deepspec")
    assert files(other) == {"chapter.tex"}
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="it is a file"):
        export(run, tmp_path / "file", "deepspec")


def test_another_licence_writes_the_card_anew_and_keeps_what_else_lies_there(run, tmp_path):
    folder = export(run, tmp_path / "out", "deepspec", licence="mit")
    (folder / "notes.txt").write_text("mine")
    export(run, folder, "deepspec", licence="apache-2.0")
    assert "license: apache-2.0" in (folder / "README.md").read_text() and (folder / "notes.txt").read_text() == "mine"
    assert not any(name.startswith(".") for name in files(tmp_path))
    stated = (folder / "draftlab.json").stat().st_mtime_ns
    export(run, folder, "deepspec", licence="apache-2.0")
    assert (folder / "draftlab.json").stat().st_mtime_ns == stated


def test_a_card_that_somebody_edited_is_not_written_over(run, tmp_path):
    folder = export(run, tmp_path / "out", "deepspec")
    with (folder / "README.md").open("a") as card:
        card.write("Years of work.")
    with pytest.raises(ValueError, match=r"README\.md was edited since it was written"):
        export(run, folder, "deepspec", licence="mit")
    assert "Years of work." in (folder / "README.md").read_text()


def test_a_killed_export_leaves_no_folder_and_the_next_one_is_whole(run, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(exporting_run, "write_extras", killed)
        with pytest.raises(KeyboardInterrupt):
            export(run, tmp_path / "out", "deepspec")
    assert not (tmp_path / "out").exists()
    left = tmp_path / ".out.partial"  # of a process that could not clear up after itself
    left.mkdir()
    (left / "half.safetensors").write_text("half")
    (tmp_path / "out").mkdir()
    folder = export(run, tmp_path / "out", "deepspec")
    assert "half.safetensors" not in files(folder) and not left.exists() and "draftlab.json" in files(folder)


def script(name, *words):
    command = [sys.executable, str(ROOT / "src" / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_scripts_export_and_adopt(run, target_folder, tmp_path):
    code, output = script("export.py", f"run={run}", "hub=me/drafter")
    folder = run / "export" / "deepspec"
    assert code == 0 and f"export: {folder}" in output and "dry run" in output, output
    target = ["target=custom", f"target.path={target_folder}", "target.name=tiny"]
    code, output = script("adopt.py", f"checkpoint={folder}", f"run={tmp_path / 'again'}", *target)
    assert code == 0 and "DSpark, head markov, 3 drafted tokens, anchor-first" in output, output
    assert open_drafter(tmp_path / "again").identity["digest"]
    code, output = script("adopt.py", f"checkpoint={folder}", f"run={tmp_path / 'no'}", *target, "head=gated")
    assert code == 1 and "head=gated: the checkpoint says what its drafter, head and block are" in output
    code, output = script("export.py", f"run={tmp_path / 'again'}", "format=dflash")
    assert code == 1 and "format=dflash cannot carry this drafter" in output and "Traceback" not in output
