"""Position weights that follow acceptance, against loops over the slots of a block."""

import pytest
import torch

from draftlab.losses.positions import POSITION_WEIGHTS

RATES = torch.tensor([[0.9, 0.5, 0.25, 0.8], [0.0, 0.7, 0.0, 0.0], [0.3, 0.0, 0.0, 0.0]])
LABEL_PROBS = torch.tensor([[0.6, 0.2, 0.1, 0.9], [0.4, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
SUPERVISED = torch.tensor([[True] * 4, [True, True, False, False], [True, False, False, False]])


def factor(name):
    return POSITION_WEIGHTS[name].factor(RATES, LABEL_PROBS, SUPERVISED)


def test_a_position_weighs_by_the_product_of_the_accept_rates_before_it():
    expected = [[1.0, 0.9, 0.45, 0.1125], [1.0, 0.0], [1.0]]
    for row, values in enumerate(expected):
        assert factor("acceptance")[row, : len(values)].tolist() == pytest.approx(values)


def test_a_position_weighs_by_its_share_in_the_expected_accepted_length():
    """The derivative of Σ_m Π_{i≤m} q_i by log q_k, by automatic differentiation."""
    for row, mask in enumerate(SUPERVISED):
        smoothed = (0.5 + 0.5 * LABEL_PROBS[row][mask]).log().requires_grad_()
        length = sum(smoothed[: m + 1].sum().exp() for m in range(len(smoothed)))
        length.backward()
        torch.testing.assert_close(factor("expected_length")[row][mask], smoothed.grad)
    assert not factor("expected_length")[~SUPERVISED].any()


def test_the_decay_is_left_as_it_is():
    assert torch.equal(factor("decay"), torch.ones_like(RATES))
