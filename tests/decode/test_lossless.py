"""Losslessness of the whole loop by exact enumeration: every draft, verdict and token, through the real caches."""

from __future__ import annotations

import pytest
import torch

from draftlab.decode import cache
from draftlab.decode.loop import DecodeSettings, plain_decode, speculative_decode
from draftlab.sampling import Sampling
from lossless import DRAFTERS, SAMPLINGS, check
from pairs import FAMILIES, tiny_pair


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch):
    monkeypatch.setattr(cache, "GROWTH", 8)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_batch_of_unequal_prompts_follows_the_target_law_exactly(name, sampling):
    target, drafter = tiny_pair(name, vocab_size=4, gamma=2)
    check(target, drafter, [[1], [2, 3, 1, 1]], sampling, num_rounds=1)


@pytest.mark.parametrize("sampling", [SAMPLINGS["T=1"], SAMPLINGS["top_p"]], ids=["T=1", "top_p"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_second_round_from_unequal_positions_follows_the_target_law_exactly(name, sampling):
    target, drafter = tiny_pair(name, vocab_size=3, gamma=1)
    check(target, drafter, [[1, 2], [2]], sampling, num_rounds=2)


@pytest.mark.parametrize("name", ["rnn", "eagle3", "mtp"])
def test_a_second_round_after_longer_blocks_follows_the_target_law_exactly(name):
    target, drafter = tiny_pair(name, vocab_size=3, gamma=2, draft_ids=torch.tensor([0, 2]))
    check(target, drafter, [[1, 2]], Sampling(), num_rounds=2)


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_reduced_draft_vocabulary_keeps_the_law(name):
    target, drafter = tiny_pair(name, vocab_size=4, gamma=2, draft_ids=torch.tensor([1, 3]))
    for sampling in SAMPLINGS.values():
        check(target, drafter, [[1], [2, 3, 1]], sampling, num_rounds=1)


@pytest.mark.parametrize("name", ["markov", "dflash"])
def test_the_block_layout_with_a_separate_anchor_keeps_the_law(name):
    target, drafter = tiny_pair(name, vocab_size=4, gamma=2, sample_from_anchor=False)
    check(target, drafter, [[1], [2, 3, 1]], Sampling(), num_rounds=1)


def test_a_drafter_that_misstates_its_law_is_caught():
    """Case 25, and proof that the enumeration is sharp: the law before top-p instead of the one drawn from."""
    target, drafter = tiny_pair("markov", vocab_size=4, gamma=2)
    honest = drafter.propose

    def misstated(context, cache, sampling, *args, **options):
        proposal = honest(context, cache, sampling, *args, **options)
        flat = torch.full_like(proposal.draft_probs, 1 / 4)
        return type(proposal)(proposal.tokens, flat, proposal.draft_ids, proposal.confidence)

    drafter.propose = misstated
    with pytest.raises(AssertionError, match="not close"):
        check(target, drafter, [[1]], Sampling(), num_rounds=1)


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_says_the_same_in_a_crowded_batch_as_alone(name):
    """Rows that move, wait and take freed places must not see each other's context; confidences would tell."""
    target, drafter = tiny_pair(name, vocab_size=8, gamma=3)
    prompts = [[1, 5], [4, 3, 1, 1, 7, 2], [6], [3, 2, 5], [7, 7, 1, 4], [5, 1]]
    runs = [
        speculative_decode(target, drafter, prompts, DecodeSettings(20, SAMPLINGS["T=0"], (4,), batch_size))
        for batch_size in (1, 4)
    ]
    assert {counted.accepted for generation in runs[0] for counted in generation.rounds} >= {0, 1}
    plain = plain_decode(target, prompts, DecodeSettings(20, SAMPLINGS["T=0"], (4,), 1))
    assert [generation.tokens for generation in plain] == [generation.tokens for generation in runs[0]]  # case 22
    for alone, crowded in zip(*runs, strict=True):
        assert alone.tokens == crowded.tokens and len(alone.rounds) == len(crowded.rounds)
        for one, other in zip(alone.rounds, crowded.rounds, strict=True):
            assert (one.proposed, one.accepted, one.committed) == (other.proposed, other.accepted, other.committed)
            assert one.confidence == pytest.approx(other.confidence, rel=1e-4)


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize("num_layers", [1, 2])
def test_greedy_decoding_is_plain_decoding_with_deeper_drafters_too(name, num_layers):
    """Case 22: the context of a deep chain runs through its own layers, prompts of unequal length side by side."""
    target, drafter = tiny_pair(name, vocab_size=8, gamma=3, num_layers=num_layers)
    prompts = [[1, 5], [4, 3, 1, 1, 7, 2], [6], [3, 2, 5]]
    settings = DecodeSettings(20, SAMPLINGS["T=0"], (4,), 2)
    runs = (speculative_decode(target, drafter, prompts, settings), plain_decode(target, prompts, settings))
    assert [one.tokens for one in runs[0]] == [one.tokens for one in runs[1]]
