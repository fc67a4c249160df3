"""Every term and every kind of position weights inside the loss: chunks, reduced vocabulary, empty batches, weights."""

import dataclasses
import math

import pytest
import torch

from drafting import random_batch, rows_of, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec, draw_anchors, lay_out
from draftlab.losses import (
    KL,
    LK,
    Confidence,
    CrossEntropy,
    DraftLoss,
    JensenShannon,
    NegLogAcceptance,
    ReverseKL,
    SoftCrossEntropy,
    TotalVariation,
)
from draftlab.losses.positions import POSITION_WEIGHTS

MENU = {
    "ce": CrossEntropy(1.0),
    "soft_ce": SoftCrossEntropy(1.0),
    "tv": TotalVariation(1.0),
    "kl": KL(1.0),
    "reverse_kl": ReverseKL(1.0),
    "jsd": JensenShannon(1.0),
    "neg_log_acceptance": NegLogAcceptance(1.0),
    "lk": LK(1.0, eta=3.0),
    "confidence": Confidence(1.0),
    "pushing_confidence": Confidence(1.0, stop_gradient=False),
}
IDS = (0, 2, 3, 7, 11, 20)
BLOCK = BlockSpec(block_size=4, num_anchors=3, decay_gamma=2.0)
menu = pytest.mark.parametrize("name", MENU)
positions = pytest.mark.parametrize("position_weights", POSITION_WEIGHTS)
vocabulary = pytest.mark.parametrize("draft_ids", [None, IDS], ids=["whole", "reduced"])


def case(draft_ids=None, lengths=(12, 9, 3), head="markov", dtype=torch.float32):
    spec = small_spec()
    size = None if draft_ids is None else len(draft_ids)
    drafter = tiny_drafter(head, BLOCK, spec, dtype=dtype, draft_vocab_size=size)
    if draft_ids is not None:
        drafter.set_draft_vocabulary(torch.tensor(draft_ids))
    batch = random_batch(spec, lengths, dtype=dtype)
    anchors, valid = draw_anchors(batch.loss_mask, BLOCK.num_anchors, torch.Generator().manual_seed(3))
    return drafter, batch, lay_out(batch, anchors, valid, BLOCK, spec.mask_token_id)


def evaluate(loss, drafter, batch, blocks):
    """The report, and the gradient of every parameter, None where there is none."""
    drafter.zero_grad()
    report = loss(drafter, drafter(batch, blocks), blocks, batch)
    report.numerator.backward()
    return report, {name: p.grad for name, p in drafter.named_parameters()}


@menu
@positions
@vocabulary
def test_chunks_with_recomputation_give_the_loss_and_gradients_of_the_whole(name, position_weights, draft_ids):
    drafter, batch, blocks = case(draft_ids)
    terms = {name: MENU[name]}
    whole, expected = evaluate(DraftLoss(terms, None, position_weights), drafter, batch, blocks)
    for chunk_blocks in (1, 4):
        report, gradients = evaluate(DraftLoss(terms, chunk_blocks, position_weights), drafter, batch, blocks)
        torch.testing.assert_close(report.numerator, whole.numerator)
        torch.testing.assert_close(report.weight, whole.weight)
        torch.testing.assert_close(report.accept_rate, whole.accept_rate)
        assert report.outside == whole.outside
        for parameter, gradient in expected.items():
            torch.testing.assert_close(gradients[parameter], gradient, rtol=1e-4, atol=1e-5)


@menu
@positions
@pytest.mark.parametrize("chunk_blocks", [None, 1])
def test_a_batch_without_anchors_gives_a_finite_zero_attached_to_every_parameter(name, position_weights, chunk_blocks):
    """Case 7."""
    drafter, batch, _ = case(lengths=(6, 6))
    batch = dataclasses.replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    blocks = lay_out(batch, *draw_anchors(batch.loss_mask, 3), BLOCK, drafter.spec.mask_token_id)
    report, gradients = evaluate(DraftLoss({name: MENU[name]}, chunk_blocks, position_weights), drafter, batch, blocks)
    assert report.numerator == 0 and report.weight == 0
    assert all(gradient is not None and not gradient.any() for gradient in gradients.values())


@menu
@pytest.mark.parametrize("head", ["markov", "domino", "none"])
@pytest.mark.parametrize("chunk_blocks", [None, 2])
def test_every_parameter_gets_a_finite_gradient_from_every_term_alone(name, head, chunk_blocks):
    """Case 8: also a confidence head that no term trains."""
    drafter, batch, blocks = case(head=head)
    off = {other: type(term)(0.0) for other, term in MENU.items() if other != name and other != "lk"}
    _, gradients = evaluate(DraftLoss({name: MENU[name], **off}, chunk_blocks), drafter, batch, blocks)
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())
    assert gradients["fc.weight"].any()


@pytest.mark.parametrize("name", sorted(MENU.keys() - {"ce"}))
def test_a_term_that_needs_the_target_says_so_without_its_states(name):
    drafter, batch, blocks = case()
    batch = dataclasses.replace(batch, last_hidden=None)
    with pytest.raises(ValueError, match=rf"loss\.terms\.{name} need the target's last hidden states"):
        evaluate(DraftLoss({name: MENU[name]}), drafter, batch, blocks)


