"""The loss at early exits: the loss of the shorter drafters on the same blocks, weighted and added."""

from __future__ import annotations

import pytest
import torch

from drafting import random_batch, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec, draw_anchors, lay_out
from draftlab.losses import Confidence, CrossEntropy, DraftLoss, TotalVariation
from draftlab.types import DraftOutput

BLOCK = BlockSpec(block_size=4, num_anchors=3, decay_gamma=2.0)


def loss_of(exit_weight=0.5, chunk_blocks=None, position_weights="decay", **weights):
    terms = {"ce": CrossEntropy(0.1), "tv": TotalVariation(0.9), "confidence": Confidence(1.0)}
    return DraftLoss(terms, chunk_blocks, position_weights, exit_weight)


def case(exits=(1, 2), lengths=(12, 9, 3)):
    drafter = tiny_drafter("markov", BLOCK, num_layers=3, exits=exits)
    batch = random_batch(drafter.spec, lengths)
    anchors, valid = draw_anchors(batch.loss_mask, BLOCK.num_anchors, torch.Generator().manual_seed(3))
    return drafter, batch, lay_out(batch, anchors, valid, BLOCK, drafter.spec.mask_token_id)


def alone(loss, drafter, output, blocks, batch):
    """The report of one depth as if there were no other."""
    return loss(drafter, DraftOutput(output.hidden, output.confidence_logits), blocks, batch)


@pytest.mark.parametrize("position_weights", ["decay", "acceptance"])
@pytest.mark.parametrize("chunk_blocks", [None, 2])
@pytest.mark.parametrize("exit_weight", [0.5, (0.25, 2.0)])
def test_the_loss_is_the_sum_of_every_depths_own_loss(exit_weight, chunk_blocks, position_weights):
    drafter, batch, blocks = case()
    loss = loss_of(exit_weight, chunk_blocks, position_weights)
    output = drafter(batch, blocks)
    report = loss(drafter, output, blocks, batch)
    single = loss_of(1.0, chunk_blocks, position_weights)
    whole = alone(single, drafter, output, blocks, batch)
    exits = {depth: alone(single, drafter, of_exit, blocks, batch) for depth, of_exit in output.exits.items()}
    factors = dict(zip((1, 2), (0.5, 0.5) if exit_weight == 0.5 else exit_weight, strict=True))
    expected = whole.numerator + sum(factors[depth] * exits[depth].numerator for depth in exits)
    torch.testing.assert_close(report.numerator, expected)
    assert torch.equal(report.weight, whole.weight) and torch.equal(report.accept_rate, whole.accept_rate)
    for depth, of_exit in exits.items():
        torch.testing.assert_close(report.exits[depth].accept_rate, of_exit.accept_rate)
        assert report.means()[f"exit_{depth}/loss"] == pytest.approx(of_exit.means()["loss"])


@pytest.mark.parametrize("chunk_blocks", [None, 2])
def test_gradients_are_the_weighted_sum_of_every_depths_own(chunk_blocks):
    drafter, batch, blocks = case()
    loss = loss_of(0.5, chunk_blocks)
    loss(drafter, drafter(batch, blocks), blocks, batch).numerator.backward()
    together = {name: parameter.grad.clone() for name, parameter in drafter.named_parameters()}
    drafter.zero_grad()
    output = drafter(batch, blocks)
    total = alone(loss, drafter, output, blocks, batch).numerator
    for of_exit in output.exits.values():
        total = total + 0.5 * alone(loss, drafter, of_exit, blocks, batch).numerator
    total.backward()
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(together[name], parameter.grad)


def test_the_teachers_laws_are_made_once_for_all_depths(monkeypatch):
    from draftlab.losses import draft_loss

    made, true = [], draft_loss.teacher_probs
    monkeypatch.setattr(draft_loss, "teacher_probs", lambda *args: made.append(1) or true(*args))
    drafter, batch, blocks = case()
    loss_of()(drafter, drafter(batch, blocks), blocks, batch)
    assert len(made) == 1


def test_a_batch_without_supervision_is_a_zero_attached_to_every_parameter_of_every_exit():
    """Case 7."""
    drafter, batch, _ = case()
    anchors = torch.zeros(3, 3, dtype=torch.int64)
    blocks = lay_out(batch, anchors, anchors.bool(), BLOCK, drafter.spec.mask_token_id)
    report = loss_of()(drafter, drafter(batch, blocks), blocks, batch)
    report.numerator.backward()
    assert report.numerator == 0 and report.weight == 0
    assert all(p.grad is not None and not p.grad.any() for p in drafter.parameters())


def test_a_drafter_without_exits_has_the_loss_it_had():
    drafter, batch, blocks = case(exits=())
    output = drafter(batch, blocks)
    light, heavy = (loss_of(weight)(drafter, output, blocks, batch) for weight in (0.1, 9.0))
    assert torch.equal(light.numerator, heavy.numerator) and light.exits == {}
    assert not any(name.startswith("exit") for name in light.means())


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), [], [1.0, 0], "much", None])
def test_weights_that_are_no_numbers_above_0_are_refused(weight):
    with pytest.raises(ValueError, match=r"loss\.exit_weight must be a number above 0"):
        loss_of(weight)


@pytest.mark.parametrize("exits", [(), (1,)])
def test_one_weight_too_many_is_refused(exits):
    drafter = tiny_drafter("markov", BLOCK, small_spec(), num_layers=3, exits=exits)
    with pytest.raises(ValueError, match=r"loss\.exit_weight has 2 numbers, but the drafter has the exits \["):
        loss_of((0.5, 0.5)).check(drafter)
