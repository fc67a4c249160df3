"""Conditional acceptance and accepted length: expectations against drawn rounds, and positions never reached."""

import pytest
import torch

from draftlab.metrics import AcceptedLength, ConditionalAcceptance, reach


def drawn_rounds(rates, count):
    return (torch.rand(count, *rates.shape) < rates).float()


def test_expected_values_agree_with_drawn_rounds():
    rates, proposed = torch.rand(20, 4), torch.ones(20, 4, dtype=torch.bool)
    rounds = drawn_rounds(rates, 4000)
    for make in (lambda: ConditionalAcceptance(4), AcceptedLength):
        expected, counted = make(), make()
        expected.update(rates, proposed)
        counted.update(rounds, proposed.expand(4000, -1, -1))
        torch.testing.assert_close(expected.compute(), counted.compute(), atol=0.02, rtol=0)


def test_conditional_acceptance_counts_a_position_only_where_all_before_it_were_accepted():
    rounds = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    metric = ConditionalAcceptance(3)
    metric.update(rounds, torch.ones(3, 3, dtype=torch.bool))
    assert metric.compute().tolist() == pytest.approx([2 / 3, 1 / 2, 0 / 1])
    assert metric.reached.tolist() == [3, 2, 1]


def test_positions_that_were_not_proposed_do_not_count():
    metric = ConditionalAcceptance(3)
    metric.update(torch.ones(2, 3), torch.tensor([[True, True, True], [True, False, False]]))
    assert metric.reached.tolist() == [2, 1, 1]


def test_a_position_never_reached_is_nan():
    metric = ConditionalAcceptance(2)
    metric.update(torch.tensor([[0.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool))
    assert metric.compute()[0] == 0 and metric.compute()[1].isnan()
    assert AcceptedLength().compute().isnan()


def test_accepted_length_counts_the_bonus_and_leaves_out_rounds_cut_by_the_end_of_the_text():
    metric = AcceptedLength()
    metric.update(torch.tensor([[1.0, 0.5], [1.0, 1.0]]), torch.tensor([[True, True], [True, False]]))
    assert metric.compute() == 1 + 1.0 + 0.5


def test_reach_is_the_product_of_all_earlier_rates():
    assert reach(torch.tensor([0.5, 0.4, 0.1]), torch.ones(3, dtype=torch.bool)).tolist() == pytest.approx(
        [1, 0.5, 0.2]
    )
