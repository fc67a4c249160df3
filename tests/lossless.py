"""Losslessness of the decode loop by enumeration: the law of everything that some rounds can commit against the target's.

Each row of the batch is one path of all random outcomes (:mod:`enumeration`), so after a round rows stand at unequal positions.
The law of all tokens that the rounds can commit, summed over paths and continued by the target where a path committed fewer,
must be the target's own, taken from full passes over whole sequences.

    target, drafter = tiny_pair("markov", vocab_size=4, gamma=2)
    check(target, drafter, [[1], [2, 3, 1]], Sampling(), num_rounds=1)
"""

from __future__ import annotations

import itertools

import pytest
import torch

from draftlab.decode.loop import Decoder, DecodeSettings
from draftlab.sampling import Sampling, probs
from enumeration import Enumeration, output_law
from pairs import FAMILIES, HEADS

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


def enumerated(target, drafter, prompts, sampling, num_rounds, exit=None, redraws=0):
    """The answer of every path of ``num_rounds`` rounds, and the weights [paths] of the paths.

    ``exit``: a policy of leaving drafting out. ``redraws``: blocks that the drafter draws a round beside the one that it proposes.
    """
    vocab, gamma = target.spec.vocab_size, drafter.block.block_size
    width = vocab if drafter.draft_ids is None else len(drafter.draft_ids)
    num_paths = vocab * (width ** (gamma * (1 + redraws)) * (gamma + 1) * vocab) ** num_rounds
    paths = Enumeration(num_paths, copies=len(prompts))
    rows = [prompt for prompt in prompts for _ in range(num_paths)]
    limit = 2 + num_rounds * (gamma + 1)
    decoder = Decoder(target, drafter, DecodeSettings(limit, sampling, (), len(rows), 10**9, exit))
    rounds = []

    def stop(finished, committed):
        rounds.append(committed)
        if len(rounds) == num_rounds:
            raise Enough

    with paths.running(), paths.of_rows_that_draft(drafter), pytest.raises(Enough):
        decoder.run(rows, on_round=stop)
    return [row.generation for row in decoder.rows], paths.weights


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


def check(target, drafter, prompts, sampling, num_rounds, **options):
    """Every token that the rounds can commit counts: all slots of a block, the corrected and the bonus token.

    Returns the answers of the paths that are possible; ``options`` are those of :func:`enumerated`.
    """
    vocab, most = target.spec.vocab_size, 1 + num_rounds * (drafter.block.block_size + 1)
    answers, weights = enumerated(target, drafter, prompts, sampling, num_rounds, **options)
    committed = [answer.tokens for answer in answers]
    lengths = {len(tokens) for tokens, weight in zip(committed, weights.tolist(), strict=True) if weight > 0}
    if not sampling.greedy:
        assert len(lengths) > 1, "rows must stand at unequal positions for this test to mean anything"
    num_paths = len(committed) // len(prompts)
    for index, prompt in enumerate(prompts):
        own = slice(index * num_paths, (index + 1) * num_paths)
        law = target_law(target, prompt, sampling, most)
        torch.testing.assert_close(completed_law(committed[own], weights[own], law, vocab), law, rtol=1e-6, atol=1e-7)
    return [answer for answer, weight in zip(answers, weights.tolist(), strict=True) if weight > 0]
