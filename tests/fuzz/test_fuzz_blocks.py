"""Any documents in any rows: anchors are sorted and within their budget, and no slot, context or pair crosses a document's end.

The twin goes over the tokens of every row one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from draftlab.blocks import BlockSpec, attention_rule, draw_anchors, lay_out, pair_rule, real_pairs
from draftlab.data.packing import pack, unpack
from draftlab.types import Batch

MASK = 999


@dataclass
class Case:
    """Documents in padded rows and in packed ones."""

    documents: list[list[bool]]  # supervised or not, token by token
    padded: Batch
    packed: Batch
    spec: BlockSpec
    seed: int

    def draw(self, batch: Batch):
        """Anchors and their validity, from the same seed each time."""
        generator = torch.Generator().manual_seed(self.seed)
        return draw_anchors(batch.loss_mask, self.spec.num_anchors, generator, batch.document_ids)


@st.composite
def cases(draw):
    masks = st.lists(st.booleans() | st.just(True), min_size=1, max_size=10)
    documents = draw(st.lists(masks, min_size=1, max_size=6))
    lengths = [len(mask) for mask in documents]
    ids = pad_sequence([100 * d + torch.arange(n) for d, n in enumerate(lengths)], batch_first=True)
    real = torch.arange(ids.shape[1]) < torch.tensor(lengths).unsqueeze(1)
    loss_mask = pad_sequence([torch.tensor(mask) for mask in documents], batch_first=True)
    padded = Batch(ids, real, loss_mask, features=((ids + 0.5) * real).unsqueeze(-1))
    spec = BlockSpec(
        draw(st.integers(1, 5)),
        draw(st.integers(1, 12)),
        draw(st.none() | st.floats(0.1, 10)),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    return Case(
        documents, padded, pack(padded, max(lengths) + draw(st.integers(0, 12))), spec, draw(st.integers(0, 99))
    )


def places(case: Case, batch: Batch) -> dict[tuple[int, int], tuple[int, int]]:
    """(document, place in it) of every real token by (row, index)."""
    if batch.document_ids is None:
        return {(d, t): (d, t) for d, mask in enumerate(case.documents) for t in range(len(mask))}
    found, seen = {}, dict.fromkeys(range(len(case.documents)), 0)
    for row, line in enumerate(batch.document_ids.tolist()):
        for index, document in enumerate(line):
            if document >= 0:
                found[row, index] = document, seen[document]
                seen[document] += 1
    return found


@given(cases())
def test_every_token_has_one_place_in_the_packed_rows_and_unpacking_gives_the_batch_back(case):
    found = places(case, case.packed)
    assert sorted(found.values()) == [(d, t) for d, mask in enumerate(case.documents) for t in range(len(mask))]
    for (row, index), (document, place) in found.items():
        assert case.packed.input_ids[row, index] == 100 * document + place
        assert case.packed.loss_mask[row, index] == case.documents[document][place]
        assert case.packed.positions[row, index] == place and case.packed.starts[row, index] == index - place
    assert not case.packed.loss_mask[~case.packed.attention_mask].any()
    back = unpack(case.packed)
    for name in ("input_ids", "attention_mask", "loss_mask", "features"):
        assert torch.equal(getattr(back, name), getattr(case.padded, name)), name


@given(cases())
def test_anchors_are_sorted_within_their_documents_budget_and_the_same_padded_and_packed(case):
    drawn = {}
    for batch in (case.padded, case.packed):
        anchors, valid = case.draw(batch)
        found, chosen = places(case, batch), []
        for row, (indices, kept) in enumerate(zip(anchors.tolist(), valid.tolist(), strict=True)):
            real = [index for index, ok in zip(indices, kept, strict=True) if ok]
            assert real == sorted(set(real)) and kept == sorted(kept, reverse=True), "filler stands at the right"
            chosen += [found[row, index] for index in real]
        drawn[id(batch)] = sorted(chosen)
    once, again = drawn.values()
    assert once == again
    for document, mask in enumerate(case.documents):
        candidates = [t for t in range(len(mask) - 1) if mask[t] and mask[t + 1]]
        own = [place for d, place in once if d == document]
        assert set(own) <= set(candidates) and len(own) == min(len(candidates), case.spec.num_anchors)


@given(cases())
def test_slots_stay_inside_their_document_and_equal_the_loop(case):
    for batch in (case.padded, case.packed):
        anchors, valid = case.draw(batch)
        blocks, found = lay_out(batch, anchors, valid, case.spec, MASK), places(case, batch)
        budget = {}
        for row, index in valid.nonzero().tolist():
            document = found[row, int(anchors[row, index])][0]
            budget[document] = budget.get(document, 0) + 1
        for row in range(anchors.shape[0]):
            for n in range(anchors.shape[1]):
                alive = bool(valid[row, n])
                document, place = found[row, int(anchors[row, n])] if alive else (-1, 0)
                for slot in range(case.spec.block_size):
                    label = (row, int(anchors[row, n]) + slot + 1)
                    alive = alive and found.get(label, (-2,))[0] == document
                    alive = alive and case.documents[document][found[label][1]]
                    assert blocks.label_mask[row, n, slot] == alive
                    if not alive:
                        assert blocks.weights[row, n, slot] == 0 and blocks.labels[row, n, slot] == 0
                        continue
                    assert blocks.labels[row, n, slot] == 100 * document + place + slot + 1
                    assert blocks.previous[row, n, slot] == 100 * document + place + slot
                    assert blocks.teacher_positions[row, n, slot] == label[1] - 1
                    weight = 1.0 if case.spec.decay_gamma is None else math.exp(-slot / case.spec.decay_gamma)
                    weight /= budget[document] if case.spec.equal_sequences else 1
                    torch.testing.assert_close(float(blocks.weights[row, n, slot]), weight, rtol=1e-5, atol=1e-30)
                if valid[row, n]:
                    assert blocks.input_ids[row, n].tolist() == [100 * document + place] + [MASK] * (
                        case.spec.num_inputs - 1
                    )
                    assert blocks.positions[row, n].tolist() == list(range(place, place + case.spec.num_inputs))


@given(cases())
def test_the_attention_rule_equals_its_loop_and_never_looks_into_another_document(case):
    for batch in (case.padded, case.packed):
        anchors, valid = case.draw(batch)
        inputs, width = case.spec.num_inputs, batch.input_ids.shape[1]
        starts = batch.starts.gather(1, anchors)
        rule = attention_rule(anchors, valid, inputs, batch.attention_mask, starts=starts).tolist()
        found = places(case, batch)
        for row in range(anchors.shape[0]):
            for query in range(anchors.shape[1] * inputs):
                block = query // inputs
                own = found.get((row, int(anchors[row, block])), (-1, 0))
                expected = [
                    bool(valid[row, block]) and found.get((row, t), (-2, 0))[0] == own[0] and found[row, t][1] < own[1]
                    for t in range(width)
                ] + [key // inputs == block for key in range(anchors.shape[1] * inputs)]
                assert rule[row][query] == expected


@given(cases())
def test_pairs_of_a_chain_are_real_causal_and_of_one_document(case):
    for batch in (case.padded, case.packed):
        found, pairs = places(case, batch), real_pairs(batch)
        ids = None if batch.document_ids is None else batch.document_ids[:, :-1]
        rule = pair_rule(pairs, ids)
        for row in range(pairs.shape[0]):
            real = [
                (row, t) in found and found.get((row, t + 1), (-1,))[0] == found[row, t][0]
                for t in range(pairs.shape[1])
            ]
            assert pairs[row].tolist() == real
            for query, key in torch.cartesian_prod(*[torch.arange(pairs.shape[1])] * 2).tolist():
                same = (
                    batch.document_ids is None or found.get((row, query), (-1,))[0] == found.get((row, key), (-1,))[0]
                )
                assert rule[row, query, key] == (key == query or (key < query and real[key] and same))
