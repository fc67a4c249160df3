"""Resuming: a stopped training goes on to exactly the weights of one that was never stopped."""

import re

import lightning as L
import pytest
import torch
import yaml
from omegaconf import OmegaConf

import fitting
from draftlab.callbacks import (
    AcceptanceCallback,
    ConfidenceCallback,
    LatestCheckpoint,
    ProgressLines,
    ThroughputCallback,
)
from draftlab.training import newest_checkpoint
from draftlab.training.resume import check_same_training, find_resume
from draftlab.training.run import fit


@pytest.fixture(scope="module")
def target():
    return fitting.fitting_target()


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return fitting.write_answers(tmp_path_factory.mktemp("answers"))


class StopAt(L.Callback):
    """Raises during optimiser step ``step`` + 1, when gradients are there and weights are not yet moved."""

    def __init__(self, step, error):
        self.step, self.error = step, error

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        if trainer.global_step == self.step:
            raise self.error


def train(target, answers, folder, stop=None, checkpoint=None, accumulate=1):
    """Seven steps of an epoch of four micro-batches, two anchors a sequence; a checkpoint every step."""
    measuring = [AcceptanceCallback(), ConfidenceCallback(), ThroughputCallback(), ProgressLines()]
    callbacks = [LatestCheckpoint(str(folder / "checkpoints"), 1), *measuring, *([stop] if stop else [])]
    module = fitting.tiny_module(target, num_anchors=2)
    trainer = fitting.silent_trainer(
        folder, callbacks, max_steps=7, accumulate_grad_batches=accumulate, enable_progress_bar=True
    )
    fit(trainer, module, fitting.answers_data(target, answers), checkpoint)
    return module


@pytest.mark.parametrize(("step", "accumulate"), [(2, 1), (4, 1), (3, 2), (4, 2)])
def test_weights_after_resuming_are_bit_equal_wherever_training_stopped(target, answers, tmp_path, step, accumulate):
    """In the middle of an epoch, at its end, and with a last window of fewer micro-batches."""
    through = train(target, answers, tmp_path / "through", accumulate=accumulate)
    folder = tmp_path / "stopped"
    with pytest.raises(RuntimeError, match="power cut"):
        train(target, answers, folder, StopAt(step, RuntimeError("power cut")), accumulate=accumulate)
    assert newest_checkpoint(folder).name == f"step-{step}.ckpt"
    torch.rand(7)  # the global random state of the new process is another one
    resumed = train(target, answers, folder, checkpoint=newest_checkpoint(folder), accumulate=accumulate)
    expected = fitting.weights_of(through)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in fitting.weights_of(resumed).items())
    assert resumed.micro_step == through.micro_step and resumed.trainer.global_step == 7
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-7.ckpt"], "older ones are removed"


def test_going_on_from_an_older_checkpoint_removes_no_newer_one(target, answers, tmp_path):
    train(target, answers, tmp_path)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "step-7.ckpt").rename(tmp_path / "whole.ckpt")
    with pytest.raises(RuntimeError, match="power cut"):
        train(target, answers, tmp_path, StopAt(2, RuntimeError("power cut")))
    (tmp_path / "whole.ckpt").rename(checkpoints / "step-7.ckpt")
    with pytest.raises(RuntimeError, match="power cut"):
        train(target, answers, tmp_path, StopAt(4, RuntimeError("power cut")), checkpoint=checkpoints / "step-2.ckpt")
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-4.ckpt", "step-7.ckpt"]


def test_ctrl_c_is_passed_on_and_leaves_a_run_to_go_on_with(target, answers, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(target, answers, tmp_path, StopAt(3, KeyboardInterrupt()))
    assert find_resume(tmp_path, True).name == "step-3.ckpt"


def test_resuming_a_finished_training_trains_no_further(target, answers, tmp_path):
    first = train(target, answers, tmp_path)
    again = train(target, answers, tmp_path, checkpoint=newest_checkpoint(tmp_path))
    expected = fitting.weights_of(first)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in fitting.weights_of(again).items())


def test_starting_anew_over_an_earlier_run_is_refused_and_resume_starts_where_there_is_none(tmp_path):
    assert find_resume(tmp_path, False) is None and find_resume(tmp_path, True) is None
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-1.ckpt").write_bytes(b"")
    with pytest.raises(ValueError, match="give resume=true"):
        find_resume(tmp_path, False)
    with pytest.raises(ValueError, match="no whole checkpoint"):
        find_resume(tmp_path, str(tmp_path))


BEGUN = {
    "seed": 0,
    "loss": {"terms": {"ce": {"weight": 0.1}, "tv": {"weight": 1}}},
    "data": {"path": "here", "batch_size": 4, "seed": "${seed}"},
    "trainer": {"optimizer": {"lr": 0.1}, "settings": {"max_steps": 4, "accumulate_grad_batches": 1}},
    "evaluation": {"limit": 1},
}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ([], None),
        (["trainer.settings.max_steps=9", "data.path=there", "evaluation.limit=5"], None),
        (["trainer.optimizer.lr=0.10", "loss.terms.tv.weight=1.0"], None),
        (["seed=1"], "seed was 0, now it is 1"),
        (["loss.terms.ce.weight=0.2"], "loss.terms.ce.weight was 0.1, now it is 0.2"),
        (["trainer.optimizer.lr=0.2", "data.batch_size=2"], "data.batch_size was 4, now it is 2; trainer.optimizer.lr"),
        (["trainer.settings.accumulate_grad_batches=2"], "accumulate_grad_batches was 1"),
        (["+data.packing=512"], None),
    ],
)
def test_a_run_goes_on_only_as_what_it_was_begun_as(tmp_path, changes, named):
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(OmegaConf.create(BEGUN), tmp_path / ".hydra" / "config.yaml")
    now = OmegaConf.create(BEGUN)
    for change in changes:
        key, value = change.lstrip("+").split("=")
        OmegaConf.update(now, key, yaml.safe_load(value), force_add=True)
    if named is None:
        check_same_training(tmp_path, now)
    else:
        with pytest.raises(ValueError, match=re.escape(named)):
            check_same_training(tmp_path, now)


def test_a_folder_without_a_recorded_configuration_is_not_judged(tmp_path):
    check_same_training(tmp_path, OmegaConf.create(BEGUN))
