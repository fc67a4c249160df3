"""Decoding side of a drafter: the logits of training, drawn left to right, over a cache of rows of unequal length."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from drafting import LAYOUTS, blocks_at, context_of, random_batch, rows_of, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec
from draftlab.sampling import Sampling, probs
from enumeration import Enumeration
from reference import block_hidden, unrolled_bias

layouts = pytest.mark.parametrize("sample_from_anchor", LAYOUTS.values(), ids=LAYOUTS)
heads = pytest.mark.parametrize("head", ["markov", "gated", "rnn", "none", "dflash"])
G = 4
LENGTHS, ANCHORS = (14, 10, 12), (8, 1, 5)
CUTS = Sampling(temperature=0.7, top_k=6, top_p=0.9)


def drafter_of(head="markov", sample_from_anchor=True, **options):
    return tiny_drafter(head, block=BlockSpec(G, 3, sample_from_anchor=sample_from_anchor), **options)


def propose(drafter, batch, anchors=ANCHORS, sampling=CUTS, seed=0, **options):
    cache = drafter.start(len(anchors), max_length=40)
    context = context_of(batch, [0] * len(anchors), anchors)
    return drafter.propose(context, cache, sampling, torch.Generator().manual_seed(seed), **options)


def training_logits(drafter, batch, proposal, anchors=ANCHORS):
    """Logits and confidences of the training pass over the same blocks, teacher-forced with the proposed tokens."""
    blocks = blocks_at(batch, drafter, [[anchor] for anchor in anchors])
    previous = torch.cat([blocks.input_ids[:, 0, :1], proposal.tokens[:, :-1]], dim=1)
    output = drafter(batch, dataclasses.replace(blocks, previous=previous.unsqueeze(1)))
    return drafter.draft_logits(output.hidden[:, 0], previous), output.confidence_logits


@heads
@layouts
def test_drafting_uses_the_logits_and_confidences_of_training(head, sample_from_anchor):
    drafter = drafter_of(head, sample_from_anchor)
    batch = random_batch(drafter.spec, LENGTHS)
    proposal = propose(drafter, batch)
    logits, confidence_logits = training_logits(drafter, batch, proposal)
    torch.testing.assert_close(proposal.draft_probs, probs(logits, CUTS), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(proposal.draft_top, torch.softmax(logits, -1).amax(-1), rtol=1e-5, atol=1e-7)
    if drafter.has_confidence:
        expected = torch.sigmoid(confidence_logits[:, 0]).float()
        torch.testing.assert_close(proposal.confidence, expected, rtol=1e-5, atol=1e-6)
    else:
        assert proposal.confidence is None


@heads
def test_the_most_likely_token_is_taken_at_temperature_zero_with_a_one_hot_law(head):
    drafter = drafter_of(head)
    batch = random_batch(drafter.spec, LENGTHS)
    proposal = propose(drafter, batch, sampling=Sampling(temperature=0.0))
    logits, _ = training_logits(drafter, batch, proposal)
    assert torch.equal(proposal.tokens, logits.argmax(-1))
    one_hot = torch.nn.functional.one_hot(proposal.tokens, drafter.spec.vocab_size).to(proposal.draft_probs.dtype)
    assert torch.equal(proposal.draft_probs, one_hot)


@pytest.mark.parametrize("head", ["markov", "gated", "rnn"])
@layouts
def test_greedy_drafts_equal_the_loop_written_drafter(head, sample_from_anchor):
    """Backbone twin and unrolled head together pick the same tokens, row by row."""
    drafter = drafter_of(head, sample_from_anchor)
    batch = random_batch(drafter.spec, LENGTHS)
    proposal = propose(drafter, batch, sampling=Sampling(temperature=0.0))
    for row, anchor in enumerate(ANCHORS):
        first = int(batch.input_ids[row, anchor])
        masks = [drafter.spec.mask_token_id] * (drafter.block.num_inputs - 1)
        hidden = block_hidden(drafter, drafter.ends.embedding, batch.features[row], [first, *masks], anchor)
        base, previous = hidden @ drafter.ends.head.T, [first]
        for slot in range(G):
            bias = unrolled_bias(drafter.markov_head, hidden[: slot + 1], torch.tensor(previous))[slot]
            previous.append(int((base[slot] + bias).argmax()))
        assert proposal.tokens[row].tolist() == previous[1:]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.8), Sampling(1.3, top_k=2)], ids=str)
@pytest.mark.parametrize("head", ["markov", "rnn", "none"])
def test_draft_probs_are_the_law_that_tokens_are_drawn_from(head, sampling):
    """Case 25, by enumeration of all outcomes: the joint law of the block is the product of the stated laws."""
    vocab, gamma = 4, 3
    spec = small_spec(vocab_size=vocab)
    drafter = tiny_drafter(head, block=BlockSpec(gamma, 3), spec=spec)
    rows = [0] * vocab**gamma + [1] * vocab**gamma
    batch = rows_of(random_batch(spec, (8, 6)), rows)
    anchors = [(5, 2)[row] for row in rows]
    paths = Enumeration(vocab**gamma, copies=2)
    with paths.running():
        proposal = propose(drafter, batch, anchors, sampling)
    possible = paths.weights > 0
    assert paths.weights.sum() == pytest.approx(2.0), "both rows reached all of their outcomes"
    stated = proposal.draft_probs.gather(-1, proposal.tokens.unsqueeze(-1)).squeeze(-1).prod(-1)
    torch.testing.assert_close(stated[possible], paths.weights[possible].to(stated.dtype), rtol=1e-5, atol=0)
    logits, _ = training_logits(drafter, batch, proposal, anchors)
    trained = probs(logits, sampling).gather(-1, proposal.tokens.unsqueeze(-1)).squeeze(-1).prod(-1)
    torch.testing.assert_close(stated, trained, rtol=1e-5, atol=1e-9)


@layouts
def test_context_read_round_by_round_gives_the_drafts_of_context_read_at_once(sample_from_anchor):
    """Blocks of earlier rounds wrote into the cache; nothing of them, rejected drafts included, may be left."""
    drafter = drafter_of("rnn", sample_from_anchor)
    batch = random_batch(drafter.spec, (14, 12, 13))
    cache = drafter.start(3, max_length=20)
    begins, rounds = (0, 0, 0), [(3, 1, 5), (4, 5, 7), (8, 6, 8), (9, 7, 9)]
    for anchors in rounds:
        proposal = drafter.propose(context_of(batch, begins, anchors), cache, Sampling(temperature=0.0))
        at_once = propose(drafter, batch, anchors, Sampling(temperature=0.0))
        assert torch.equal(proposal.tokens, at_once.tokens)
        torch.testing.assert_close(proposal.confidence, at_once.confidence)
        begins = anchors


def test_drafts_read_features_before_the_anchor_and_none_from_it_on():
    """Case 2, in decoding: later features stand in the padding of the context and in rounds to come."""
    drafter = drafter_of()
    batch = random_batch(drafter.spec, LENGTHS)
    before = propose(drafter, batch)
    for position in range(10):
        features = batch.features.clone()
        features[:, position] += 1.0
        after = propose(drafter, dataclasses.replace(batch, features=features))
        changed = (after.draft_probs - before.draft_probs).abs().amax(dim=(1, 2)) > 1e-9
        assert changed.tolist() == [position < anchor for anchor in ANCHORS]


@pytest.mark.parametrize("fault", ["anchor shown", "hole", "shown twice"])
def test_a_context_with_a_hole_a_repeat_or_the_anchor_is_refused(fault):
    drafter = drafter_of()
    batch = random_batch(drafter.spec, LENGTHS)
    cache = drafter.start(3, max_length=40)
    drafter.propose(context_of(batch, (0, 0, 0), ANCHORS), cache, CUTS)
    begins = {"anchor shown": (8, 1, 5), "hole": (8, 2, 5), "shown twice": (8, 1, 4)}[fault]
    context = context_of(batch, begins, (9, 3, 7))
    if fault == "anchor shown":
        context = dataclasses.replace(context, anchor_position=context.anchor_position - torch.tensor([0, 1, 0]))
    with pytest.raises(ValueError, match=r"context of row [12] must hold every position before its anchor"):
        drafter.propose(context, cache, CUTS)


@pytest.mark.parametrize("keep", [[0, 2], [2], [2, 0], [1]])
def test_rows_that_leave_do_not_disturb_the_rows_that_stay(keep):
    drafter = drafter_of()
    batch = random_batch(drafter.spec, LENGTHS)
    cache = drafter.start(3, max_length=40)
    drafter.propose(context_of(batch, (0, 0, 0), ANCHORS), cache, CUTS)
    later = [ANCHORS[row] + 2 for row in keep]
    rows = torch.tensor(keep)
    cache.select(rows)
    kept = rows_of(batch, rows)
    context = context_of(kept, [ANCHORS[row] for row in keep], later)
    greedy = Sampling(temperature=0.0)
    proposal = drafter.propose(context, cache, greedy)
    fresh = propose(drafter, kept, later, greedy)
    assert torch.equal(proposal.tokens, fresh.tokens)
    torch.testing.assert_close(proposal.confidence, fresh.confidence)


def test_a_new_prompt_in_the_place_of_a_finished_row_starts_from_nothing():
    drafter = drafter_of()
    batch, other = random_batch(drafter.spec, LENGTHS), random_batch(drafter.spec, LENGTHS, seed=9)
    cache = drafter.start(3, max_length=40)
    drafter.propose(context_of(batch, (0, 0, 0), ANCHORS), cache, CUTS)
    ids, features = batch.input_ids.clone(), batch.features.clone()
    ids[0], features[0] = other.input_ids[0], other.features[0]
    mixed = dataclasses.replace(batch, input_ids=ids, features=features)
    anchors = (4, 3, 5)  # row 0 is new and shorter than before; row 2 has nothing new
    greedy = Sampling(temperature=0.0)
    proposal = drafter.propose(context_of(mixed, (0, 1, 5), anchors), cache, greedy)
    fresh = propose(drafter, mixed, anchors, greedy)
    assert torch.equal(proposal.tokens, fresh.tokens)
    torch.testing.assert_close(proposal.confidence, fresh.confidence)


@heads
def test_fewer_tokens_are_the_beginning_of_the_same_block(head):
    drafter = drafter_of(head)
    batch = random_batch(drafter.spec, LENGTHS)
    greedy = Sampling(temperature=0.0)
    whole, part = propose(drafter, batch, sampling=greedy), propose(drafter, batch, sampling=greedy, num_tokens=2)
    assert torch.equal(part.tokens, whole.tokens[:, :2])
    assert part.draft_probs.shape[1] == 2
    for wrong in (0, G + 1):
        with pytest.raises(ValueError, match=r"num_tokens must lie in 1\.\.4"):
            propose(drafter, batch, num_tokens=wrong)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling()], ids=str)
def test_a_reduced_vocabulary_drafts_its_own_tokens_by_the_targets_ids(sampling):
    spec = small_spec()
    drafter = drafter_of("rnn", draft_vocab_size=6)
    full = drafter_of("rnn")
    ids = torch.tensor([2, 3, 7, 11, 19, 22])
    drafter.set_draft_vocabulary(ids)
    state = full.state_dict() | {"draft_ids": ids}
    state["markov_head.markov_w2.weight"] = state["markov_head.markov_w2.weight"][ids]
    drafter.load_state_dict(state)
    batch = random_batch(spec, LENGTHS)
    proposal = propose(drafter, batch, sampling=sampling)
    assert proposal.draft_probs.shape == (3, G, 6) and torch.equal(proposal.draft_ids, ids)
    assert set(proposal.tokens.flatten().tolist()) <= set(ids.tolist())
    logits, _ = training_logits(full, batch, proposal)
    torch.testing.assert_close(proposal.draft_probs, probs(logits[..., ids], sampling), rtol=1e-5, atol=1e-7)


def test_a_drafted_mask_token_and_a_mask_token_as_anchor_are_tokens_like_any_other():
    """Case 15: the target may emit the mask id; it stays in the draft and in what follows."""
    drafter = drafter_of("markov")
    mask = drafter.spec.mask_token_id
    batch = random_batch(drafter.spec, LENGTHS)
    ids = batch.input_ids.clone()
    ids[torch.arange(3), torch.tensor(ANCHORS)] = mask
    batch = dataclasses.replace(batch, input_ids=ids)
    with torch.no_grad():
        drafter.ends.head[mask] = 0.0
        drafter.markov_head.markov_w2.weight[mask] = 50.0 * drafter.markov_head.markov_w1.weight[mask]
    proposal = propose(drafter, batch, sampling=Sampling(temperature=0.0))
    assert (proposal.tokens == mask).all(), "after a mask token this drafter says mask again"
    logits, _ = training_logits(drafter, batch, proposal)
    assert (logits.argmax(-1) == mask).all()


def test_the_same_generator_state_draws_the_same_block():
    drafter = drafter_of()
    batch = random_batch(drafter.spec, LENGTHS)
    draws = [propose(drafter, batch, sampling=Sampling(2.0), seed=seed).tokens for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_a_block_beyond_the_cache_is_refused():
    drafter = drafter_of()
    batch = random_batch(drafter.spec, LENGTHS)
    cache = drafter.start(3, max_length=10)
    with pytest.raises(ValueError, match=r"reaches position 11.*max_length 10"):
        drafter.propose(context_of(batch, (0, 0, 0), ANCHORS), cache, CUTS)
