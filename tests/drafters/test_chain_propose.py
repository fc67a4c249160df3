"""Eagle3 and MTP in decoding: the laws of training, token by token, over a cache of rows of unequal length."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from drafting import blocks_at, context_of, random_batch, rows_of, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec
from draftlab.sampling import Sampling, probs
from enumeration import Enumeration
from reference_chain import chain_hidden, target_states

chains = pytest.mark.parametrize("name", ["eagle3", "mtp"])
depths = pytest.mark.parametrize("num_layers", [1, 3])
G = 4
LENGTHS, ANCHORS = (14, 10, 12), (8, 1, 5)
CUTS, GREEDY = Sampling(temperature=0.7, top_k=6, top_p=0.9), Sampling(temperature=0.0)
READS = {"eagle3": "features", "mtp": "last_hidden"}


def chain_of(name, num_layers=1, block=None, **options):
    return tiny_drafter(name, block=block or BlockSpec(G, 3), num_layers=num_layers, **options)


def propose(drafter, batch, anchors=ANCHORS, sampling=CUTS, seed=0, **options):
    cache = drafter.start(len(anchors), max_length=40)
    context = context_of(batch, [0] * len(anchors), anchors)
    return drafter.propose(context, cache, sampling, torch.Generator().manual_seed(seed), **options)


def training_logits(drafter, batch, tokens, anchors=ANCHORS):
    """Logits [B, G, W] of the training pass over the same blocks, teacher-forced with the proposed ``tokens``."""
    blocks = blocks_at(batch, drafter, [[anchor] for anchor in anchors])
    previous = torch.cat([blocks.input_ids[:, 0, :1], tokens[:, :-1]], dim=1)
    output = drafter(batch, dataclasses.replace(blocks, previous=previous.unsqueeze(1)))
    return drafter.draft_logits(output.hidden[:, 0], previous)


@chains
@depths
def test_drafting_step_by_step_uses_the_laws_of_the_teacher_forced_pass(name, num_layers):
    drafter = chain_of(name, num_layers)
    batch = random_batch(drafter.spec, LENGTHS)
    proposal = propose(drafter, batch)
    logits = training_logits(drafter, batch, proposal.tokens)
    torch.testing.assert_close(proposal.draft_probs, probs(logits, CUTS), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(proposal.draft_top, torch.softmax(logits, -1).amax(-1), rtol=1e-5, atol=1e-7)
    assert proposal.confidence is None and proposal.tokens.shape == (3, G)


@chains
@depths
def test_greedy_drafts_equal_the_loop_written_chain(name, num_layers):
    drafter = chain_of(name, num_layers)
    batch = random_batch(drafter.spec, LENGTHS)
    proposal = propose(drafter, batch, sampling=GREEDY)
    for row, anchor in enumerate(ANCHORS):
        states = target_states(drafter, batch.features[row], batch.last_hidden[row])
        ids, fed = batch.input_ids[row], [int(batch.input_ids[row, anchor])]
        for _ in range(G):
            hidden = chain_hidden(drafter, drafter.ends.embedding, states, ids, anchor, fed)
            fed.append(int((hidden[-1] @ drafter.ends.head.T).argmax()))
        assert proposal.tokens[row].tolist() == fed[1:]
    one_hot = torch.nn.functional.one_hot(proposal.tokens, drafter.spec.vocab_size).to(proposal.draft_probs.dtype)
    assert torch.equal(proposal.draft_probs, one_hot)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.8), Sampling(1.3, top_k=2)], ids=str)
@chains
def test_draft_probs_are_the_law_that_tokens_are_drawn_from(name, sampling):
    """Case 25, by enumeration of all outcomes: the joint law of the block is the product of the stated laws."""
    vocab, gamma = 4, 3
    spec = small_spec(vocab_size=vocab)
    drafter = chain_of(name, block=BlockSpec(gamma, 3), spec=spec)
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
    trained = probs(training_logits(drafter, batch, proposal.tokens, anchors), sampling)
    trained = trained.gather(-1, proposal.tokens.unsqueeze(-1)).squeeze(-1).prod(-1)
    torch.testing.assert_close(stated, trained, rtol=1e-5, atol=1e-9)


@chains
@depths
def test_context_read_round_by_round_gives_the_drafts_of_context_read_at_once(name, num_layers):
    """Blocks of earlier rounds wrote into the cache; nothing of them, rejected drafts included, may be left."""
    drafter = chain_of(name, num_layers)
    batch = random_batch(drafter.spec, (14, 12, 13))
    cache = drafter.start(3, max_length=20)
    begins = (0, 0, 0)
    for anchors in [(3, 1, 5), (4, 5, 7), (8, 6, 8), (9, 7, 9)]:
        proposal = drafter.propose(context_of(batch, begins, anchors), cache, GREEDY)
        assert torch.equal(proposal.tokens, propose(drafter, batch, anchors, GREEDY).tokens)
        begins = anchors


@chains
@depths
def test_drafts_read_the_target_before_the_anchor_and_none_from_it_on(name, num_layers):
    """Case 2, in decoding: later states stand in the padding of the context and in rounds to come."""
    drafter = chain_of(name, num_layers)
    batch = random_batch(drafter.spec, LENGTHS)
    before = propose(drafter, batch)
    for position in range(10):
        values = getattr(batch, READS[name]).clone()
        values[:, position] += 1.0
        after = propose(drafter, dataclasses.replace(batch, **{READS[name]: values}))
        changed = (after.draft_probs - before.draft_probs).abs().amax(dim=(1, 2)) > 1e-9
        assert changed.tolist() == [position < anchor for anchor in ANCHORS]


@chains
def test_broken_numbers_in_the_padding_of_a_context_do_no_harm(name):
    drafter = chain_of(name, num_layers=2)
    batch = random_batch(drafter.spec, LENGTHS)
    context = context_of(batch, (0, 0, 0), ANCHORS)
    broken = {
        key: getattr(context, key).masked_fill(~context.new_mask.unsqueeze(-1), float("nan"))
        for key in ("new_features", "new_last_hidden")
    }
    proposal = drafter.propose(dataclasses.replace(context, **broken), drafter.start(3, 40), GREEDY)
    assert torch.equal(proposal.tokens, propose(drafter, batch, sampling=GREEDY).tokens)


@chains
@pytest.mark.parametrize("keep", [[0, 2], [2], [2, 0], [1]])
def test_rows_that_leave_do_not_disturb_the_rows_that_stay(name, keep):
    drafter = chain_of(name, num_layers=2)
    batch = random_batch(drafter.spec, LENGTHS)
    cache = drafter.start(3, max_length=40)
    drafter.propose(context_of(batch, (0, 0, 0), ANCHORS), cache, CUTS)
    cache.select(torch.tensor(keep))
    kept = rows_of(batch, keep)
    for step in (0, 2):  # nothing new: the state before the anchor is remembered, and moves with its row
        later = [ANCHORS[row] + step for row in keep]
        proposal = drafter.propose(context_of(kept, [ANCHORS[row] for row in keep], later), cache, GREEDY)
        fresh = propose(drafter, kept, later, GREEDY)
        assert torch.equal(proposal.tokens, fresh.tokens)


@chains
def test_a_new_prompt_in_the_place_of_a_finished_row_starts_from_nothing(name):
    drafter = chain_of(name, num_layers=2)
    batch, other = random_batch(drafter.spec, LENGTHS), random_batch(drafter.spec, LENGTHS, seed=9)
    cache = drafter.start(3, max_length=40)
    drafter.propose(context_of(batch, (0, 0, 0), ANCHORS), cache, CUTS)
    for key in ("input_ids", "features", "last_hidden"):
        getattr(batch, key)[0] = getattr(other, key)[0]
    anchors = (4, 3, 5)  # row 0 is new and shorter than before; row 2 has nothing new
    proposal = drafter.propose(context_of(batch, (0, 1, 5), anchors), cache, CUTS, torch.Generator().manual_seed(0))
    fresh = propose(drafter, batch, anchors)
    assert torch.equal(proposal.tokens, fresh.tokens)
    torch.testing.assert_close(proposal.draft_probs, fresh.draft_probs)


@chains
def test_an_anchor_at_the_first_token_drafts_as_in_training_and_leaves_nothing_behind(name):
    drafter = chain_of(name, num_layers=2)
    batch = random_batch(drafter.spec, (14, 12))
    cache = drafter.start(2, max_length=40)
    anchors = (0, 3)
    proposal = drafter.propose(context_of(batch, (0, 0), anchors), cache, GREEDY)
    logits = training_logits(drafter, batch, proposal.tokens, anchors)
    assert torch.equal(proposal.tokens, logits.argmax(-1))
    later = drafter.propose(context_of(batch, anchors, (2, 4)), cache, GREEDY)
    assert torch.equal(later.tokens, propose(drafter, batch, (2, 4), GREEDY).tokens)


@chains
def test_fewer_tokens_are_the_beginning_of_the_same_block_and_cost_fewer_passes(name):
    drafter = chain_of(name)
    batch = random_batch(drafter.spec, LENGTHS)
    whole, passes = propose(drafter, batch, sampling=GREEDY), []
    drafter.layers[0].register_forward_hook(lambda *_: passes.append(1))
    part = propose(drafter, batch, sampling=GREEDY, num_tokens=2)
    assert torch.equal(part.tokens, whole.tokens[:, :2]) and len(passes) == part.draft_probs.shape[1] == 2
    for wrong in (0, G + 1):
        with pytest.raises(ValueError, match=r"num_tokens must lie in 1\.\.4"):
            propose(drafter, batch, num_tokens=wrong)


@chains
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=str)
def test_a_reduced_vocabulary_drafts_its_own_tokens_by_the_targets_ids(name, sampling):
    """The next slot must be fed with the target's id, not with the index into the draft vocabulary."""
    drafter, full = chain_of(name, draft_vocab_size=6), chain_of(name)
    ids = torch.tensor([2, 3, 7, 11, 19, 22])
    drafter.set_draft_vocabulary(ids)
    drafter.load_state_dict(full.state_dict() | {"draft_ids": ids})
    batch = random_batch(drafter.spec, LENGTHS)
    proposal = propose(drafter, batch, sampling=sampling)
    assert proposal.draft_probs.shape == (3, G, 6) and torch.equal(proposal.draft_ids, ids)
    assert set(proposal.tokens.flatten().tolist()) <= set(ids.tolist())
    logits = training_logits(full, batch, proposal.tokens)
    torch.testing.assert_close(proposal.draft_probs, probs(logits[..., ids], sampling), rtol=1e-5, atol=1e-7)


@chains
@pytest.mark.parametrize("fault", ["anchor shown", "hole", "shown twice", "beyond the cache"])
def test_a_context_with_a_fault_is_refused(name, fault):
    drafter = chain_of(name)
    batch = random_batch(drafter.spec, LENGTHS)
    cache = drafter.start(3, max_length=12 if fault == "beyond the cache" else 40)
    drafter.propose(context_of(batch, (0, 0, 0), ANCHORS), cache, CUTS)
    begins = {"hole": (8, 2, 5), "shown twice": (8, 1, 4)}.get(fault, ANCHORS)
    context = context_of(batch, begins, (10, 3, 7))
    if fault == "anchor shown":
        context = dataclasses.replace(context, anchor_position=context.anchor_position - torch.tensor([0, 1, 0]))
    message = (
        "reaches position 12.*max_length 12" if fault == "beyond the cache" else r"row [12] must hold every position"
    )
    with pytest.raises(ValueError, match=message):
        drafter.propose(context, cache, CUTS)
