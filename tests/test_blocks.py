"""Anchors, layout, labels and the attention rule, against loop-written twins."""

import pytest
import torch

from draftlab.blocks import (
    BlockSpec,
    anchor_candidates,
    attention_rule,
    block_inputs,
    draw_anchors,
    lay_out,
    output_slots,
    pair_rule,
    position_weights,
    slot_positions,
)
from draftlab.types import Batch

MASK = 99


def make_batch(rows: list[list[int]], lengths: list[int] | None = None) -> Batch:
    """A batch whose token at position t of row b is 100 b + t, with the given loss-mask rows."""
    loss_mask = torch.tensor(rows).bool()
    num_rows, num_tokens = loss_mask.shape
    ids = torch.arange(num_tokens) + 100 * torch.arange(num_rows).unsqueeze(1)
    lengths = lengths or [num_tokens] * num_rows
    attention = torch.arange(num_tokens) < torch.tensor(lengths).unsqueeze(1)
    return Batch(input_ids=ids, attention_mask=attention, loss_mask=loss_mask)


def random_batch(seed: int, num_rows: int = 3, num_tokens: int = 17) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return make_batch((torch.rand(num_rows, num_tokens, generator=generator) < 0.8).int().tolist())


def test_anchors_stand_only_where_own_and_next_token_are_supervised():
    """Case 4: first and last assistant token, holes, multi-turn."""
    candidates = anchor_candidates(torch.tensor([[0, 1, 1, 0, 1, 0, 1, 1, 1]]).bool())
    assert candidates.nonzero()[:, 1].tolist() == [1, 6, 7]


def test_anchors_are_distinct_sorted_and_never_outside_the_candidates():
    batch = random_batch(0)
    for seed in range(20):
        anchors, valid = draw_anchors(batch.loss_mask, 6, torch.Generator().manual_seed(seed))
        for row, (positions, ok) in enumerate(zip(anchors, valid, strict=True)):
            chosen = positions[ok].tolist()
            assert chosen == sorted(set(chosen))
            assert all(anchor_candidates(batch.loss_mask)[row, position] for position in chosen)


def test_every_candidate_is_drawn_equally_often():
    loss_mask = torch.ones(1, 9).bool()
    counts = torch.zeros(9)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4000):
        anchors, _ = draw_anchors(loss_mask, 2, generator)
        counts[anchors[0]] += 1
    assert counts[8] == 0  # the last token has no next token
    assert (counts[:8] / 4000 - 2 / 8).abs().max() < 0.03


def test_a_short_row_gets_all_its_anchors_and_filler_is_marked_invalid():
    batch = make_batch([[0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    anchors, valid = draw_anchors(batch.loss_mask, 4, torch.Generator().manual_seed(0))
    assert valid.sum(-1).tolist() == [1, 4]
    assert anchors[0, 0] == 1


def test_a_batch_without_any_candidate_yields_one_invalid_block_a_row():
    batch = make_batch([[0, 0, 1, 0], [0, 0, 0, 0]])
    anchors, valid = draw_anchors(batch.loss_mask, 4)
    assert anchors.shape == (2, 1)
    assert not valid.any()
    blocks = lay_out(batch, anchors, valid, BlockSpec(3), MASK)
    assert blocks.weights.sum() == 0


@pytest.mark.parametrize("seed", range(3))
def test_slot_k_of_anchor_a_is_labelled_with_token_a_plus_1_plus_k_and_nothing_else(seed):
    """Cases 3 and 4: labels, previous tokens, teacher positions and contiguous supervision by a loop."""
    batch, spec = random_batch(seed), BlockSpec(block_size=4, decay_gamma=2.0)
    anchors, valid = draw_anchors(batch.loss_mask, 5, torch.Generator().manual_seed(seed))
    blocks = lay_out(batch, anchors, valid, spec, MASK)
    num_tokens = batch.input_ids.shape[1]
    for row in range(anchors.shape[0]):
        for index in range(anchors.shape[1]):
            anchor, alive = int(anchors[row, index]), bool(valid[row, index])
            for slot in range(spec.block_size):
                position = anchor + 1 + slot
                alive = alive and position < num_tokens and bool(batch.loss_mask[row, position])
                assert blocks.label_mask[row, index, slot] == alive
                if not alive:
                    assert blocks.weights[row, index, slot] == 0
                    continue
                assert blocks.labels[row, index, slot] == batch.input_ids[row, position]
                assert blocks.previous[row, index, slot] == batch.input_ids[row, position - 1]
                assert blocks.teacher_positions[row, index, slot] == position - 1
                assert blocks.weights[row, index, slot].item() == pytest.approx(2.718281828 ** (-slot / 2.0))


def test_block_inputs_are_the_anchor_then_masks_in_both_layouts():
    anchor, position = torch.tensor([[7]]), torch.tensor([[3]])
    ids, positions = block_inputs(anchor, position, BlockSpec(3), MASK)
    assert ids.tolist() == [[[7, MASK, MASK]]] and positions.tolist() == [[[3, 4, 5]]]
    ids, positions = block_inputs(anchor, position, BlockSpec(3, sample_from_anchor=False), MASK)
    assert ids.tolist() == [[[7, MASK, MASK, MASK]]] and positions.tolist() == [[[3, 4, 5, 6]]]


def test_only_the_masks_predict_in_the_one_plus_n_layout():
    hidden = torch.arange(4.0).view(1, 4, 1)
    assert output_slots(hidden, 3).flatten().tolist() == [1, 2, 3]
    assert output_slots(hidden[:, :3], 3).flatten().tolist() == [0, 1, 2]


@pytest.mark.parametrize("num_inputs", [3, 4])
def test_a_block_sees_itself_and_context_strictly_before_its_anchor(num_inputs):
    anchors, valid = torch.tensor([[1, 4], [3, 0]]), torch.tensor([[True, True], [True, False]])
    context_mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0]]).bool()
    rule = attention_rule(anchors, valid, num_inputs, context_mask)
    for row in range(2):
        for query in range(2 * num_inputs):
            block = query // num_inputs
            for key in range(6):
                sees = bool(valid[row, block] and key < anchors[row, block] and context_mask[row, key])
                assert rule[row, query, key] == sees
            for key in range(2 * num_inputs):
                assert rule[row, query, 6 + key] == (key // num_inputs == block)
    assert rule.any(-1).all(), "every query, filler too, must see at least one key"


def test_no_decay_means_equal_weights_and_the_formula_holds_otherwise():
    """Case 5."""
    assert BlockSpec(decay_gamma=None).weights_text.startswith("no decay")
    assert BlockSpec(decay_gamma=4.0).weights_text == "exp(-(k-1)/4) at position k"
    assert position_weights(4, None).tolist() == [1, 1, 1, 1]
    expected = [2.718281828 ** (-(k - 1) / 4) for k in (1, 2, 3)]
    assert position_weights(3, 4.0).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("decay", [0.8, 0.5, 1.0, 1])
def test_step_j_of_training_time_test_weighs_step_decay_to_the_j(length, decay):
    block = BlockSpec.training_time_test(length, decay, num_anchors=9)
    assert (block.block_size, block.num_anchors, block.sample_from_anchor) == (length, 9, True)
    expected = [decay**step for step in range(length)]
    assert position_weights(length, block.decay_gamma).tolist() == pytest.approx(expected)
    assert (block.decay_gamma is None) == (decay == 1)
    assert "divided by the sequence's number of anchors" in block.weights_text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"ttt_length": bad}, r"block\.ttt_length must be a whole number of at least 1")
            for bad in (0, -1, 2.5, "7")
        ),
        *(
            ({"step_decay": bad}, r"block\.step_decay must lie in \(0, 1\]")
            for bad in (0, -0.5, 1.01, float("nan"), "a")
        ),
        ({"num_anchors": 0}, r"block\.num_anchors"),
    ],
)
def test_a_training_time_test_without_steps_or_with_growing_weights_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        BlockSpec.training_time_test(**options)


