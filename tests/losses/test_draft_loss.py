"""The loss, with its shared softmax, chunks and reduced vocabulary, against a twin that loops over slots."""

import dataclasses
import math

import pytest
import torch

from drafting import random_batch, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec, draw_anchors, lay_out
from draftlab.losses import Confidence, CrossEntropy, DraftLoss, TotalVariation

GAMMA, DECAY = 4, 2.0
BLOCK = BlockSpec(block_size=GAMMA, num_anchors=3, decay_gamma=DECAY)
WEIGHTS = {"ce": 0.1, "tv": 0.9, "confidence": 1.0}


def dspark_loss(chunk_blocks=None, **weights):
    terms = {"ce": CrossEntropy, "tv": TotalVariation, "confidence": Confidence}
    return DraftLoss({name: terms[name](weight) for name, weight in (WEIGHTS | weights).items()}, chunk_blocks)


def case(head="markov", lengths=(12, 9, 3), draft_ids=None):
    spec = small_spec()
    drafter = tiny_drafter(head, BLOCK, spec, draft_vocab_size=None if draft_ids is None else len(draft_ids))
    if draft_ids is not None:
        drafter.set_draft_vocabulary(torch.tensor(draft_ids))
    batch = random_batch(spec, lengths)
    anchors, valid = draw_anchors(batch.loss_mask, BLOCK.num_anchors, torch.Generator().manual_seed(3))
    return drafter, batch, lay_out(batch, anchors, valid, BLOCK, spec.mask_token_id)


def evaluate(loss, drafter, batch, blocks):
    return loss(drafter, drafter(batch, blocks), blocks, batch)


def twin(drafter, batch, blocks):
    """Σ w (λ_ce ce + λ_tv tv + λ_conf bce), Σ w and the accept rates, one slot at a time over all V tokens in float64."""
    output = drafter(batch, blocks)
    ids = list(range(drafter.spec.vocab_size)) if drafter.draft_ids is None else drafter.draft_ids.tolist()
    total, weight, rates = torch.zeros((), dtype=torch.float64), 0.0, {}
    for b, n, k in blocks.label_mask.nonzero().tolist():
        anchor = int(blocks.anchors[b, n])
        label, previous = int(batch.input_ids[b, anchor + 1 + k]), blocks.previous[b, n][None]
        law = torch.softmax(drafter.draft_logits(output.hidden[b, n][None], previous)[0, k], -1)
        law = torch.zeros(drafter.spec.vocab_size, dtype=law.dtype).index_put((torch.tensor(ids),), law)
        teacher = torch.softmax(drafter.ends.logits(batch.last_hidden[b, anchor + k]), -1)
        distance = (law - teacher).abs().sum()
        rate = (1 - distance / 2).detach()
        confidence = torch.sigmoid(output.confidence_logits[b, n, k])
        value = WEIGHTS["tv"] * distance
        value = value - WEIGHTS["confidence"] * (rate * confidence.log() + (1 - rate) * (1 - confidence).log())
        if label in ids:
            value = value - WEIGHTS["ce"] * law[label].log()
        w = math.exp(-k / DECAY)
        total, weight, rates[b, n, k] = total + w * value, weight + w, float(rate)
    return total, weight, rates


@pytest.mark.parametrize("chunk_blocks", [None, 1, 4])
@pytest.mark.parametrize("draft_ids", [None, (0, 2, 3, 7, 11, 20)], ids=["whole", "reduced"])
@pytest.mark.parametrize("normalizer", [True, False], ids=["stored", "made"])
def test_loss_gradients_and_accept_rates_equal_the_slow_twin(chunk_blocks, draft_ids, normalizer):
    drafter, batch, blocks = case(draft_ids=draft_ids)
    if normalizer:
        logits = drafter.ends.logits(batch.last_hidden)
        batch = dataclasses.replace(batch, log_normalizer=torch.logsumexp(logits, -1).float())
    expected, weight, rates = twin(drafter, batch, blocks)
    expected.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in drafter.named_parameters()}
    drafter.zero_grad()
    report = evaluate(dspark_loss(chunk_blocks), drafter, batch, blocks)
    report.numerator.backward()
    assert report.numerator.item() == pytest.approx(expected.item(), rel=1e-5)
    assert report.weight.item() == pytest.approx(weight, rel=1e-5)
    assert report.num_slots == len(rates)
    for slot, rate in rates.items():
        assert report.accept_rate[slot].item() == pytest.approx(rate, abs=1e-5)
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=2e-4, atol=2e-5)


def test_the_total_is_the_weighted_sum_of_the_named_terms():
    drafter, batch, blocks = case()
    report = evaluate(dspark_loss(), drafter, batch, blocks)
    assert report.numerator.item() == pytest.approx(sum(WEIGHTS[n] * v.item() for n, v in report.terms.items()))
    assert report.means()["tv"] == pytest.approx(report.terms["tv"].item() / report.weight.item())


