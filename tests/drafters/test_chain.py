"""Eagle3 and MTP in training: equal to their loop-written twin and to the full Training-Time Test, and rightly aligned."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from drafting import FAMILIES, blocks_at, make_head, random_batch, random_ends, rows_of, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec, draw_anchors, lay_out
from draftlab.drafters import MTP, Eagle3
from draftlab.drafters.attention import BlockAttention
from draftlab.losses import CrossEntropy, DraftLoss, SoftCrossEntropy
from reference_chain import chain_hidden, full_ttt, target_states

chains = pytest.mark.parametrize("name", ["eagle3", "mtp"])
depths = pytest.mark.parametrize("num_layers", [1, 3])
G = 4
ANCHORS = [[2, 5, 8], [1, 3, 6]]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # RoPE angles are float32 in the fast path
READS = {"eagle3": "features", "mtp": "last_hidden"}  # what a family reads of the target


def chain_of(name, num_layers=1, block=None, **options):
    return tiny_drafter(name, block=block or BlockSpec(G, 3), num_layers=num_layers, **options)


def changed_at(batch, name, position):
    """The batch with another value of what the family reads, at one position."""
    values = getattr(batch, READS[name]).clone()
    values[:, position] += 1.0
    return dataclasses.replace(batch, **{READS[name]: values})


@chains
@depths
def test_hidden_states_equal_the_loop_written_twin(name, num_layers):
    drafter = chain_of(name, num_layers, num_heads=6, num_kv_heads=2, head_dim=4)
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, ANCHORS)
    output = drafter(batch, blocks)
    assert output.confidence_logits is None
    for row, anchors in enumerate(ANCHORS):
        states = target_states(drafter, batch.features[row], batch.last_hidden[row])
        for index, anchor in enumerate(anchors):
            previous = blocks.previous[row, index].tolist()
            expected = chain_hidden(drafter, drafter.ends.embedding, states, batch.input_ids[row], anchor, previous)
            torch.testing.assert_close(output.hidden[row, index], expected, **CLOSE)


@chains
@depths
def test_blocks_at_every_position_are_the_full_training_time_test(name, num_layers):
    """Sampled anchors only leave positions out: step j of pair t is slot j of anchor t+1."""
    drafter = chain_of(name, num_layers, qk_norm=name == "eagle3")
    batch = random_batch(drafter.spec, lengths=(12,))
    anchors = list(range(1, 12))
    hidden = drafter(batch, blocks_at(batch, drafter, [anchors])).hidden[0]
    states = target_states(drafter, batch.features[0], batch.last_hidden[0])
    full = full_ttt(drafter, states, batch.input_ids[0], G)
    for anchor in anchors:
        for slot in range(min(G, 12 - anchor)):
            torch.testing.assert_close(hidden[anchor - 1, slot], full[slot, anchor - 1], **CLOSE)


@chains
@depths
def test_a_chain_reads_the_target_before_its_anchor_and_nothing_from_it_on(name, num_layers):
    """Case 2, in training: every position is changed in turn, and every slot counts."""
    drafter = chain_of(name, num_layers)
    batch = random_batch(drafter.spec)
    anchor = 5
    blocks = blocks_at(batch, drafter, [[anchor], [anchor]])
    before = drafter(batch, blocks).hidden
    for position in range(9):
        after = drafter(changed_at(batch, name, position), blocks).hidden
        changed = (after - before).abs().amax(dim=(0, 1, 3)) > 1e-7
        assert changed.tolist() == [position < anchor] * G, f"target at {position} with the anchor at {anchor}"


@chains
def test_only_slot_0_is_fed_with_the_target_directly(name):
    """Without attention the state before the anchor is all that a chain knows of the target."""
    drafter = chain_of(name)
    for layer in drafter.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, [[5], [5]])
    before = drafter(batch, blocks).hidden
    for position in range(9):
        after = drafter(changed_at(batch, name, position), blocks).hidden
        assert bool(((after - before).abs() > 1e-7).any()) == (position == 4)


@chains
@depths
def test_a_token_reaches_the_slots_from_its_own_on_and_the_first_token_none(name, num_layers):
    """The state at t goes with token t+1: token 0 is in no pair, and token a+k enters at slot k."""
    drafter = chain_of(name, num_layers)
    batch = random_batch(drafter.spec)
    anchor = 5
    before = drafter(batch, blocks_at(batch, drafter, [[anchor], [anchor]])).hidden
    for position in range(anchor + G + 1):
        ids = batch.input_ids.clone()
        ids[:, position] = (ids[:, position] + 1) % drafter.spec.vocab_size
        other = dataclasses.replace(batch, input_ids=ids)
        after = drafter(other, blocks_at(other, drafter, [[anchor], [anchor]])).hidden
        changed = (after - before).abs().amax(dim=(0, 1, 3)) > 1e-7
        assert changed.tolist() == [0 < position <= anchor + slot for slot in range(G)], f"token {position}"


@chains
def test_blocks_padding_other_rows_and_masked_tokens_change_nothing(name):
    drafter = chain_of(name, num_layers=2)
    batch = random_batch(drafter.spec, lengths=(12, 9))
    together = drafter(batch, blocks_at(batch, drafter, ANCHORS)).hidden
    for index in range(3):
        alone = drafter(batch, blocks_at(batch, drafter, [[row[index]] for row in ANCHORS])).hidden
        torch.testing.assert_close(together[:, index : index + 1], alone)
    row = rows_of(batch, [1])
    names = ("input_ids", "attention_mask", "loss_mask", "features", "last_hidden")
    short = dataclasses.replace(row, **{key: getattr(row, key)[:, :9] for key in names})
    blocks = blocks_at(short, drafter, ANCHORS[1:])
    labelled = blocks.label_mask  # a slot behind them is fed with padding
    torch.testing.assert_close(together[1:][labelled], drafter(short, blocks).hidden[labelled])
    mask = batch.attention_mask.clone()
    mask[:, 3] = False
    holed = dataclasses.replace(batch, attention_mask=mask)
    blocks = blocks_at(holed, drafter, [[7], [7]])
    torch.testing.assert_close(drafter(holed, blocks).hidden, drafter(changed_at(holed, name, 3), blocks).hidden)


@pytest.mark.parametrize("blocks_per_group", [1, 2, 8])
def test_one_asking_slot_a_block_attends_as_the_last_input_of_whole_blocks(blocks_per_group):
    anchors = torch.tensor([[1, 4, 4, 6, 0], [7, 2, 5, 0, 3]])
    valid = torch.tensor([[True, True, True, True, False], [True] * 5])
    context_mask = torch.arange(9) < torch.tensor([[9], [8]])
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(2, 4, 15, 8, generator=generator)
    keys, values = torch.randn(2, 2, 2, 15, 8, generator=generator)
    context = torch.randn(2, 2, 2, 9, 8, generator=generator)
    whole = BlockAttention(anchors, valid, 3, context_mask)(queries, keys, values, *context)
    last = BlockAttention(anchors, valid, 3, context_mask, blocks_per_group, num_queries=1)
    torch.testing.assert_close(last(queries[:, :, 2::3], keys, values, *context), whole[:, :, 2::3])


@chains
@depths
def test_an_anchor_at_the_first_token_is_fed_with_zeros_and_fillers_stay_finite(name, num_layers):
    drafter = chain_of(name, num_layers)
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, [[0, 0], [0, 0]])
    blocks = dataclasses.replace(blocks, valid=torch.tensor([[True, False], [False, False]]))
    output = drafter(batch, blocks)
    output.hidden.sum().backward()
    assert output.hidden.isfinite().all()
    assert all(p.grad.isfinite().all() for p in drafter.parameters() if p.grad is not None)
    # With a state of zeros one token earlier it is an ordinary anchor; RoPE sees distances only.
    zeros = {READS[name]: torch.zeros_like(getattr(batch, READS[name]))}
    late = dataclasses.replace(batch, input_ids=batch.input_ids.roll(1, dims=1), **zeros)
    torch.testing.assert_close(output.hidden[0, 0], drafter(late, blocks_at(late, drafter, [[1], [1]])).hidden[0, 0])


@chains
@depths
def test_every_weight_trains_and_the_targets_ends_do_not(name, num_layers):
    drafter = chain_of(name, num_layers)
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, ANCHORS)
    hidden = drafter(batch, blocks).hidden.flatten(0, 1)
    torch.logsumexp(drafter.draft_logits(hidden, blocks.previous.flatten(0, 1)), -1).sum().backward()
    assert [name for name, p in drafter.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert not drafter.ends.embedding.requires_grad and not drafter.ends.head.requires_grad


@chains
@pytest.mark.parametrize("chunk_blocks", [None, 2])
def test_a_batch_without_anchors_gives_a_finite_zero_attached_to_every_parameter(name, chunk_blocks):
    """Cases 7 and 8: under DDP every parameter needs a gradient, whichever terms are on."""
    drafter = chain_of(name, num_layers=2)
    batch = random_batch(drafter.spec, lengths=(6, 6))
    batch = dataclasses.replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    blocks = lay_out(batch, *draw_anchors(batch.loss_mask, 3), drafter.block, drafter.spec.mask_token_id)
    for term in (CrossEntropy, SoftCrossEntropy):
        drafter.zero_grad()
        report = DraftLoss({"term": term(1.0)}, chunk_blocks)(drafter, drafter(batch, blocks), blocks, batch)
        report.numerator.backward()
        assert report.numerator == 0 and report.weight == 0
        assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in drafter.parameters())


def test_eagle3_trains_on_cross_entropy_without_teacher_states():
    """Case 8; MTP reads them itself."""
    drafter = chain_of("eagle3")
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, ANCHORS)
    without = dataclasses.replace(batch, last_hidden=None)
    report = DraftLoss({"ce": CrossEntropy(1.0)})(drafter, drafter(without, blocks), blocks, without)
    assert report.numerator > 0 and not report.accept_rate.any()


def test_a_single_token_and_a_batch_of_bfloat16_features_under_autocast_train():
    drafter = chain_of("eagle3", num_layers=2, dtype=torch.float32)
    batch = random_batch(drafter.spec, dtype=torch.float32)
    exact = drafter(batch, blocks_at(batch, drafter, ANCHORS)).hidden
    rough = dataclasses.replace(batch, features=batch.features.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = drafter(rough, blocks_at(rough, drafter, ANCHORS)).hidden
    hidden.float().square().mean().backward()
    assert (hidden.float() - exact).abs().mean() < 0.1 * exact.abs().mean()
    single = random_batch(drafter.spec, lengths=(1,), dtype=torch.float32)
    assert drafter(single, blocks_at(single, drafter, [[0]])).hidden.isfinite().all()


@chains
def test_embedding_scale_and_soft_cap_of_the_target_are_used(name):
    spec = small_spec(embedding_scale=2.0, logit_softcap=1.5)
    drafter = chain_of(name, spec=spec).attach(random_ends(spec, scale=5.0, embedding_scale=2.0, logit_softcap=1.5))
    batch = random_batch(spec)
    blocks = blocks_at(batch, drafter, [[4], [4]])
    hidden = drafter(batch, blocks).hidden
    states = target_states(drafter, batch.features[0], batch.last_hidden[0])
    embedding, previous = 2.0 * drafter.ends.embedding, blocks.previous[0, 0].tolist()
    expected = chain_hidden(drafter, embedding, states, batch.input_ids[0], 4, previous)
    torch.testing.assert_close(hidden[0, 0], expected, **CLOSE)
    raw = expected @ drafter.ends.head.T
    logits = drafter.draft_logits(hidden[0], blocks.previous[0])[0]
    torch.testing.assert_close(logits, 1.5 * torch.tanh(raw / 1.5), **CLOSE)


def test_checkpoints_have_the_names_of_released_ones_and_nothing_of_the_target():
    """Case 14; llama.cpp and vLLM read Eagle3's layer under these names."""
    attention = {f"self_attn.{kind}_proj.weight" for kind in "qkvo"}
    layer = attention | {f"mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")} | {"input_layernorm.weight"}
    layer |= {"post_attention_layernorm.weight"}
    norms = {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}
    eagle3, mtp = chain_of("eagle3").state_dict(), chain_of("mtp").state_dict()
    own = {f"layers.0.{key}" for key in layer | {"hidden_norm.weight"}}
    assert set(eagle3) == {"fc.weight", "norm.weight"} | own
    assert eagle3["layers.0.self_attn.k_proj.weight"].shape == (12, 2 * 12) and eagle3["fc.weight"].shape == (12, 24)
    ends = {"enorm.weight", "hnorm.weight", "eh_proj.weight", "norm.weight"}
    assert set(mtp) == ends | {f"layers.0.{key}" for key in layer | norms}