def test_equal_sequences_divide_each_step_by_the_anchors_of_its_sequence():
    """A step whose label leaves the supervised span weighs 0 and is not made up for; a row without anchors stays at 0."""
    batch = make_batch([[0, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]])
    anchors, valid = draw_anchors(batch.loss_mask, 4, torch.Generator().manual_seed(0))
    plain = lay_out(batch, anchors, valid, BlockSpec(3, 4, decay_gamma=2.0), MASK).weights
    equal = lay_out(batch, anchors, valid, BlockSpec(3, 4, decay_gamma=2.0, equal_sequences=True), MASK).weights
    assert valid.sum(-1).tolist() == [4, 1, 0]
    for row, count in enumerate((4, 1, 1)):
        torch.testing.assert_close(equal[row], plain[row] / count)
    assert equal[:, :, 0].sum(-1).tolist() == pytest.approx([1.0, 1.0, 0.0])


def test_slots_of_a_chain_stand_at_the_pair_of_their_anchor_and_behind_it():
    assert slot_positions(torch.tensor([[4, 1, 0]]), 3).tolist() == [[[3, 4, 5], [0, 1, 2], [0, 1, 2]]]


def test_true_pairs_see_real_pairs_up_to_themselves():
    mask = torch.tensor([[1, 1, 0, 1, 0]]).bool()
    rule = pair_rule(mask)
    for query in range(5):
        for key in range(5):
            assert rule[0, query, key] == (key == query or (key < query and bool(mask[0, key])))


@pytest.mark.parametrize("num_queries", [1, 2])
def test_fewer_queries_than_inputs_see_the_whole_of_their_block(num_queries):
    anchors, valid = torch.tensor([[1, 4], [3, 0]]), torch.tensor([[True, True], [True, False]])
    context_mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0]]).bool()
    whole = attention_rule(anchors, valid, 3, context_mask).unflatten(1, (2, 3))
    few = attention_rule(anchors, valid, 3, context_mask, num_queries).unflatten(1, (2, num_queries))
    assert torch.equal(few, whole[:, :, :num_queries])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("block_size", 0), ("block_size", 2.5), ("block_size", "seven"), ("num_anchors", 0)),
        *(("decay_gamma", 0.0), ("decay_gamma", -1.0), ("decay_gamma", float("nan"))),
    ],
)
def test_values_outside_their_range_are_refused_by_name(field, value):
    """Case 5 and bad input of the block group."""
    with pytest.raises(ValueError, match=field):
        BlockSpec(**{field: value})
