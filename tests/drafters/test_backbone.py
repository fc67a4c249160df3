"""The parallel backbone in training: equal to its loop-written twin, and blind to all that a block must not see."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from drafting import LAYOUTS, blocks_at, random_batch, random_ends, rows_of, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec, attention_rule
from draftlab.drafters.attention import BlockAttention, attend
from reference import block_hidden, confidence

layouts = pytest.mark.parametrize("sample_from_anchor", LAYOUTS.values(), ids=LAYOUTS)
ANCHORS = [[2, 5, 8], [1, 3, 6]]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # RoPE angles are float32 in the fast path


def drafter_of(sample_from_anchor, **options):
    return tiny_drafter(block=BlockSpec(3, 3, sample_from_anchor=sample_from_anchor), **options)


@layouts
def test_hidden_states_and_confidences_equal_the_loop_written_twin(sample_from_anchor):
    drafter = drafter_of(sample_from_anchor, num_heads=6, num_kv_heads=2, head_dim=4)
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, ANCHORS)
    output = drafter(batch, blocks)
    for row, anchors in enumerate(ANCHORS):
        for index, anchor in enumerate(anchors):
            ids = blocks.input_ids[row, index].tolist()
            expected = block_hidden(drafter, drafter.ends.embedding, batch.features[row], ids, anchor)
            torch.testing.assert_close(output.hidden[row, index], expected, **CLOSE)
            likely = confidence(drafter, expected, blocks.previous[row, index])
            torch.testing.assert_close(torch.sigmoid(output.confidence_logits[row, index]), likely, **CLOSE)


@layouts
def test_a_block_reads_features_before_its_anchor_and_none_from_it_on(sample_from_anchor):
    """Case 2, in training: every position is changed in turn."""
    drafter = drafter_of(sample_from_anchor)
    batch = random_batch(drafter.spec)
    anchor = 5
    blocks = blocks_at(batch, drafter, [[anchor], [anchor]])
    before = drafter(batch, blocks).hidden
    for position in range(9):
        features = batch.features.clone()
        features[:, position] += 1.0
        after = drafter(dataclasses.replace(batch, features=features), blocks).hidden
        changed = (after - before).abs().amax(dim=(1, 2, 3)) > 1e-6
        assert changed.tolist() == [position < anchor] * 2, f"features at {position} with the anchor at {anchor}"


@layouts
def test_blocks_do_not_see_each_other(sample_from_anchor):
    drafter = drafter_of(sample_from_anchor)
    batch = random_batch(drafter.spec)
    together = drafter(batch, blocks_at(batch, drafter, ANCHORS)).hidden
    for index in range(3):
        alone = drafter(batch, blocks_at(batch, drafter, [[row[index]] for row in ANCHORS])).hidden
        torch.testing.assert_close(together[:, index : index + 1], alone)


@layouts
def test_slots_of_a_block_see_each_other_in_both_directions(sample_from_anchor):
    drafter = drafter_of(sample_from_anchor)
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, [[5], [5]])
    inputs = blocks.input_ids.clone()
    inputs[..., -1] = 7
    changed = drafter(batch, dataclasses.replace(blocks, input_ids=inputs)).hidden - drafter(batch, blocks).hidden
    assert bool((changed.abs().amax(dim=(0, 1, 3)) > 1e-6).all())


def test_padding_and_the_other_rows_change_nothing():
    drafter = tiny_drafter()
    batch = random_batch(drafter.spec, lengths=(12, 9))
    together = drafter(batch, blocks_at(batch, drafter, ANCHORS)).hidden
    row = rows_of(batch, [1])
    names = ("input_ids", "attention_mask", "loss_mask", "features")
    short = dataclasses.replace(row, **{name: getattr(row, name)[:, :9] for name in names})
    alone = drafter(short, blocks_at(short, drafter, ANCHORS[1:])).hidden
    torch.testing.assert_close(together[1:], alone)


def test_a_masked_token_before_the_anchor_is_not_seen():
    drafter = tiny_drafter()
    batch = random_batch(drafter.spec)
    mask = batch.attention_mask.clone()
    mask[:, 4] = False
    batch = dataclasses.replace(batch, attention_mask=mask)
    blocks = blocks_at(batch, drafter, [[6], [6]])
    features = batch.features.clone()
    features[:, 4] += 5.0
    changed = dataclasses.replace(batch, features=features)
    torch.testing.assert_close(drafter(batch, blocks).hidden, drafter(changed, blocks).hidden)


@pytest.mark.parametrize("blocks_per_group", [1, 2, 3, 8])
def test_attention_in_groups_equals_attention_under_one_mask(blocks_per_group):
    """The mask of the rule over all keys is the plain way; sorted anchors, unsorted ones and fillers."""
    anchors = torch.tensor([[1, 4, 4, 6, 0], [7, 2, 5, 0, 3]])
    valid = torch.tensor([[True, True, True, True, False], [True] * 5])
    context_mask = torch.arange(9) < torch.tensor([[9], [8]])
    num_inputs, length = 3, 15
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(2, 4, length, 8, generator=generator)
    keys, values = torch.randn(2, 2, 2, length, 8, generator=generator)
    context_keys, context_values = torch.randn(2, 2, 2, 9, 8, generator=generator)
    mask = attention_rule(anchors, valid, num_inputs, context_mask).unsqueeze(1)
    plain = attend(queries, torch.cat([context_keys, keys], 2), torch.cat([context_values, values], 2), mask)
    attention = BlockAttention(anchors, valid, num_inputs, context_mask, blocks_per_group)
    torch.testing.assert_close(attention(queries, keys, values, context_keys, context_values), plain)


def test_an_anchor_at_the_first_token_and_filler_blocks_stay_finite():
    drafter = tiny_drafter()
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, [[0, 0], [0, 0]])
    blocks = dataclasses.replace(blocks, valid=torch.tensor([[True, False], [False, False]]))
    output = drafter(batch, blocks)
    output.hidden.sum().backward()
    assert output.hidden.isfinite().all()
    assert all(p.grad.isfinite().all() for p in drafter.parameters() if p.grad is not None)


@pytest.mark.parametrize("head", ["markov", "gated", "rnn", "none", "dflash"])
def test_every_weight_trains_and_the_targets_ends_do_not(head):
    drafter = tiny_drafter(head)
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, ANCHORS)
    output = drafter(batch, blocks)
    logits = drafter.draft_logits(output.hidden.flatten(0, 1), blocks.previous.flatten(0, 1))
    total = torch.logsumexp(logits, -1).sum()
    if drafter.has_confidence:
        total = total + output.confidence_logits.sigmoid().sum()
    total.backward()
    untrained = [name for name, p in drafter.named_parameters() if p.grad is None or not p.grad.any()]
    assert untrained == []
    assert not drafter.ends.embedding.requires_grad and not drafter.ends.head.requires_grad


@pytest.mark.parametrize("head", ["markov", "gated", "rnn", "none"])
def test_confidence_gradient_reaches_the_backbone(head):
    """Only the label c* is stop-grad (method 3)."""
    drafter = tiny_drafter(head)
    batch = random_batch(drafter.spec)
    drafter(batch, blocks_at(batch, drafter, ANCHORS)).confidence_logits.sum().backward()
    assert drafter.fc.weight.grad.any()


def test_embedding_scale_and_soft_cap_of_the_target_are_used():
    spec = small_spec(embedding_scale=2.0, logit_softcap=1.5)
    drafter = tiny_drafter("none", spec=spec).attach(
        random_ends(spec, scale=5.0, embedding_scale=2.0, logit_softcap=1.5)
    )
    batch = random_batch(spec)
    blocks = blocks_at(batch, drafter, [[4], [4]])
    hidden = drafter(batch, blocks).hidden
    scaled = 2.0 * drafter.ends.embedding
    expected = block_hidden(drafter, scaled, batch.features[0], blocks.input_ids[0, 0].tolist(), 4)
    torch.testing.assert_close(hidden[0, 0], expected, **CLOSE)
    raw = expected @ drafter.ends.head.T
    torch.testing.assert_close(
        drafter.draft_logits(hidden[0], blocks.previous[0])[0], 1.5 * torch.tanh(raw / 1.5), **CLOSE
    )
    assert raw.abs().max() > 3, "the cap must matter here"


def test_bfloat16_features_and_autocast_train_float32_weights():
    drafter = tiny_drafter(dtype=torch.float32)
    batch = random_batch(drafter.spec, dtype=torch.float32)
    blocks = blocks_at(batch, drafter, ANCHORS)
    exact = drafter(batch, blocks).hidden
    rough = dataclasses.replace(batch, features=batch.features.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = drafter(rough, blocks)
        logits = drafter.draft_logits(output.hidden.flatten(0, 1), blocks.previous.flatten(0, 1))
    logits.float().square().mean().backward()
    assert (output.hidden.float() - exact).abs().mean() < 0.1 * exact.abs().mean()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in drafter.parameters())


@pytest.mark.parametrize("fault", ["missing", "narrow"])
def test_missing_or_wrongly_sized_features_are_refused(fault):
    drafter = tiny_drafter()
    batch = random_batch(drafter.spec)
    features = None if fault == "missing" else batch.features[..., 1:]
    wrong = dataclasses.replace(batch, features=features)
    with pytest.raises(ValueError, match="target features"):
        drafter(wrong, blocks_at(batch, drafter, ANCHORS))


@pytest.mark.parametrize("num_anchors", [24, 96])
def test_what_a_step_keeps_is_what_plans_say(num_anchors):
    spec = small_spec(hidden_size=64)
    drafter = tiny_drafter(
        spec=spec, block=BlockSpec(4, num_anchors), num_heads=4, num_kv_heads=2, head_dim=32, dtype=torch.float32
    )
    length = 4 * num_anchors
    batch = random_batch(drafter.spec, lengths=(length, length), dtype=torch.float32)
    every_fourth = list(range(1, length - 5, 4))
    blocks = blocks_at(batch, drafter, [every_fourth + [0] * (num_anchors - len(every_fourth))] * 2)
    own, kept = {parameter.data_ptr() for parameter in drafter.parameters()}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = drafter(batch, blocks)
    assert output.hidden.requires_grad
    ratio = 4 * drafter.kept_values(2, length) / sum(kept.values())
    assert 0.7 < ratio < 1.4, f"a plan says {ratio:.2f} times what is kept"
