"""ECE against torchmetrics, ROC-AUC against scikit-learn; states that add up and never grow."""

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torchmetrics.functional.classification import binary_calibration_error

from draftlab.metrics import CalibrationError, RocAuc


def scored(count=3000):
    score = torch.rand(count)
    return score, (torch.rand(count) < score**2).float()


def test_roc_auc_equals_scikit_learns_by_position():
    score, outcome = scored()
    both, outcomes = torch.stack([score, 1 - score], -1), outcome.unsqueeze(-1).expand(-1, 2)
    reached = torch.ones(3000, 2, dtype=torch.bool)
    reached[1000:, 1] = False
    metric = RocAuc(2)
    for rows in torch.arange(3000).split(700):
        metric.update(both[rows], outcomes[rows], reached[rows])
    expected = [roc_auc_score(outcome, score), roc_auc_score(outcome[:1000], 1 - score[:1000])]
    assert metric.compute().tolist() == pytest.approx(expected, abs=2e-3)


def test_equal_scores_give_one_half():
    metric = RocAuc(1)
    metric.update(torch.full((10, 1), 0.3), torch.tensor([0.0, 1.0] * 5).unsqueeze(-1), torch.ones(10, 1))
    assert metric.compute().item() == 0.5


def test_calibration_error_equals_torchmetrics():
    score, outcome = scored()
    metric = CalibrationError(1, num_bins=15)
    metric.update(score.unsqueeze(-1), outcome.unsqueeze(-1), torch.ones(3000, 1))
    expected = binary_calibration_error(score, outcome.long(), n_bins=15, norm="l1")
    assert metric.compute().item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("make", [RocAuc, CalibrationError])
def test_two_halves_add_up_to_the_whole_in_states_of_fixed_size(make):
    first, second, whole = make(3), make(3), make(3)
    for metric, count in ((first, 5), (second, 400)):
        slots = torch.rand(count, 3), torch.rand(count, 3).round(), torch.rand(count, 3) > 0.3
        metric.update(*slots)
        whole.update(*slots)
    for name in whole.metric_state:
        total = first.metric_state[name] + second.metric_state[name]
        torch.testing.assert_close(total, whole.metric_state[name])
        assert first.metric_state[name].shape == second.metric_state[name].shape


@pytest.mark.parametrize("make", [RocAuc, CalibrationError])
def test_a_position_never_reached_is_nan(make):
    metric = make(2)
    metric.update(torch.rand(8, 2), torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 4), torch.tensor([[True, False]] * 8))
    values = metric.compute()
    assert values[0].isfinite() and values[1].isnan()
