"""Verification against a literal slow twin, and exact by enumeration over a tiny vocabulary (method 1)."""

from __future__ import annotations

import itertools

import pytest
import torch

from draftlab.decode.verify import acceptance_probs, accepted_law, next_token_law, target_opinion, verify
from draftlab.sampling import Sampling, probs, sample
from draftlab.types import Proposal
from enumeration import Enumeration, output_law

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.7),
    Sampling(temperature=0.0),
    Sampling(top_p=0.8),
    Sampling(temperature=0.7, top_k=3),
    Sampling(min_p=0.2, top_p=0.9),
]
V, G = 4, 2


def textbook_round(draft_laws, target_laws, tokens, limit):
    """P(accepted, next token) [G+1, V] of one row, written down token by token over whole [G, V] laws."""
    outcome = torch.zeros(len(tokens) + 1, target_laws.shape[-1], dtype=torch.float64)
    reach = 1.0
    for k, token in enumerate(tokens[:limit]):
        passes = min(1.0, float(target_laws[k, token] / draft_laws[k, token]))
        excess = (target_laws[k] - draft_laws[k]).clamp_min(0)
        if passes < 1:
            outcome[k] += reach * (1 - passes) * excess / excess.sum()
        reach *= passes
    outcome[min(limit, len(tokens))] += reach * target_laws[min(limit, len(tokens))]
    return outcome


def random_round(sampling, rows=5, seed=0, draft_ids=None):
    generator = torch.Generator().manual_seed(seed)
    target_logits = 2 * torch.randn(rows, G + 1, V, generator=generator, dtype=torch.float64)
    width = V if draft_ids is None else len(draft_ids)
    laws = probs(2 * torch.randn(rows, G, width, generator=generator, dtype=torch.float64), sampling)
    drawn = sample(laws, generator)
    tokens = drawn if draft_ids is None else draft_ids[drawn]
    return Proposal(tokens, laws, draft_ids, None), target_logits


def widened(proposal):
    if proposal.draft_ids is None:
        return proposal.draft_probs
    wide = torch.zeros(*proposal.draft_probs.shape[:2], V, dtype=torch.float64)
    wide[..., proposal.draft_ids] = proposal.draft_probs
    return wide


@pytest.mark.parametrize("draft_ids", [None, torch.tensor([0, 2, 3])])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("num_verified", [None, torch.tensor([0, 1, 2, 1, 2])])
def test_the_laws_of_a_round_are_the_textbook_ones(sampling, draft_ids, num_verified):
    proposal, logits = random_round(sampling, draft_ids=draft_ids)
    limit = torch.full((5,), G) if num_verified is None else num_verified
    token_probs, expected = target_opinion(proposal, logits, sampling)
    accept = acceptance_probs(proposal, token_probs)
    counts = accepted_law(accept, limit)
    draft_laws, target_laws = widened(proposal), probs(logits, sampling)
    overlap = 1 - (draft_laws - target_laws[:, :G]).abs().sum(-1) / 2
    torch.testing.assert_close(expected, overlap)
    torch.testing.assert_close(verify(proposal, logits, sampling).expected.double(), overlap)
    for accepted in range(G + 1):
        stop = torch.full((5,), accepted).minimum(limit)
        law = next_token_law(proposal, logits[torch.arange(5), stop], sampling, stop, limit)
        for row in range(5):
            expected = textbook_round(draft_laws[row], target_laws[row], proposal.tokens[row].tolist(), int(limit[row]))
            torch.testing.assert_close(counts[row].sum(), torch.tensor(1.0, dtype=torch.float64))
            if accepted <= limit[row]:
                torch.testing.assert_close(counts[row, accepted] * law[row], expected[accepted])


