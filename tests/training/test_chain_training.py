"""Eagle3 and MTP through the training loop: global means with equal sequences, checkpoints that are told apart, a falling loss."""

import pytest
import torch

import fitting
from draftlab.callbacks import AcceptanceCallback
from draftlab.training.checkpoint import describe, require_same
from draftlab.training.module import VALIDATION

chains = pytest.mark.parametrize("name", list(fitting.CHAINS))


@pytest.fixture(scope="module")
def target():
    return fitting.fitting_target()


@pytest.fixture(scope="module")
def data(target, tmp_path_factory):
    return fitting.answers_data(target, fitting.write_answers(tmp_path_factory.mktemp("answers")))


def train(target, data, folder, name, batches, **options):
    module = fitting.chain_module(target, name)
    fitting.silent_trainer(folder, max_steps=3, **options).fit(module, fitting.GivenBatches(data, [batches]))
    return fitting.weights_of(module)


@chains
def test_micro_batches_of_unequal_size_train_exactly_as_one_batch(target, data, tmp_path, name):
    whole = train(target, data, tmp_path, name, [[0, 1, 2, 3, 4, 5]])
    parts = train(target, data, tmp_path, name, [[0], [1, 2, 3], [4, 5]], accumulate_grad_batches=3)
    for key in whole:
        torch.testing.assert_close(parts[key], whole[key], rtol=1e-3, atol=2e-5)


@chains
def test_steps_without_any_anchor_move_nothing_and_the_next_one_trains(target, data, tmp_path, name):
    """Case 7."""
    start = fitting.weights_of(fitting.chain_module(target, name))
    still = train(target, data, tmp_path, name, [[], [], []])
    assert all(torch.equal(still[key], start[key]) for key in start)
    moved = train(target, data, tmp_path, name, [[], [], [0, 1]])
    assert not torch.equal(moved["norm.weight"], start["norm.weight"])
    assert all(torch.isfinite(tensor).all() for tensor in moved.values())


@chains
def test_the_loss_falls_and_validation_logs_the_accepted_length_that_checkpoints_follow(target, data, tmp_path, name):
    """Case 23."""
    module = fitting.chain_module(target, name)
    batches = fitting.GivenBatches(data, [[[0, 1, 2]]], validation=[[[0, 1, 2]]])
    make = batches.make([0, 1, 2])
    with torch.no_grad():
        before = module.compute(make, VALIDATION, 0)[2].means()["loss"]
    trainer = fitting.silent_trainer(tmp_path, [AcceptanceCallback()], max_steps=25, check_val_every_n_epoch=5)
    trainer.fit(module, batches)
    assert trainer.callback_metrics["val/loss"] < 0.7 * before
    assert 1 < trainer.callback_metrics["val/accepted_length"] <= 1 + module.drafter.block.block_size


def test_checkpoints_of_the_families_are_told_apart(target):
    eagle3, mtp = (fitting.chain_module(target, name).drafter for name in fitting.CHAINS)
    require_same(mtp, describe(mtp), "a checkpoint")
    with pytest.raises(ValueError, match=r"drafter: expected 'MTP', found 'Eagle3'; block_size: expected 1, found 3"):
        require_same(mtp, describe(eagle3), "a checkpoint")
