"""A drafter for a changed target: training goes on from the drafter of the target that it was, and a new one is worse as late."""

from __future__ import annotations

import copy

import torch

import fitting
import tiny
from draftlab.callbacks import AcceptanceCallback
from draftlab.target import FrozenTarget
from draftlab.training.initial import start_from
from runs import write_checkpoint

LONG, SHORT, CHANGE = (
    200,
    25,
    0.3,
)  # steps for the first target and for the changed one; noise against a weight's own spread


def tuned(target):
    """The target with other weights between its ends, as fine-tuning and quantisation leave it."""
    model = copy.deepcopy(target.model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".layers." in name and parameter.dim() > 1:
                parameter += CHANGE * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return FrozenTarget(model, tiny.tiny_spec(model, name="tuned"))


def accepted_length(module, data, folder):
    trainer = fitting.silent_trainer(folder, [AcceptanceCallback()], inference_mode=False)
    [found] = trainer.validate(module, data, verbose=False)
    return found["val/accepted_length"]


def fit(module, data, folder, steps):
    fitting.silent_trainer(folder, max_steps=steps).fit(module, data)


def test_a_drafter_of_the_target_before_fine_tuning_learns_the_changed_one_sooner_than_a_new_drafter(tmp_path):
    answers = fitting.write_answers(tmp_path, 60)
    first = fitting.fitting_target()
    changed = tuned(first)
    data = {
        id(target): fitting.answers_data(target, answers, batch_size=12, val_samples=12) for target in (first, changed)
    }

    module = fitting.tiny_module(first)
    fit(module, data[id(first)], tmp_path, LONG)
    own = accepted_length(module, data[id(first)], tmp_path)
    write_checkpoint(tmp_path / "run" / "checkpoints" / "best-200.ckpt", module.drafter)

    tuning, new = fitting.tiny_module(changed), fitting.tiny_module(changed)
    start_from(tuning.drafter, tmp_path / "run")
    before = accepted_length(tuning, data[id(changed)], tmp_path)
    fit(tuning, data[id(changed)], tmp_path, SHORT)
    fit(new, data[id(changed)], tmp_path, SHORT)
    after, fresh = (accepted_length(each, data[id(changed)], tmp_path) for each in (tuning, new))
    assert before < own, "a changed target accepts less of what was learned from the first"
    assert after > before + 0.1 and after > fresh + 0.1, (own, before, after, fresh)