@pytest.mark.parametrize("draft_ids", [None, torch.tensor([1, 3])])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_path_of_drafts_and_verdicts_sums_to_the_target_law(sampling, draft_ids):
    """Case 25 as well: drafter and target are cut alike, and draft_probs are the law that the drafts come from."""
    generator = torch.Generator().manual_seed(3)
    width = V if draft_ids is None else len(draft_ids)
    draft_logits = 2 * torch.randn(G, V, width, generator=generator, dtype=torch.float64)  # slot, previous token
    target_logits = 2 * torch.randn(V, V, generator=generator, dtype=torch.float64)  # previous token
    draws = [width] * G + ([] if sampling.greedy else [G + 1, V])
    paths = Enumeration(int(torch.tensor(draws).prod()))
    anchor = torch.full((paths.num_paths,), 1)
    with paths.running():
        previous, tokens, laws = anchor, [], []
        for slot in range(G):
            law = probs(draft_logits[slot][previous], sampling)
            previous = sample(law)
            previous = previous if draft_ids is None else draft_ids[previous]
            tokens.append(previous)
            laws.append(law)
        proposal = Proposal(torch.stack(tokens, 1), torch.stack(laws, 1), draft_ids, None)
        inputs = torch.cat([anchor.unsqueeze(-1), proposal.tokens], dim=1)
        verdict = verify(proposal, target_logits[inputs], sampling)
    # After the committed tokens the target itself goes on, so the first G+1 tokens must follow its law.
    target_law = probs(target_logits, sampling)
    law = torch.zeros(V, V, V, dtype=torch.float64)
    for weight, accepted, token, drafted in zip(
        paths.weights, verdict.accepted.tolist(), verdict.next_token.tolist(), proposal.tokens.tolist(), strict=True
    ):
        law += weight * _continued([*drafted[:accepted], token], target_law)
    for a, b, c in itertools.product(range(V), repeat=3):
        expected = target_law[1, a] * target_law[a, b] * target_law[b, c]
        torch.testing.assert_close(law[a, b, c], expected, rtol=1e-9, atol=1e-9)


def _continued(committed, target_law):
    """Law [V, V, V] of three tokens that begin with ``committed`` and go on by ``target_law`` [V, V]."""
    law = torch.zeros(V, V, V, dtype=torch.float64)
    for sequence in itertools.product(range(V), repeat=3):
        if list(sequence[: len(committed)]) == committed[:3]:
            rest = range(len(committed), 3)
            law[sequence] = torch.tensor([1.0, *(target_law[sequence[i - 1], sequence[i]] for i in rest)]).prod()
    return law


def test_untempered_draft_probs_would_be_noticed():
    """The enumeration is sharp: a law other than the one drawn from (case 25) does not sum to the target's."""
    draft = torch.tensor([[2.0, 0.0, 1.0, -1.0]], dtype=torch.float64)
    target = torch.tensor([[0.0, 1.0, 2.0, 0.0]], dtype=torch.float64).expand(1, V)
    sampling = Sampling(temperature=0.5)

    def law_of_first_token(stated):
        paths = Enumeration(V * 2 * V)
        with paths.running():
            drawn = sample(probs(draft, sampling).expand(paths.num_paths, -1)).unsqueeze(-1)
            proposal = Proposal(drawn, stated.expand(paths.num_paths, 1, -1), None, None)
            verdict = verify(proposal, target.expand(paths.num_paths, 2, -1), sampling)
        first = torch.where(verdict.accepted > 0, drawn[:, 0], verdict.next_token)
        return output_law(first.unsqueeze(-1), paths.weights, V)

    expected = probs(target[0], sampling)
    torch.testing.assert_close(law_of_first_token(probs(draft, sampling)), expected)
    assert (law_of_first_token(probs(draft, Sampling())) - expected).abs().max() > 0.01


def test_no_drafted_token_leaves_plain_sampling():
    proposal = Proposal(torch.zeros(3, 0, dtype=torch.int64), torch.zeros(3, 0, 1), None, None)
    logits = torch.tensor([[0.0, 50.0, 0.0, 0.0]]).expand(3, 1, 4)
    verdict = verify(proposal, logits, Sampling(top_k=2))
    assert verdict.accepted.tolist() == [0, 0, 0] and verdict.next_token.tolist() == [1, 1, 1]


def test_impossible_sizes_are_refused():
    proposal, logits = random_round(Sampling())
    with pytest.raises(ValueError, match=r"3 slots \(gamma \+ 1\)"):
        verify(proposal, logits[:, :G], Sampling())
    with pytest.raises(ValueError, match="num_verified"):
        verify(proposal, logits, Sampling(), num_verified=torch.tensor([0, 1, 2, 3, 0]))
