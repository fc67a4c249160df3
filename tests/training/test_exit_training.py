"""A drafter with exits is trained at every depth at once, measured at every depth, saved, planned and taken apart."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

import fitting
from draftlab.callbacks import AcceptanceCallback, ConfidenceCallback, LatestCheckpoint
from draftlab.drafters.exits import plain_state
from draftlab.training import load_drafter, newest_checkpoint
from draftlab.training.build import build
from draftlab.training.plan import make_plan, workload
from runs import ROOT


@pytest.fixture(scope="module")
def target():
    return fitting.fitting_target()


@pytest.fixture(scope="module")
def run(target, tmp_path_factory):
    """A run folder, its module before training and after, and its trainer."""
    folder = tmp_path_factory.mktemp("run")
    data = fitting.answers_data(target, fitting.write_answers(folder), val_samples=5)
    module = fitting.tiny_module(target, num_layers=3, exits=(1, 2))
    start = fitting.weights_of(module)
    callbacks = [AcceptanceCallback(), ConfidenceCallback(), LatestCheckpoint(str(folder / "checkpoints"), 50)]
    options = {"val_check_interval": 2, "check_val_every_n_epoch": None}
    trainer = fitting.silent_trainer(folder, callbacks, max_steps=4, **options)
    trainer.fit(module, data)
    return folder, module, start, trainer


def test_every_weight_of_every_depth_moves(run):
    _, module, start, _ = run
    assert [name for name, value in fitting.weights_of(module).items() if torch.equal(value, start[name])] == []


def test_every_exit_has_metrics_of_its_own(run):
    metrics = run[3].callback_metrics
    for depth in (1, 2):
        names = ("accepted_length", "roc_auc", "ece", *(f"conditional_acceptance_{k}" for k in (1, 2, 3)))
        assert {f"val/exit_{depth}/{name}" for name in names} | {f"train/exit_{depth}/loss"} <= set(metrics)
    lengths = {float(metrics[f"val/{name}accepted_length"]) for name in ("", "exit_1/", "exit_2/")}
    assert len(lengths) == 3, "each depth is measured by its own states"


def test_a_checkpoint_keeps_the_exits_and_is_refused_for_others(run, target):
    folder, module, *_ = run
    path = newest_checkpoint(folder)
    loaded = load_drafter(path, fitting.tiny_module(target, num_layers=3, exits=(1, 2)).drafter)
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in fitting.weights_of(module).items())
    for exits, text in (((), r"\[\]"), ((1,), r"\[1\]")):
        with pytest.raises(ValueError, match=rf"exits: expected {text}, found \[1, 2\]"):
            load_drafter(path, fitting.tiny_module(target, num_layers=3, exits=exits).drafter)


def test_without_its_exits_a_trained_drafter_is_a_plain_dspark(run, target):
    module = run[1]
    plain = fitting.tiny_module(target, num_layers=3).drafter
    plain.load_state_dict(plain_state(module.drafter.state_dict()))
    assert not any(name.startswith("exits") for name in plain.state_dict())


def test_a_plan_counts_the_exits_and_the_logits_of_every_depth():
    def plan(*overrides):
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            cfg = compose("train", overrides=list(overrides))
        parts = build(cfg, meta=True)
        return make_plan(parts, workload(instantiate(cfg.data), cfg.trainer.settings, None, True))

    plain, early = plan("drafter=dspark", "drafter.num_layers=4"), plan("drafter=dspark_exits", "drafter.num_layers=4")
    spec = early.parts.spec
    assert early.trainable - plain.trainable == {"exits": spec.hidden_size + (spec.hidden_size + 256) + 1}
    name = "loss (logits of both sides)"
    assert early.memory[name] == 2 * plain.memory[name]
