"""Packing is a layout and nothing else: same anchors, same loss, same gradients, same weights as padded rows."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import fitting
from drafting import random_batch, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec, attention_rule, draw_anchors, lay_out, pair_rule, real_pairs
from draftlab.data.batches import BatchMaker, PackedMaker
from draftlab.data.datamodule import DraftDataModule
from draftlab.data.packing import fill_rows, into_rows, pack, padding_share, unpack
from draftlab.losses import Confidence, CrossEntropy, DraftLoss, SoftCrossEntropy, TotalVariation

LENGTHS = (7, 12, 5, 9, 2)
ROW = 14  # tokens: rows of one document and of several, with padding behind some
FAMILIES = {
    "dspark": ("markov", BlockSpec(3, 4)),
    "dspark, 1+N": ("rnn", BlockSpec(3, 4, sample_from_anchor=False)),
    "dflash": ("dflash", BlockSpec(4, 3)),
    "dflash, 1+N": ("dflash", BlockSpec(4, 3, sample_from_anchor=False)),
    "eagle3": ("eagle3", BlockSpec.training_time_test(3, 0.8, 4)),
    "mtp": ("mtp", BlockSpec(2, 4)),
}


def batch_with_holes():
    """Documents of LENGTHS of which some are supervised from their first token on, and one has a hole."""
    batch = random_batch(small_spec(), LENGTHS)
    mask = batch.attention_mask.clone()
    mask[1, 0] = mask[3, 4] = False
    return dataclasses.replace(
        batch, loss_mask=mask, log_normalizer=torch.rand(mask.shape) + 5, sample_ids=tuple("abcde")
    )


def test_rows_hold_every_document_once_whole_and_none_too_much():
    lengths = torch.randint(1, 100, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    rows = fill_rows(lengths, 128)
    assert sorted(document for row in rows for document in row) == list(range(200))
    filled = [sum(lengths[document] for document in row) for row in rows]
    assert max(filled) <= 128 and len(rows) <= 1.1 * sum(lengths) / 128 + 1
    with pytest.raises(ValueError, match=r"129 tokens does not fit into a row of data.packing=128"):
        fill_rows([129], 128)


def test_packed_rows_hold_the_tokens_of_their_documents_and_unpacking_gives_the_batch_back():
    batch = batch_with_holes()
    packed = pack(batch, ROW)
    assert packed.input_ids.shape == (3, 14) and packed.sample_ids == batch.sample_ids
    for document, length in enumerate(LENGTHS):
        place = packed.document_ids == document
        assert packed.positions[place].tolist() == list(range(length))
        for name in ("input_ids", "loss_mask", "features", "last_hidden", "log_normalizer"):
            assert torch.equal(getattr(packed, name)[place], getattr(batch, name)[document, :length])
    assert int(packed.attention_mask.sum()) == sum(LENGTHS) == int((packed.document_ids >= 0).sum())
    back = unpack(packed)
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, torch.Tensor):
            real = batch.attention_mask
            assert torch.equal(getattr(back, field.name)[real], value[real])
    assert back.document_ids is None and torch.equal(back.attention_mask, batch.attention_mask)
    again = into_rows(back, packed.document_ids)
    assert torch.equal(again.features, packed.features) and torch.equal(again.document_ids, packed.document_ids)


def drawn_blocks(batch, spec):
    anchors, valid = draw_anchors(
        batch.loss_mask, spec.num_anchors, torch.Generator().manual_seed(3), batch.document_ids
    )
    return lay_out(batch, anchors, valid, spec, mask_token_id=3)


@pytest.mark.parametrize("num_anchors", [2, 50])
def test_every_document_gets_the_anchors_and_blocks_of_its_padded_row(num_anchors):
    """Sorted, in budget, with the same supervision; no block is filler where a row has as many as the fullest."""
    batch, spec = batch_with_holes(), BlockSpec(3, num_anchors, equal_sequences=True)
    packed = pack(batch, ROW)
    padded_blocks, packed_blocks = drawn_blocks(batch, spec), drawn_blocks(packed, spec)
    assert int(packed_blocks.valid.sum()) == int(padded_blocks.valid.sum())
    for row, valid in zip(packed_blocks.anchors, packed_blocks.valid, strict=True):
        assert row[valid].tolist() == sorted(set(row[valid].tolist())) and not row[~valid].any()
    owner = packed.document_ids.gather(1, packed_blocks.anchors).masked_fill(~packed_blocks.valid, -1)
    for document in range(len(LENGTHS)):
        mine, theirs = owner == document, padded_blocks.valid[document]
        assert mine.sum() <= num_anchors
        for name in ("input_ids", "positions", "labels", "label_mask", "weights"):
            assert torch.equal(getattr(packed_blocks, name)[mine], getattr(padded_blocks, name)[document][theirs]), name
        kept = padded_blocks.label_mask[document][theirs]
        assert torch.equal(packed_blocks.previous[mine][kept], padded_blocks.previous[document][theirs][kept])
        places = (packed_blocks.anchors - packed_blocks.starts)[mine]
        assert torch.equal(places, padded_blocks.anchors[document][theirs])


def test_no_block_is_supervised_beyond_its_document_and_none_starts_on_its_last_token():
    """All is supervised, also the first token of a document that follows another."""
    batch = pack(dataclasses.replace(batch_with_holes(), loss_mask=batch_with_holes().attention_mask), ROW)
    blocks = drawn_blocks(batch, BlockSpec(5, 50))
    last = batch.document_ids.gather(1, blocks.anchors)
    for slot in range(5):
        inside = blocks.label_mask[..., slot]
        label_at = (blocks.anchors + slot + 1).clamp_max(batch.input_ids.shape[1] - 1)
        assert torch.equal(batch.document_ids.gather(1, label_at)[inside], last[inside])
    assert blocks.label_mask[..., 0][blocks.valid].all()


def test_attention_stays_in_the_document_by_a_loop_over_all_pairs():
    batch = pack(batch_with_holes(), ROW)
    blocks = drawn_blocks(batch, BlockSpec(3, 50))
    rule = attention_rule(blocks.anchors, blocks.valid, 1, batch.attention_mask, starts=blocks.starts)
    pairs = pair_rule(real_pairs(batch), batch.document_ids[:, :-1])
    for row, ids in enumerate(batch.document_ids.tolist()):
        for index, anchor in enumerate(blocks.anchors[row].tolist()):
            for token in range(len(ids)):
                seen = bool(blocks.valid[row, index]) and token < anchor and ids[token] == ids[anchor]
                assert bool(rule[row, index, token]) == seen
        for asking in range(len(ids) - 1):
            for asked in range(len(ids) - 1):
                same = ids[asked] == ids[asking] == ids[asked + 1] != -1
                assert bool(pairs[row, asking, asked]) == (asked == asking or (asked < asking and same))


def loss_for(drafter):
    if not drafter.has_confidence:
        return DraftLoss({"ce": CrossEntropy(0.5), "soft": SoftCrossEntropy(1.0)})
    return DraftLoss(
        {"ce": CrossEntropy(0.1), "tv": TotalVariation(0.9), "confidence": Confidence(1.0)}, chunk_blocks=3
    )


@pytest.mark.parametrize("rows", ["one row", "rows of 14"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_loss_and_gradients_are_those_of_padded_rows_in_every_family(name, rows):
    """In float64; RoPE angles are float32, but of the same positions, so 1e-12 holds."""
    head, block = FAMILIES[name]
    results = []
    for packing in (None, ROW if rows != "one row" else sum(LENGTHS)):
        drafter = tiny_drafter(head, block)
        batch = batch_with_holes() if packing is None else pack(batch_with_holes(), packing)
        assert rows != "one row" or packing is None or len(batch.input_ids) == 1
        blocks = drawn_blocks(batch, block)
        report = loss_for(drafter)(drafter, drafter(batch, blocks), blocks, batch)
        report.numerator.backward()
        gradients = {key: p.grad for key, p in drafter.named_parameters() if p.grad is not None}
        results.append((report, gradients))
    (padded, expected), (packed, got) = results
    # Weights of slots are float32, and sums over slots run in another order.
    torch.testing.assert_close(packed.numerator, padded.numerator, rtol=2e-6, atol=0)
    torch.testing.assert_close(packed.weight, padded.weight, rtol=1e-6, atol=0)
    assert packed.num_slots == padded.num_slots and set(got) == set(expected) and len(got) > 5
    for key, gradient in expected.items():
        torch.testing.assert_close(got[key], gradient, rtol=1e-5, atol=1e-6 * gradient.abs().max().item())


@pytest.fixture(scope="module")
def target():
    return fitting.fitting_target()


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return fitting.write_answers(tmp_path_factory.mktemp("answers"))


@pytest.mark.parametrize("name", ["dspark", *fitting.CHAINS])
def test_a_packed_run_reaches_the_weights_of_the_plain_one(target, answers, tmp_path, name):
    """Six steps over the data's own loaders, two anchors a conversation, the target online."""
    weights = []
    for packing in (None, 256):
        data = fitting.answers_data(target, answers, max_length=64, packing=packing)
        module = fitting.named_module(target, name)
        module.drafter.block = dataclasses.replace(module.drafter.block, num_anchors=2)
        fitting.silent_trainer(tmp_path, max_steps=6).fit(module, data)
        weights.append(fitting.weights_of(module))
    start = fitting.weights_of(fitting.named_module(target, name))
    assert (weights[0]["norm.weight"] - start["norm.weight"]).abs().max() > 1e-3
    for key, tensor in weights[0].items():  # AdamW turns rounding of a gradient near 0 into 1 % of a step of 1e-2
        torch.testing.assert_close(weights[1][key], tensor, rtol=1e-3, atol=1e-4)


