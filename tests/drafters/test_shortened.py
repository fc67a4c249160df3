"""A drafter with shorter blocks: the same weights and caches, and the law of a drafter that was built with such blocks."""

from __future__ import annotations

import pytest
import torch

from drafting import context_of, random_batch, tiny_drafter
from draftlab.blocks import BlockSpec
from draftlab.sampling import Sampling

G, LENGTHS, ANCHORS = 4, (12, 9), (5, 2)
GREEDY = Sampling(temperature=0.0)
layouts = pytest.mark.parametrize("sample_from_anchor", [True, False])
everyone = pytest.mark.parametrize("head", ["markov", "rnn", "none", "dflash", "eagle3", "mtp"])


def drafter_of(head, block_size=G, **layout):
    return tiny_drafter(head, BlockSpec(block_size, 3, **layout), num_layers=1 if head in ("eagle3", "mtp") else 2)


def propose(drafter, batch, cache=None, begins=(0, 0), anchors=ANCHORS):
    cache = cache or drafter.start(len(anchors), max_length=40)
    return drafter.propose(context_of(batch, begins, anchors), cache, GREEDY)


@everyone
def test_it_proposes_what_a_drafter_built_with_such_blocks_does(head):
    drafter, built = drafter_of(head), drafter_of(head, 2)
    batch = random_batch(drafter.spec, LENGTHS)
    built.load_state_dict(drafter.state_dict())
    ours, theirs = propose(drafter.shortened(2), batch), propose(built, batch)
    assert ours.tokens.shape == (2, 2) and torch.equal(ours.tokens, theirs.tokens)
    torch.testing.assert_close(ours.draft_probs, theirs.draft_probs)


@layouts
def test_slots_that_are_not_drafted_are_not_computed(sample_from_anchor):
    drafter = drafter_of("markov", sample_from_anchor=sample_from_anchor)
    batch, widths = random_batch(drafter.spec, LENGTHS), []
    drafter.layers[0].register_forward_hook(lambda _, arguments, __: widths.append(arguments[0].shape[1]))
    propose(drafter.shortened(1), batch)
    propose(drafter, batch)
    assert widths == ([1, G] if sample_from_anchor else [2, G + 1])


@everyone
def test_one_cache_serves_blocks_of_any_length_in_turn(head):
    drafter = drafter_of(head)
    batch, cache = random_batch(drafter.spec, LENGTHS), drafter.start(2, max_length=40)
    propose(drafter, batch, cache)
    propose(drafter.shortened(1), batch, cache, ANCHORS, (7, 4))
    late = propose(drafter, batch, cache, (7, 4), (9, 6))
    assert torch.equal(late.tokens, propose(drafter, batch, anchors=(9, 6)).tokens)


@everyone
def test_weights_are_shared_and_the_drafter_itself_keeps_its_blocks(head):
    drafter = drafter_of(head)
    shorter = drafter.shortened(2)
    assert all(a is b for a, b in zip(shorter.parameters(), drafter.parameters(), strict=True))
    assert shorter.ends is drafter.ends and shorter.block.block_size == 2 and drafter.block.block_size == G
    assert drafter.shortened(G) is drafter


@pytest.mark.parametrize("length", [0, G + 1])
def test_no_token_or_more_than_a_block_has_is_refused(length):
    with pytest.raises(ValueError, match=r"must lie in 1\.\.4"):
        drafter_of("markov").shortened(length)