def test_labels_outside_the_draft_vocabulary_add_nothing_and_are_counted():
    drafter, batch, blocks = case(draft_ids=(0, 2, 3, 7, 11, 20))
    report = evaluate(dspark_loss(), drafter, batch, blocks)
    labels = blocks.labels[blocks.label_mask]
    assert report.outside == (~torch.isin(labels, drafter.draft_ids)).sum() > 0
    only_outside = dataclasses.replace(blocks, labels=torch.full_like(blocks.labels, 5))
    assert evaluate(dspark_loss(), drafter, batch, only_outside).terms["ce"] == 0


def test_a_slots_teacher_stands_at_anchor_plus_slot_and_moves_no_other_slot():
    """Case 3."""
    drafter, batch, _ = case(lengths=(12,))
    blocks = lay_out(batch, torch.tensor([[4]]), torch.ones(1, 1, dtype=torch.bool), BLOCK, drafter.spec.mask_token_id)
    before = evaluate(dspark_loss(), drafter, batch, blocks).accept_rate
    changed = batch.last_hidden.clone()
    changed[0, 6] += 1.0
    after = evaluate(dspark_loss(), drafter, dataclasses.replace(batch, last_hidden=changed), blocks).accept_rate
    assert ((before - after).abs() > 1e-6).flatten().tolist() == [False, False, True, False]


def test_a_drafter_that_copies_the_label_does_not_look_good():
    """Case 3: it gets the target's probability of that one token, not 1."""
    drafter, batch, blocks = case(lengths=(12, 12))
    one_hot = torch.nn.functional.one_hot(blocks.labels, drafter.spec.vocab_size).double() * 1e3
    drafter.coded_logits = lambda hidden, codes: one_hot[blocks.label_mask]
    report = evaluate(dspark_loss(), drafter, batch, blocks)
    for b, n, k in blocks.label_mask.nonzero().tolist():
        position = int(blocks.anchors[b, n]) + k
        law = torch.softmax(drafter.ends.logits(batch.last_hidden[b, position]), -1)
        expected = law[batch.input_ids[b, position + 1]].item()
        assert report.accept_rate[b, n, k].item() == pytest.approx(expected, abs=1e-6)
    assert report.accept_rate[blocks.label_mask].mean() < 0.2


@pytest.mark.parametrize("chunk_blocks", [None, 1])
def test_no_valid_anchor_gives_a_finite_zero_attached_to_every_parameter(chunk_blocks):
    """Case 7."""
    drafter, batch, _ = case(lengths=(6, 6))
    batch = dataclasses.replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    blocks = lay_out(batch, *draw_anchors(batch.loss_mask, 3), BLOCK, drafter.spec.mask_token_id)
    report = evaluate(dspark_loss(chunk_blocks), drafter, batch, blocks)
    report.numerator.backward()
    assert report.numerator == 0 and report.weight == 0 and report.num_slots == 0 and report.outside == 0
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in drafter.parameters())
    assert all(math.isfinite(value) for value in report.means().values())


@pytest.mark.parametrize("chunk_blocks", [None, 2])
@pytest.mark.parametrize("head", ["markov", "rnn", "none"])
@pytest.mark.parametrize("only", ["ce", "tv", "confidence"])
def test_every_parameter_gets_a_gradient_whichever_terms_are_off(only, head, chunk_blocks):
    """Case 8: data-parallel training stops at a parameter without one."""
    drafter, batch, blocks = case(head)
    weights = {name: float(name == only) for name in WEIGHTS}
    evaluate(dspark_loss(chunk_blocks, **weights), drafter, batch, blocks).numerator.backward()
    assert [name for name, parameter in drafter.named_parameters() if parameter.grad is None] == []


def test_the_confidence_term_does_not_push_the_draft_law():
    drafter, batch, blocks = case()
    evaluate(dspark_loss(ce=0, tv=0), drafter, batch, blocks).numerator.backward()
    assert not drafter.markov_head.markov_w2.weight.grad.any()
    assert drafter.fc.weight.grad.any() and drafter.confidence_head.proj.weight.grad.any()


def test_cross_entropy_alone_trains_without_teacher_states_and_total_variation_asks_for_them():
    """Case 8."""
    drafter, batch, blocks = case("dflash")
    batch = dataclasses.replace(batch, last_hidden=None)
    report = evaluate(DraftLoss({"ce": CrossEntropy(1.0)}), drafter, batch, blocks)
    assert report.numerator > 0 and not report.accept_rate.any()
    with pytest.raises(ValueError, match="last hidden"):
        evaluate(DraftLoss({"tv": TotalVariation(1.0)}), drafter, batch, blocks)


def test_a_confidence_weight_without_confidence_head_is_refused_and_weight_0_is_fine():
    drafter, *_ = case("dflash")
    with pytest.raises(ValueError, match=r"loss\.terms\.confidence\.weight.*no confidence head"):
        dspark_loss().check(drafter)
    dspark_loss(confidence=0).check(drafter)


@pytest.mark.parametrize("bad", [{"terms": {}}, {"terms": {"ce": CrossEntropy(0)}}, {"chunk_blocks": 0}])
def test_a_loss_that_trains_nothing_or_no_block_at_a_time_is_refused(bad):
    with pytest.raises(ValueError, match=r"loss\."):
        DraftLoss(**({"terms": {"ce": CrossEntropy(1.0)}} | bad))
