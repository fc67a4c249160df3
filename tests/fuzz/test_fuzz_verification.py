"""Any laws of drafter and target, degenerate ones too: what a round commits follows the target's law exactly, and no other.

Laws here depend on every token before them. All drafted paths are enumerated; a round's committed tokens are continued with the
target's own law to G + 1 tokens and compared with the target's law of G + 1 tokens.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftlab.acceptance import accept_rate, expected_accepted_length, l1_distance, survival
from draftlab.decode.verify import acceptance_probs, accepted_law, next_token_law, target_opinion, verify, verify_flat
from draftlab.sampling import Sampling, probs
from draftlab.target.flat import Flat
from draftlab.types import Proposal

V = 3
masses = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 5.0, 1000.0, 1e-6])  # zeros, ties, one-hot, next to nothing
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.2, 0.7, 1.0, 1.5]),
    top_k=st.integers(0, V + 1),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    min_p=st.sampled_from([0.0, 0.2]),
)


@st.composite
def laws(draw, width=V):
    """One law [width] in float64."""
    values = draw(st.lists(masses, min_size=width, max_size=width).filter(any))
    return torch.tensor(values, dtype=torch.float64) / sum(values)


@st.composite
def rounds(draw):
    """gamma, the target's and the drafter's law after every path, how both are sampled, the draft vocabulary, the limit."""
    gamma = draw(st.integers(1, 2))
    draft_ids = draw(st.sampled_from([None, (0, 2), (1,)]))
    width = V if draft_ids is None else len(draft_ids)
    paths = [path for length in range(gamma + 1) for path in itertools.product(range(V), repeat=length)]
    target = {path: draw(laws()).log() for path in paths}
    same = draw(st.booleans()) and draft_ids is None  # where the laws are equal nothing may be rejected
    sampling = draw(samplings)
    drafted = {
        path: probs(target[path], sampling) if same else draw(laws(width)) for path in paths if len(path) < gamma
    }
    return gamma, target, drafted, sampling, draft_ids, draw(st.integers(0, gamma))


def proposed(gamma, drafted, draft_ids):
    """Every path that the drafter can draw with its probability, and the proposal that holds them as rows."""
    vocabulary = range(V) if draft_ids is None else draft_ids
    rows = []
    for path in itertools.product(vocabulary, repeat=gamma):
        chain = [drafted[path[:slot]] for slot in range(gamma)]
        weight = 1.0
        for law, token in zip(chain, path, strict=True):
            weight *= float(law[vocabulary.index(token)])
        if weight > 0:
            rows.append((path, weight, torch.stack(chain)))
    tokens = torch.tensor([path for path, _, _ in rows])
    ids = None if draft_ids is None else torch.tensor(draft_ids)
    return [weight for _, weight, _ in rows], Proposal(tokens, torch.stack([chain for _, _, chain in rows]), ids, None)


def logits_of(target, proposal):
    """[B, G+1, V] of every row's own path."""
    gamma = proposal.tokens.shape[1]
    return torch.stack(
        [torch.stack([target[tuple(row[:slot])] for slot in range(gamma + 1)]) for row in proposal.tokens.tolist()]
    )


@given(rounds())
def test_what_a_round_commits_follows_the_targets_law(case):
    gamma, target, drafted, sampling, draft_ids, limit = case
    weights, proposal = proposed(gamma, drafted, draft_ids)
    logits, limits = logits_of(target, proposal), torch.full((len(weights),), limit)
    token_probs, expected = target_opinion(proposal, logits, sampling)
    assert bool(((expected >= 0) & (expected <= 1)).all())
    counts = accepted_law(acceptance_probs(proposal, token_probs), limits)
    assert bool((counts >= 0).all()) and not counts[:, limit + 1 :].any()
    torch.testing.assert_close(counts.sum(-1), torch.ones(len(weights), dtype=torch.float64))
    law = {path: probs(logits_, sampling) for path, logits_ in target.items()}
    committed = dict.fromkeys(itertools.product(range(V), repeat=gamma + 1), 0.0)
    for accepted in range(limit + 1):
        after = next_token_law(proposal, logits[:, accepted], sampling, torch.full((len(weights),), accepted), limits)
        for row, path in enumerate(proposal.tokens.tolist()):
            for token in range(V):
                chance = weights[row] * float(counts[row, accepted] * after[row, token])
                if chance > 0:
                    begin = (*path[:accepted], token)
                    for rest in itertools.product(range(V), repeat=gamma + 1 - len(begin)):
                        committed[begin + rest] += chance * chain_probability(law, begin, rest)
    for tokens, chance in committed.items():
        assert chance == pytest.approx(chain_probability(law, (), tokens), abs=1e-9), tokens


