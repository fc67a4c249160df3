"""Losslessness of the whole loop by exact enumeration: every draft, verdict and token, through the real caches.

Each row of the batch is one path of all random outcomes (:mod:`enumeration`), so after a round rows stand at unequal positions.
The law of all tokens that a round can commit, summed over paths and continued by the target where a path committed fewer,
must be the target's own, taken from full passes over whole sequences.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from draftlab.decode import cache
from draftlab.decode.loop import Decoder, DecodeSettings, plain_decode, speculative_decode
from draftlab.sampling import Sampling, probs
from enumeration import Enumeration, output_law
from pairs import FAMILIES, HEADS, tiny_pair

DRAFTERS = [*HEADS, *FAMILIES]
SAMPLINGS = {
    "T=1": Sampling(),
    "T=0.7": Sampling(temperature=0.7),
    "T=0": Sampling(temperature=0.0),
    "top_p": Sampling(temperature=2.0, top_p=0.8),
    "top_k": Sampling(temperature=2.0, top_k=3, top_p=0.95),
}


class Enough(Exception):
    """Raised to leave the loop after the planned number of rounds."""


def enumerated(target, drafter, prompts, sampling, num_rounds):
    """All tokens that every path commits in ``num_rounds`` rounds, and the weights [paths] of the paths."""
    vocab, gamma = target.spec.vocab_size, drafter.block.block_size
    width = vocab if drafter.draft_ids is None else len(drafter.draft_ids)
    num_paths = vocab * (width**gamma * (gamma + 1) * vocab) ** num_rounds
    paths = Enumeration(num_paths, copies=len(prompts))
    rows = [prompt for prompt in prompts for _ in range(num_paths)]
    limit = 2 + num_rounds * (gamma + 1)
    decoder = Decoder(target, drafter, DecodeSettings(limit, sampling, (), len(rows), prefill_tokens=10**9))
    rounds = []

    def stop(finished, committed):
        rounds.append(committed)
        if len(rounds) == num_rounds:
            raise Enough

    with paths.running(), pytest.raises(Enough):
        decoder.run(rows, on_round=stop)
    return [row.generation.tokens for row in decoder.rows], paths.weights


def target_law(target, prompt, sampling, num_tokens):
    """Law [V^n] of the first ``num_tokens`` tokens after ``prompt``, from full passes."""
    vocab = target.spec.vocab_size
    answers = torch.tensor(list(itertools.product(range(vocab), repeat=num_tokens)))
    ids = torch.cat([torch.tensor(prompt).expand(len(answers), -1), answers], dim=1)
    laws = probs(target.logits(target.forward(ids).last_hidden[:, len(prompt) - 1 : -1]), sampling)
    return laws.gather(-1, answers.unsqueeze(-1)).squeeze(-1).prod(-1)


def completed_law(committed, weights, law, vocab_size):
    """Law [V^n] of n tokens, where the target itself, of ``law`` [V^n], goes on after what each path committed."""
    lengths = torch.tensor([len(tokens) for tokens in committed])
    total = torch.zeros_like(law)
    for length in lengths.unique().tolist():
        rows = (lengths == length).nonzero().squeeze(-1)
        tokens = torch.tensor([committed[row] for row in rows.tolist()])
        rest = law.view(vocab_size**length, -1)  # by the tokens committed and those to come
        rest = rest / rest.sum(-1, keepdim=True).clamp_min(1e-300)
        total += (output_law(tokens, weights[rows], vocab_size).unsqueeze(-1) * rest).flatten()
    return total


def check(target, drafter, prompts, sampling, num_rounds):
    """Every token that the rounds can commit counts: all slots of a block, the corrected and the bonus token."""
    vocab, most = target.spec.vocab_size, 1 + num_rounds * (drafter.block.block_size + 1)
    committed, weights = enumerated(target, drafter, prompts, sampling, num_rounds)
    lengths = {len(tokens) for tokens, weight in zip(committed, weights.tolist(), strict=True) if weight > 0}
    if not sampling.greedy:
        assert len(lengths) > 1, "rows must stand at unequal positions for this test to mean anything"
    num_paths = len(committed) // len(prompts)
    for index, prompt in enumerate(prompts):
        own = slice(index * num_paths, (index + 1) * num_paths)
        law = target_law(target, prompt, sampling, most)
        torch.testing.assert_close(completed_law(committed[own], weights[own], law, vocab), law, rtol=1e-6, atol=1e-7)


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
