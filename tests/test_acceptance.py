"""Accept rate, survival and expected accepted length."""

import itertools

import pytest
import torch

from draftlab.acceptance import accept_rate, expected_accepted_length, l1_distance, survival


def random_laws(seed: int, shape=(5, 8)) -> torch.Tensor:
    return torch.softmax(3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), -1)


def test_accept_rate_is_one_minus_half_the_l1_distance():
    draft, target = random_laws(0), random_laws(1)
    torch.testing.assert_close(accept_rate(draft, target), 1 - l1_distance(draft, target) / 2)


def test_disjoint_one_hots_have_distance_two_and_identical_ones_zero():
    """Case 9."""
    first, second = torch.eye(4)[0], torch.eye(4)[2]
    assert l1_distance(first, second) == 2 and accept_rate(first, second) == 0
    assert l1_distance(first, first) == 0 and accept_rate(first, first) == 1


def test_accept_rate_is_the_chance_that_a_drafted_token_passes_the_test():
    draft, target = random_laws(2), random_laws(3)
    passes = (draft * torch.clamp(target / draft, max=1.0)).sum(-1)
    torch.testing.assert_close(accept_rate(draft, target), passes)


def test_a_reduced_vocabulary_gives_the_same_values_as_the_full_law_with_zeros():
    draft_ids = torch.tensor([1, 4, 6])
    draft, target = random_laws(4, (5, 3)), random_laws(5)
    full = torch.zeros(5, 8, dtype=torch.float64).index_copy(-1, draft_ids, draft)
    torch.testing.assert_close(accept_rate(draft, target[:, draft_ids]), accept_rate(full, target))
    torch.testing.assert_close(l1_distance(draft, target[:, draft_ids]), l1_distance(full, target))


def test_expected_accepted_length_equals_the_sum_over_every_outcome():
    conditional = torch.tensor([0.9, 0.5, 0.25])
    expected = 0.0
    for outcome in itertools.product([True, False], repeat=3):
        chance = 1.0
        for accepted, rate in zip(outcome, conditional.tolist(), strict=True):
            chance *= rate if accepted else 1 - rate
        accepted = next((k for k, ok in enumerate(outcome) if not ok), 3)
        expected += chance * (1 + accepted)
    assert expected_accepted_length(conditional).item() == pytest.approx(expected)
    assert survival(conditional).tolist() == pytest.approx([0.9, 0.45, 0.1125])