def chain_probability(law, begin, rest) -> float:
    """Probability that ``rest`` follows ``begin`` under the target's law."""
    chance = 1.0
    for place, token in enumerate(rest):
        chance *= float(law[(*begin, *rest[:place])][token])
    return chance


@given(rounds(), st.integers(0, 9))
def test_a_drawn_round_stays_in_range_and_padding_makes_no_difference_to_it(case, seed):
    gamma, target, drafted, sampling, draft_ids, limit = case
    _, proposal = proposed(gamma, drafted, draft_ids)
    logits = logits_of(target, proposal)
    limits = [(limit + row) % (gamma + 1) for row in range(len(logits))]
    verdict = verify(proposal, logits, sampling, torch.Generator().manual_seed(seed), torch.tensor(limits))
    for row, path in enumerate(proposal.tokens.tolist()):
        accepted = int(verdict.accepted[row])
        assert 0 <= accepted <= limits[row]
        for slot, token in enumerate([*path[:accepted], int(verdict.next_token[row])]):
            assert probs(logits[row, slot], sampling)[token] > 0, "the target never says this"
    flat = Flat.of([length + 1 for length in limits])
    other = verify_flat(proposal, flat.take(logits), flat, sampling, torch.Generator().manual_seed(seed))
    assert torch.equal(other.accepted, verdict.accepted) and torch.equal(other.next_token, verdict.next_token)


@given(rounds())
def test_at_temperature_0_the_target_speaks_alone(case):
    """Ties go to the first token, in the target's own decoding as in verification."""
    gamma, target, drafted, _, draft_ids, limit = case
    _, proposal = proposed(gamma, drafted, draft_ids)
    logits, greedy = logits_of(target, proposal), Sampling(temperature=0.0)
    verdict = verify(proposal, logits, greedy, num_verified=torch.full((len(logits),), limit))
    for row, path in enumerate(proposal.tokens.tolist()):
        said = []
        while len(said) <= gamma and tuple(said) in target:
            values = target[tuple(said)].tolist()
            said.append(values.index(max(values)))
        accepted = int(verdict.accepted[row])
        agreed = next((slot for slot in range(limit) if path[slot] != said[slot]), limit)
        assert accepted == agreed and int(verdict.next_token[row]) == said[accepted]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(
    slot=st.integers(0, 2), broken=st.sampled_from([[float("nan"), 0, 0], [float("-inf")] * V, [float("inf"), 0, 0]])
)
def test_broken_logits_never_become_a_token(temperature, slot, broken):
    logits = torch.zeros(1, 3, V)
    logits[0, slot] = torch.tensor(broken)
    proposal = Proposal(torch.tensor([[0, 0]]), torch.tensor([[[1.0, 0, 0]] * 2]), None, None)
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match="logits are broken"):
        for _ in range(200):  # a draw may stop before the broken slot
            verify(proposal, logits, Sampling(temperature=temperature), generator)


@given(laws(), laws())
def test_accept_rate_is_one_minus_half_the_distance(draft, target):
    rate = accept_rate(draft, target)
    assert 0 <= rate <= 1 + 1e-12
    torch.testing.assert_close(rate, 1 - l1_distance(draft, target) / 2)
    torch.testing.assert_close(rate, accept_rate(target, draft))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_survival_falls_from_the_first_confidence_and_the_accepted_length_is_within_its_block(values):
    conditional = torch.tensor(values, dtype=torch.float64)
    chances = survival(conditional).tolist()
    assert chances == sorted(chances, reverse=True) and chances[0] == values[0]
    assert 1 <= expected_accepted_length(conditional) <= 1 + len(values)
