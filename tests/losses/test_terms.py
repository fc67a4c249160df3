"""Single terms at laws whose values are known."""

import pytest
import torch

from draftlab.acceptance import accept_rate
from draftlab.losses import Confidence, CrossEntropy, Slots, TotalVariation


def slots(draft, target, label=0, confidence=0.0):
    draft, target = torch.tensor([draft]), torch.tensor([target])
    labels = torch.tensor([label])
    return Slots(draft.log(), labels, accept_rate(draft, target), torch.tensor([confidence]))


@pytest.mark.parametrize(
    ("draft", "target", "distance"),
    [([1.0, 0.0], [0.0, 1.0], 2.0), ([1.0, 0.0], [1.0, 0.0], 0.0), ([0.5, 0.5], [0.7, 0.3], 0.4)],
)
def test_total_variation_is_2_for_disjoint_laws_and_0_for_equal_ones(draft, target, distance):
    """Case 9."""
    assert TotalVariation(1.0)(slots(draft, target)).item() == pytest.approx(distance)


def test_cross_entropy_is_minus_the_log_probability_and_0_outside_the_draft_vocabulary():
    law = slots([0.25, 0.75], [0.5, 0.5], label=1)
    assert CrossEntropy(1.0)(law).item() == pytest.approx(0.28768, abs=1e-5)
    assert CrossEntropy(1.0)(slots([0.25, 0.75], [0.5, 0.5], label=-1)).item() == 0


def test_an_impossible_label_does_not_poison_the_gradient():
    law = torch.tensor([[0.0, 1.0]]).log().requires_grad_()
    value = CrossEntropy(1.0)(Slots(law, torch.tensor([-1]), None, None))
    value.sum().backward()
    assert torch.equal(law.grad, torch.zeros_like(law))


def test_the_confidence_term_is_least_at_the_accept_rate_and_survives_rounding_beyond_1():
    term = Confidence(1.0)
    at = [term(slots([0.5, 0.5], [0.7, 0.3], confidence=c)).item() for c in (0.0, 1.3863, 3.0)]  # σ(1.3863) = 0.8
    assert at[1] < at[0] and at[1] < at[2]
    beyond = Slots(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([1.0 + 1e-6]), torch.tensor([0.0]))
    assert torch.isfinite(term(beyond)).all()


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_a_weight_that_is_negative_or_not_finite_is_refused(weight):
    with pytest.raises(ValueError, match="CrossEntropy must be a number >= 0"):
        CrossEntropy(weight)
