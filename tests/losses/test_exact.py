"""The lean loss against its plain twin, all logits at once by autograd: every loss of conf/ and every head, in both precisions."""

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch.nn import functional as F

from drafting import HEADS, random_batch, random_ends, rows_of, small_spec, tiny_drafter
from draftlab.acceptance import accept_rate
from draftlab.blocks import BlockSpec, draw_anchors, lay_out
from draftlab.losses import DraftLoss, Slots, draft_loss, law
from draftlab.losses.draft_loss import draft_index

CONF = Path(__file__).resolve().parents[2] / "conf"
LOSSES = sorted(path.stem for path in (CONF / "loss").glob("*.yaml"))
BLOCK = BlockSpec(block_size=4, num_anchors=5, decay_gamma=2.0)
IDS = (0, 2, 3, 7, 11, 20)
CLOSE = 1e-5  # of a gradient's length


def composed_loss(name, **changes):
    """The loss of conf/loss/``name``.yaml."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", overrides=[f"loss={name}"])
    return instantiate(cfg.loss, **changes)


def case(head, draft_ids=None, dtype=torch.float32, spec=None, lengths=(14, 9, 3)):
    """A drafter and a batch whose supervision has holes: blocks of every length."""
    spec = spec or small_spec()
    drafter = tiny_drafter(
        head, BLOCK, spec, dtype=dtype, draft_vocab_size=None if draft_ids is None else len(draft_ids)
    )
    if draft_ids is not None:
        drafter.set_draft_vocabulary(torch.tensor(draft_ids))
    batch = random_batch(spec, lengths, dtype=dtype)
    batch.loss_mask[0, [4, 10]] = False
    blocks = blocks_of(batch, spec)
    lengths = blocks.label_mask.sum(-1)
    assert len(lengths.unique()) >= 3, "supervision should be uneven"
    return drafter, batch, blocks


def blocks_of(batch, spec, seed=3):
    anchors, valid = draw_anchors(batch.loss_mask, BLOCK.num_anchors, torch.Generator().manual_seed(seed))
    return lay_out(batch, anchors, valid, BLOCK, spec.mask_token_id)


def plain_loss(loss, drafter, output, blocks, batch):
    """Σ_terms λ Σ w value and Σ w: logits of all slots and of all their teachers, every law a tensor of its own."""
    shape = blocks.label_mask.shape
    logits = drafter.draft_logits(output.hidden.flatten(0, 1), blocks.previous.flatten(0, 1))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)  # [B*N*G, W]
    rows = torch.arange(shape[0]).view(-1, 1, 1)
    states = batch.last_hidden[rows, blocks.teacher_positions].flatten(0, 2)
    with torch.no_grad():
        target = torch.softmax(drafter.ends.logits(states).to(logits.dtype), -1)
        target = target if drafter.draft_ids is None else target[:, drafter.draft_ids]
    log_draft = F.log_softmax(logits, -1)
    draft = log_draft.exp()
    confidence = None if output.confidence_logits is None else output.confidence_logits.flatten().to(logits.dtype)
    labels = draft_index(blocks.labels.flatten(), drafter.draft_ids)
    slots = Slots(log_draft, labels, accept_rate(draft, target), confidence, target, draft)
    label_probs = (slots.label_log_probs.exp() * (labels >= 0)).view(shape)
    rates = slots.accept_rate.view(shape) * blocks.label_mask
    factor = loss.positions.factor(
        *(x.detach().flatten(0, 1) for x in (rates, label_probs * blocks.label_mask, blocks.label_mask))
    )
    weights = (blocks.weights.flatten(0, 1) * factor).flatten()
    value = sum(term.weight * term(slots) for term in loss.active.values())
    return (weights * value).sum(), weights.sum()


def gradients_of(drafter, *losses):
    """Gradients of all parameters after backward passes from each of ``losses``, one behind the other."""
    drafter.zero_grad()
    for value in losses:
        value().backward()
    return {
        name: parameter.grad.clone() for name, parameter in drafter.named_parameters() if parameter.grad is not None
    }


def require_close(got, expected):
    assert got.keys() >= expected.keys()
    for name, gradient in expected.items():
        error = (got[name].double() - gradient.double()).norm()
        assert error <= CLOSE * gradient.double().norm() + 1e-7, (name, error, gradient.norm())


def needs_no_confidence(loss, head):
    return head != "none" or not any(term.needs_confidence for term in loss.active.values())


@pytest.mark.parametrize("draft_ids", [None, IDS], ids=["whole", "reduced"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_the_plain_twins_with_uneven_supervision_and_over_two_micro_batches(name, head, draft_ids):
    loss = composed_loss(name, chunk_blocks=2)
    drafter, batch, _ = case(head, draft_ids)
    parts = [rows_of(batch, [0]), rows_of(batch, [1, 2])]

    def micro_batches(evaluate):
        for part in parts:
            blocks = blocks_of(part, drafter.spec)
            yield lambda part=part, blocks=blocks: evaluate(drafter, drafter(part, blocks), blocks, part)

    got = gradients_of(drafter, *micro_batches(lambda *given: loss(*given).numerator))
    expected = gradients_of(drafter, *micro_batches(lambda *given: plain_loss(loss, *given)[0]))
    assert len(expected) > 10 and expected["fc.weight"].any()
    require_close(got, expected)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("chunk_blocks", [1, 3, None, 99])
def test_values_and_weights_equal_the_plain_twins_at_every_chunk_size(name, chunk_blocks):
    loss = composed_loss(name, chunk_blocks=chunk_blocks)
    drafter, batch, blocks = case("markov")
    output = drafter(batch, blocks)
    numerator, weight = plain_loss(loss, drafter, output, blocks, batch)
    report = loss(drafter, output, blocks, batch)
    torch.testing.assert_close(report.numerator, numerator, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(report.weight, weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_bfloat16_gradients_are_within_one_percent_of_float64(head):
    """States and weights that bfloat16 can hold, so that what is measured is the loss."""
    spec = small_spec(hidden_size=64, vocab_size=500)
    loss, found = composed_loss("dspark", chunk_blocks=2), {}
    for dtype in (torch.float64, torch.float32):
        drafter, batch, blocks = case(head, None, dtype, spec)
        for parameter in drafter.parameters():
            parameter.data = parameter.data.bfloat16().to(dtype)
        ends = random_ends(spec, scale=0.3)
        drafter.attach(type(ends)(*(x.bfloat16().to(dtype) for x in (ends.embedding, ends.head))))
        shape = (*blocks.label_mask.shape, spec.hidden_size)
        hidden = torch.randn(shape, generator=torch.Generator().manual_seed(8)).bfloat16().to(dtype).requires_grad_()
        states = torch.randn(batch.last_hidden.shape, generator=torch.Generator().manual_seed(9))
        batch.last_hidden.copy_(states.bfloat16())
        output = type(drafter(batch, blocks))(hidden, drafter.confidence_logits(hidden, blocks.previous))
        if dtype == torch.float64:
            plain_loss(loss, drafter, output, blocks, batch)[0].backward()
        else:
            with torch.autocast("cpu", torch.bfloat16):
                numerator = loss(drafter, output, blocks, batch).numerator
            numerator.backward()
        found[dtype] = {"hidden": hidden.grad} | {
            name: p.grad for name, p in drafter.markov_head.named_parameters() if p.grad is not None
        }
    whole = {dtype: torch.cat([g.flatten().double() for g in parts.values()]) for dtype, parts in found.items()}
    error = (whole[torch.float32] - whole[torch.float64]).norm() / whole[torch.float64].norm()
    assert 1e-5 < error < 0.01, "and it is bfloat16 that was measured"


@pytest.mark.parametrize("chunk_blocks", [None, 2])
def test_one_softmax_a_side_and_chunk_and_teacher_logits_once_a_distinct_position(monkeypatch, chunk_blocks):
    """CE, TV, the confidence's label and the metric share them."""
    drafter, batch, blocks = case("markov")
    drafts, targets, states = [], [], []
    soft, log_soft, logits_of = torch.softmax, F.log_softmax, drafter.ends.logits
    monkeypatch.setattr(law.F, "log_softmax", lambda x, **kw: drafts.append(len(x)) or log_soft(x, **kw))
    monkeypatch.setattr(draft_loss.torch, "softmax", lambda x, dim: targets.append(len(x)) or soft(x, dim))

    def counted(hidden, *rest):
        if not torch.is_grad_enabled():
            states.append(len(hidden))
        return logits_of(hidden, *rest)

    loss = composed_loss("dspark", chunk_blocks=chunk_blocks)
    output = drafter(batch, blocks)
    monkeypatch.setattr(drafter.ends, "logits", counted)
    loss(drafter, output, blocks, batch).numerator.backward()
    supervised = blocks.label_mask.any(-1).sum().item()
    chunks = 1 if chunk_blocks is None else -(-supervised // chunk_blocks)
    assert len(drafts) == len(targets) == len(states) == chunks
    assert sum(drafts) == blocks.label_mask.sum(), "no slot without a label has a law"
    positions = (torch.arange(len(batch.input_ids)).view(-1, 1, 1) * 100 + blocks.teacher_positions)[blocks.label_mask]
    if chunk_blocks is None:
        assert targets == states == [len(positions.unique())] and states[0] < sum(drafts)
    assert len(positions.unique()) <= sum(states) < batch.last_hidden.shape[:2].numel() + sum(drafts)


def test_the_chunk_of_auto_follows_what_the_terms_keep():
    blocks = {name: composed_loss(name).blocks_within(7, 49152) for name in ("dspark", "kl", "jsd")}
    assert blocks["dspark"] > blocks["kl"] > blocks["jsd"] > 0
    assert DraftLoss(composed_loss("jsd").terms, "auto", chunk_gb=1e-6).blocks_within(7, 49152) == 1