def test_weights_by_acceptance_need_the_targets_states_and_weights_by_expected_length_do_not():
    drafter, batch, blocks = case()
    batch = dataclasses.replace(batch, last_hidden=None)
    with pytest.raises(ValueError, match=r"loss\.position_weights need the target's last hidden states"):
        evaluate(DraftLoss({"ce": MENU["ce"]}, None, "acceptance"), drafter, batch, blocks)
    report, _ = evaluate(DraftLoss({"ce": MENU["ce"]}, None, "expected_length"), drafter, batch, blocks)
    assert report.weight > 0


def twin(drafter, batch, blocks, position_weights):
    """Σ w ce and Σ w, one slot at a time; weights by acceptance from the true labels and both laws."""
    output, total, weight = drafter(batch, blocks), 0.0, 0.0
    for b, n in blocks.valid.nonzero().tolist():
        logits = drafter.draft_logits(output.hidden[b, n][None], blocks.previous[b, n][None])[0]
        num_slots = int(blocks.label_mask[b, n].sum())
        laws = torch.softmax(logits.detach(), -1)
        anchor = int(blocks.anchors[b, n])
        labels = [int(batch.input_ids[b, anchor + 1 + k]) for k in range(num_slots)]
        ids = list(range(drafter.spec.vocab_size)) if drafter.draft_ids is None else drafter.draft_ids.tolist()
        chance = [float(laws[k, ids.index(label)]) if label in ids else 0.0 for k, label in enumerate(labels)]
        rates = []
        for k in range(num_slots):
            teacher = torch.softmax(drafter.ends.logits(batch.last_hidden[b, anchor + k]), -1)
            rates.append(sum(min(float(laws[k, i]), float(teacher[v])) for i, v in enumerate(ids)))
        for k in range(num_slots):
            w = math.exp(-k / 2.0)
            if position_weights == "acceptance":
                w *= math.prod(rates[:k])
            if position_weights == "expected_length":
                w *= sum(math.prod((1 + p) / 2 for p in chance[: m + 1]) for m in range(k, num_slots))
            total += w * -math.log(chance[k]) if chance[k] else 0.0
            weight += w
    return total, weight


@positions
@vocabulary
@pytest.mark.parametrize("chunk_blocks", [None, 2])
def test_weighted_sums_and_the_weights_used_equal_the_slow_twin(position_weights, draft_ids, chunk_blocks):
    drafter, batch, blocks = case(draft_ids, dtype=torch.float64)
    total, weight = twin(drafter, batch, blocks, position_weights)
    report, _ = evaluate(DraftLoss({"ce": MENU["ce"]}, chunk_blocks, position_weights), drafter, batch, blocks)
    assert report.numerator.item() == pytest.approx(total, rel=1e-5)
    assert report.weight.item() == pytest.approx(weight, rel=1e-5)
    assert (report.weight == blocks.weights.sum()) == (position_weights == "decay")


@positions
def test_micro_batches_add_up_to_the_whole_batch(position_weights):
    """What makes the global mean exact under accumulation and over ranks, whatever the weights depend on."""
    drafter, batch, blocks = case(lengths=(12, 12, 12))
    loss = DraftLoss({"ce": MENU["ce"], "tv": MENU["tv"]}, None, position_weights)
    whole, expected = evaluate(loss, drafter, batch, blocks)
    parts = []
    for row in range(3):
        fields = {f.name: getattr(blocks, f.name)[[row]] for f in dataclasses.fields(blocks)}
        parts.append(evaluate(loss, drafter, rows_of(batch, [row]), dataclasses.replace(blocks, **fields)))
    assert sum(report.weight for report, _ in parts).item() == pytest.approx(whole.weight.item(), rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(sum(part[name] for _, part in parts), gradient, rtol=1e-4, atol=1e-5)


def test_the_weights_by_acceptance_are_no_part_of_what_is_trained():
    """The gradient is that of the same loss with the weights written down beforehand."""
    drafter, batch, blocks = case()
    report, gradients = evaluate(DraftLoss({"tv": MENU["tv"]}, None, "acceptance"), drafter, batch, blocks)
    before = torch.cat([torch.ones_like(report.accept_rate[..., :1]), report.accept_rate[..., :-1]], -1).cumprod(-1)
    fixed = dataclasses.replace(blocks, weights=blocks.weights * before)
    _, expected = evaluate(DraftLoss({"tv": MENU["tv"]}), drafter, batch, fixed)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6)


def test_a_confidence_whose_gradient_is_not_stopped_pushes_the_draft_law_towards_itself():
    """With a confidence near 1 the accept rate must rise, with one near 0 it must fall."""
    drafter, batch, blocks = case()
    loss = DraftLoss({"confidence": MENU["pushing_confidence"]})
    for bias, towards in ((9.0, 1), (-9.0, -1)):
        with torch.no_grad():
            drafter.confidence_head.proj.weight.zero_()
            drafter.confidence_head.proj.bias.fill_(bias)
        start = drafter.markov_head.markov_w2.weight.detach().clone()
        before, gradients = evaluate(loss, drafter, batch, blocks)
        with torch.no_grad():
            drafter.markov_head.markov_w2.weight -= 1e-3 * gradients["markov_head.markov_w2.weight"]
        after, _ = evaluate(loss, drafter, batch, blocks)
        assert towards * (after.accept_rate.sum() - before.accept_rate.sum()) > 0
        with torch.no_grad():
            drafter.markov_head.markov_w2.weight.copy_(start)


def test_unknown_position_weights_are_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"loss\.position_weights must be one of decay, acceptance, .*got 'dpace'"):
        DraftLoss({"ce": MENU["ce"]}, position_weights="dpace")
