"""init_from=: training starts from the weights and the draft vocabulary of a trained or adopted drafter, or is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf

import fitting
import tiny
from draftlab.training.build import build
from draftlab.training.checkpoint import PREFIX, load_drafter, newest_checkpoint, read_checkpoint
from draftlab.training.initial import inherit, start_from
from exporting import adopt, export, make_run
from runs import ROOT, composed

KIND = ("drafter=dspark", "head=gated", "head.rank=4", "drafter.draft_vocab_size=40", "drafter.num_heads=8")


@pytest.fixture(scope="module")
def run(tmp_path_factory, target_folder):
    return make_run(tmp_path_factory.mktemp("runs") / "tuned", target_folder, *KIND)


def command(target_folder, run, *words):
    given = ["target=custom", f"target.path={target_folder}", f"init_from={run}", *words]
    return composed("train", given), given


def test_drafter_head_block_and_taps_are_those_of_the_run(run, target_folder):
    cfg, given = command(target_folder, run, "head=gated", "target.name=changed", "block.num_anchors=2")
    inherit(cfg, given)
    theirs = OmegaConf.load(run / ".hydra" / "config.yaml")
    assert cfg.drafter == theirs.drafter and cfg.head == theirs.head
    assert cfg.block.block_size == 3 and list(cfg.target.target_layer_ids) == [0, 1, 2] and cfg.block.num_anchors == 2
    drafter = build(cfg).drafter
    start_from(drafter, run)
    stored = read_checkpoint(newest_checkpoint(run))["state_dict"]
    assert all(torch.equal(value, stored[PREFIX + name]) for name, value in drafter.state_dict().items())
    assert drafter.training and drafter.spec.name == "changed"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["drafter=eagle3"], r"is a DSpark, and this command trains a Eagle3 \(drafter\); give drafter=dspark"),
        (["head=rnn"], r"is a GatedHead, and this command trains a RNNHead \(head\); give head=gated"),
        (["drafter.num_layers=5"], r"drafter\.num_layers=5 was given, but the drafter of init_from=.* has 2"),
        (["head=gated", "head.rank=8"], r"head\.rank=8 was given, but .* has 4"),
        (["block.block_size=7"], r"block\.block_size=7 was given, but .* has 3"),
        (["target.target_layer_ids=[0,2]"], r"target\.target_layer_ids=\[0,2\] was given, but .* has \[0, 1, 2\]"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_that_asks_for_another_drafter_is_refused(run, target_folder, words, message):
    cfg, given = command(target_folder, run, *words)
    with pytest.raises(ValueError, match=message):
        inherit(cfg, given)


def test_a_folder_that_is_no_run_and_a_target_of_other_sizes_are_refused(run, target_folder, tmp_path):
    cfg, given = command(target_folder, tmp_path)
    with pytest.raises(ValueError, match=r"is no run folder .*src/adopt\.py"):
        inherit(cfg, given)
    wider = tiny.save_tiny_target(tmp_path / "wider", hidden_size=64)
    cfg, given = command(wider, run, "target.name=tiny")
    inherit(cfg, given)
    with pytest.raises(ValueError, match="hidden_size: expected 64, found 32"):
        start_from(build(cfg).drafter, run)


def train(target_folder, folder, *words):
    fitting.write_answers(folder)
    small = [
        "target=custom", f"target.path={target_folder}", f"data.path={folder / 'answers.jsonl'}", "data.features=online",
        "data.batch_size=3", "data.val_samples=2", "trainer=laptop", "trainer.settings.max_steps=2",
        "trainer.settings.val_check_interval=2", "callbacks.latest.every_n_train_steps=1", "block.num_anchors=2",
    ]  # fmt: skip
    removed = ("WANDB_API_KEY", "WANDB_MODE", "DRAFTLAB_TRACEBACK")
    environment = {key: value for key, value in os.environ.items() if key not in removed}
    environment |= {"HOME": str(folder), "DRAFTLAB_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "src" / "train.py"), *small, *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_an_adopted_drafter_is_fine_tuned_from_where_it_stands(run, target_folder, tmp_path):
    adopted = adopt(export(run, tmp_path / "out", "deepspec"), tmp_path / "adopted", target_folder)
    tuned = tmp_path / "tuned"
    words = [
        f"init_from={adopted}",
        "head=gated",
        "target.name=tiny",
        f"hydra.run.dir={tuned}",
        "trainer.optimizer.lr=1e-9",
    ]
    code, output = train(target_folder, tmp_path, *words)
    assert code == 0 and f"starting from {adopted / 'checkpoints' / 'imported.ckpt'}" in output, output
    before = read_checkpoint(newest_checkpoint(adopted))["state_dict"]
    after = read_checkpoint(newest_checkpoint(tuned))
    assert after["global_step"] == 2
    for name, value in before.items():
        torch.testing.assert_close(after["state_dict"][name], value, rtol=0, atol=1e-6)
    config = OmegaConf.load(tuned / ".hydra" / "config.yaml")
    load_drafter(newest_checkpoint(tuned), build(config).drafter)

    code, output = train(target_folder, tmp_path, *words, "resume=true", "trainer.settings.max_steps=3")
    assert code == 0 and "resuming from" in output and "starting from" not in output, output
    assert read_checkpoint(newest_checkpoint(tuned))["global_step"] == 3

    same = ["drafter.num_layers=2", "block.block_size=3", "target.target_layer_ids=[0,1,2]", *KIND[1:]]
    given = [*words[1:3], f"hydra.run.dir={adopted}", "trainer.warm_start.layers=false", "resume=true"]
    code, output = train(target_folder, tmp_path, *given, *same)
    assert code == 1 and "holds a drafter and no state of a training" in output and "init_from=" in output, output