def test_the_datamodule_packs_training_batches_only_and_says_what_is_padding(target, answers, capsys):
    data = fitting.answers_data(target, answers, max_length=64, packing=128)
    assert "% in packed rows (data.packing=128)" in capsys.readouterr().out
    batches = list(data.train_dataloader())
    assert all(batch.document_ids is not None and batch.input_ids.shape[1] <= 128 for batch in batches)
    assert sum(len(batch.sample_ids) for batch in batches) == len(data.train_indices)
    assert all(batch.document_ids is None for batch in data.val_dataloader())
    fitting.answers_data(target, answers)
    assert "(data.packing=null)" in capsys.readouterr().out


def test_a_packed_batch_without_samples_has_nothing_to_learn_and_a_finite_zero_loss(target, answers):
    """Case 7."""
    data = fitting.answers_data(target, answers)
    batch = PackedMaker(BatchMaker(data.samples, data.train_indices, None), 512)([])
    module = fitting.named_module(target, "dspark")
    _, _, report = module.compute(batch, 0, 0)
    report.numerator.backward()
    assert report.numerator.item() == 0 and not report.num_slots
    assert all(p.grad is not None and not p.grad.any() for p in module.drafter.parameters())


def test_padding_is_what_no_conversation_fills():
    assert padding_share([[4, 2], [3]]) == pytest.approx(2 / 11)
    assert padding_share([[4, 2], [3]], 6) == 0
    assert padding_share([[4, 2, 1]], 4) == pytest.approx(1 / 8)
    assert padding_share([]) == 0


@pytest.mark.parametrize("packing", [511, 0, "all"])
def test_rows_shorter_than_a_conversation_may_be_are_refused(packing):
    with pytest.raises(
        ValueError, match=r"data.packing must be null or the tokens of a row, at least data.max_length=512"
    ):
        DraftDataModule("x", packing=packing)