@pytest.mark.parametrize("family", [Eagle3, MTP])
@pytest.mark.parametrize("head", ["markov", "gated", "rnn"])
def test_a_sequential_head_and_the_layout_with_masks_are_refused(family, head):
    with pytest.raises(ValueError, match=r"takes head=none, got \w+Head; use drafter=dspark"):
        family(small_spec(), BlockSpec(4, 3), make_head(head))
    with pytest.raises(ValueError, match=r"block\.sample_from_anchor must be true.*block=ttt7"):
        family(small_spec(), BlockSpec(4, 3, sample_from_anchor=False))


@chains
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, r"drafter\.num_layers must be at least 1, got 0"),
        ({"draft_vocab_size": 24}, r"drafter\.draft_vocab_size must lie in 1\.\.23"),
        ({"num_heads": 5}, r"drafter\.num_heads \(5\) must be a multiple"),
        ({"num_head": 4}, r"unknown drafter setting num_head"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(name, options, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES[name](small_spec(), BlockSpec(4, 3), **options)


@pytest.mark.parametrize("ids", [(0, 9), (-2, 1), (0, 3)])
def test_target_layers_that_do_not_exist_are_refused_for_every_family(ids):
    with pytest.raises(ValueError, match=r"target\.target_layer_ids must"):
        small_spec(target_layer_ids=ids)


@chains
def test_missing_or_wrongly_sized_inputs_are_refused(name):
    drafter = chain_of(name)
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, ANCHORS)
    narrow = getattr(batch, READS[name])[..., 1:]
    for value, message in ((None, "no (target features|last hidden states)"), (narrow, "wide")):
        with pytest.raises(ValueError, match=message):
            drafter(dataclasses.replace(batch, **{READS[name]: value}), blocks)
