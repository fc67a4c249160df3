"""Sequential Temperature Scaling finds the temperatures that made the confidences, and is the loop of the paper (case 20)."""

import numpy as np
import pytest
import torch
from torchmetrics.classification import BinaryCalibrationError

from draftlab.calibration import calibrated, confidence_logits, fit
from draftlab.calibration.sts import FEWEST, NUM_BINS, calibration_error, fit_survival


def rounds(num_rounds, gamma, temperatures, seed=0):
    """Rounds whose true conditional chances are σ(logit / T): logits [n, G], accepted [n], proposed [n]."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0.5, 2.0, (num_rounds, gamma)) * np.asarray(temperatures)
    passed = generator.uniform(size=logits.shape) < calibrated(logits, np.asarray(temperatures))
    return logits, passed.cumprod(axis=1).sum(axis=1), np.full(num_rounds, gamma)


def ece_twin(predicted, outcome, num_bins):
    """The formula, bin by bin."""
    total = 0.0
    for b in range(num_bins):
        rows = [i for i, p in enumerate(predicted) if min(int(p * num_bins), num_bins - 1) == b]
        if rows:
            gap = np.mean([predicted[i] for i in rows]) - np.mean([outcome[i] for i in rows])
            total += len(rows) / len(predicted) * abs(gap)
    return total


def fit_twin(logits, accepted, proposed, grid):
    """Position by position and temperature by temperature, survival recomputed from the start every time."""
    chosen = []
    for k in range(logits.shape[1]):
        rows = [i for i in range(len(logits)) if proposed[i] > k]
        errors = {}
        for temperature in grid:
            trial = [*chosen, temperature]
            survival = [np.prod([1 / (1 + np.exp(-logits[i, j] / trial[j])) for j in range(k + 1)]) for i in rows]
            errors[temperature] = ece_twin(survival, [float(accepted[i] > k) for i in rows], NUM_BINS)
        chosen.append(min(errors, key=lambda t: (round(errors[t], 12), abs(np.log(t)))))
    return chosen


def test_the_temperatures_that_made_the_confidences_are_found():
    temperatures = [2.0, 0.5, 1.0]
    found = fit(*rounds(60_000, 3, temperatures))
    assert found == pytest.approx(temperatures, rel=0.15)


def test_the_fit_equals_the_loop_and_counts_only_rounds_that_proposed_a_slot():
    logits, accepted, proposed = rounds(260, 3, [1.5, 0.7, 1.0], seed=1)
    proposed[:40] = 2
    accepted = np.minimum(accepted, proposed)
    logits[:40, 2] = np.nan
    grid = np.array([0.5, 0.8, 1.0, 1.3, 2.0])
    assert fit(logits, accepted, proposed, grid).tolist() == fit_twin(logits, accepted, proposed, grid)


def test_chances_in_place_of_outcomes_find_the_same_temperatures_with_less_noise():
    temperatures = [2.0, 0.5, 1.0]
    logits, _, _ = rounds(3000, 3, temperatures, seed=6)
    survived = calibrated(logits, np.asarray(temperatures)).cumprod(axis=1)
    found = fit_survival(logits, survived, np.ones_like(logits, dtype=bool))
    assert found == pytest.approx(temperatures, rel=0.03), "a grid point away at most"


def test_a_position_without_a_slot_keeps_temperature_one():
    logits, _, _ = rounds(500, 2, [2.0, 2.0], seed=7)
    proposed = np.array([True, False]) & np.ones_like(logits, dtype=bool)
    assert fit_survival(logits, calibrated(logits, np.full(2, 2.0)).cumprod(axis=1), proposed)[1] == 1.0


def test_the_survival_error_is_no_worse_after_the_fit_than_before_on_the_rounds_of_the_fit():
    logits, accepted, proposed = rounds(4000, 4, [3.0, 2.0, 0.6, 1.4], seed=2)
    temperatures = fit(logits, accepted, proposed)
    for k in range(4):
        outcome = (accepted > k).astype(float)
        before = calibration_error(calibrated(logits, np.ones(4)).cumprod(axis=1)[:, k], outcome)
        after = calibration_error(calibrated(logits, temperatures).cumprod(axis=1)[:, k], outcome)
        assert after <= before


def test_the_error_is_torchmetrics():
    generator = np.random.default_rng(3)
    predicted, outcome = generator.uniform(size=500), (generator.uniform(size=500) < 0.4).astype(float)
    metric = BinaryCalibrationError(n_bins=NUM_BINS, norm="l1")
    expected = float(metric(torch.tensor(predicted), torch.tensor(outcome, dtype=torch.long)))
    assert calibration_error(predicted, outcome) == pytest.approx(expected, abs=1e-6)
    assert calibration_error(predicted, outcome) == pytest.approx(ece_twin(predicted, outcome, NUM_BINS))


def test_temperature_one_leaves_confidences_as_they_are_and_none_changes_their_order():
    """Case 20."""
    confidence = np.random.default_rng(4).uniform(size=(50, 3)).astype(np.float32)
    logits = confidence_logits(confidence)
    assert calibrated(logits, np.ones(3)) == pytest.approx(confidence, abs=1e-6)
    for temperature in (0.2, 5.0):
        scaled = calibrated(logits, np.full(3, temperature))
        assert np.array_equal(np.argsort(scaled, axis=0), np.argsort(logits, axis=0))


def test_certain_confidences_have_finite_logits_and_unproposed_ones_stay_unknown():
    logits = confidence_logits(np.array([0.0, 1.0, np.nan], dtype=np.float32))
    assert np.isfinite(logits[:2]).all() and logits[0] == pytest.approx(-logits[1]) and np.isnan(logits[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda logits, a, p: (logits[:50], a[:50], p[:50]), f"50 rounds, but a temperature needs {FEWEST}"),
        (lambda logits, a, p: (np.where(logits > 3, np.inf, logits), a, p), "not finite"),
        (lambda logits, a, p: (logits, a[:-1], p), "expected logits"),
        (lambda logits, a, p: (logits, p + 1, p), "accepted <= proposed"),
        (lambda logits, a, p: (logits, a, p + 1), "proposed <= gamma"),
    ],
)
def test_rounds_that_cannot_be_calibrated_on_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        fit(*change(*rounds(400, 2, [1.0, 1.0])))
