"""src/train.py as a user starts it: train, go on, plan, and be refused."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

import fitting
from processes import usual_signals

SCRIPT = Path(__file__).parents[1] / "src" / "train.py"


@pytest.fixture
def command(tmp_path, target_folder):
    """Arguments of a tiny training in ``tmp_path``/run, and the environment it runs in: no network, no account."""
    fitting.write_answers(tmp_path)
    arguments = [
        "target=custom",
        f"target.path={target_folder}",
        f"data.path={tmp_path / 'answers.jsonl'}",
        "data.features=online",
        "data.batch_size=3",
        "data.val_samples=2",
        "data.num_workers=0",
        "trainer=laptop",
        "trainer.settings.max_steps=4",
        "trainer.settings.val_check_interval=2",
        "callbacks.latest.every_n_train_steps=1",
        "block.num_anchors=2",
        "drafter.num_layers=1",
        "drafter.draft_vocab_size=40",
        "head.rank=4",
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    removed = ("WANDB_API_KEY", "WANDB_MODE", "DRAFTLAB_TRACEBACK")
    environment = {key: value for key, value in os.environ.items() if key not in removed}
    environment |= {"OMP_NUM_THREADS": "1", "HOME": str(tmp_path), "DRAFTLAB_CACHE": str(tmp_path / "cache")}
    environment |= {"HF_HUB_OFFLINE": "1"}
    return arguments, environment


def start(arguments, environment, folder):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=usual_signals,
    )


def run(arguments, environment, folder):
    process = start(arguments, environment, folder)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def test_a_training_writes_its_run_folder_goes_on_and_refuses_to_be_overwritten(command, tmp_path):
    arguments, environment = command
    code, output = run(arguments, environment, tmp_path)
    assert code == 0, output
    assert "tokens cover" in output and output.count("W&B: logging offline") == 1
    folder = tmp_path / "run"
    assert {path.name.split("-")[0] for path in (folder / "checkpoints").iterdir()} == {"step", "best"}
    metrics = pd.read_csv(folder / "metrics.csv")
    assert {"val/loss", "val/accepted_length", "val/conditional_acceptance_1"} <= set(metrics.columns)
    assert (folder / ".hydra" / "overrides.yaml").is_file()

    composed = (folder / ".hydra" / "config.yaml").read_text()
    code, output = run([*arguments, "block.block_size=5"], environment, tmp_path)
    assert code == 1 and "resume=true" in output and "Traceback" not in output
    code, output = run([*arguments, "drafter.num_layers=2", "resume=true"], environment, tmp_path)
    assert code == 1 and "does not fit" in output and "Traceback" not in output
    assert "Loading weights" not in output  # of the target
    assert (folder / ".hydra" / "config.yaml").read_text() == composed  # else evaluation would refuse the finished run

    more = [*arguments, "resume=true", "logger=csv", "trainer.settings.max_steps=6"]
    code, output = run(more, environment, tmp_path)
    assert code == 0 and "resuming from" in output and "W&B" not in output
    assert torch.load(folder / "checkpoints" / "step-6.ckpt", weights_only=True)["global_step"] == 6
    assert pd.read_csv(folder / "metrics.csv")["step"].max() > metrics["step"].max()


@pytest.mark.slow
def test_ctrl_c_leaves_a_whole_checkpoint_and_says_how_to_go_on(command, tmp_path):
    arguments, environment = command
    endless = [*arguments, "logger=csv", "trainer.settings.max_steps=100000"]
    process = start(endless, environment, tmp_path)
    deadline = time.monotonic() + 240
    while not list((tmp_path / "run").glob("checkpoints/step-*.ckpt")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "resume=true" in output and "Traceback" not in output
    code, output = run([*endless[:-1], "trainer.settings.max_steps=1", "resume=true"], environment, tmp_path)
    assert code == 0 and "resuming from" in output, output


def test_the_plan_of_a_large_target_needs_neither_weights_nor_network(command, tmp_path):
    arguments = ["drafter=dspark", "head=markov", "target=qwen3_14b", "plan=true", f"hydra.run.dir={tmp_path / 'plan'}"]
    code, output = run(arguments, command[1], tmp_path)
    assert code == 0, output
    assert "qwen3_14b" in output and "optimiser steps" in output and "TB" in output
    assert not (tmp_path / "plan").exists(), "a plan leaves no empty run folder"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["drafter=dflash", "head=rnn"], "head=none"),
        (["drafter=dspark", "head=no_such_head"], "no_such_head"),
        (["trainer.settings.precision=7-bit"], "7-bit"),
        (["trainer.settings.devices=0"], "devices"),
        (["trainer.settings.accelerator=abacus"], "abacus"),
        (["trainer.settings.max_steps=-1", "plan=true"], "no end"),
        (["drafter.num_layers=31"], "num_layers 31 of 30 at most"),
        (["drafter.intermediate_size=64"], "intermediate_size 64"),
        (["evaluate_after=true", "evaluation.max_new_tokens=9000"], "max_new_tokens 9000"),
        (["evaluate_after=true", "evaluation.prompts_dir=no/such/folder"], "no/such/folder"),
    ],
)
def test_an_impossible_choice_is_one_message_with_exit_code_1(command, tmp_path, arguments, message):
    code, output = run([*arguments, f"hydra.run.dir={tmp_path / 'refused'}"], command[1], tmp_path)
    assert code == 1 and message in output and "Traceback" not in output
    assert not (tmp_path / "cache").exists()  # refused before anything was fetched
    assert not list((tmp_path / "refused").glob("checkpoints/*")) and not (tmp_path / "refused" / ".hydra").exists()
