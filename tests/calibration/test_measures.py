"""Measures by position: equal to plain formulas, in both readings, with intervals over prompts."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from draftlab.calibration import CONDITIONAL, SURVIVAL, measure_table
from draftlab.calibration.measures import ece_floor
from draftlab.calibration.sts import NUM_BINS, calibration_error


@pytest.fixture
def case():
    """Conditional confidences [n, G] on a grid that the histogram of ROC-AUC tells apart, and what happened."""
    generator = np.random.default_rng(0)
    conditional = generator.integers(1, 100, (900, 3)) / 100 + 0.001
    passed = generator.uniform(size=conditional.shape) < conditional
    proposed = np.where(generator.uniform(size=900) < 0.1, 2, 3)
    accepted = np.minimum(passed.cumprod(axis=1).sum(axis=1), proposed)
    conditional[proposed < 3, 2] = np.nan
    return conditional, accepted, proposed, generator.integers(0, 30, 900)


def test_every_measure_is_its_formula(case):
    conditional, accepted, proposed, _ = case
    table = measure_table(*case).set_index(["reading", "position"])
    survival = np.nan_to_num(conditional, nan=1.0).cumprod(axis=1)
    for k in range(3):
        for reading, values, rows in (
            (CONDITIONAL, conditional, (proposed > k) & (accepted >= k)),
            (SURVIVAL, survival, proposed > k),
        ):
            predicted, outcome = values[rows, k], (accepted[rows] > k).astype(float)
            row = table.loc[(reading, k + 1)]
            assert (row["count"], row["positives"]) == (rows.sum(), outcome.sum())
            assert row["ece"] == pytest.approx(calibration_error(predicted, outcome))
            assert row["brier"] == pytest.approx(np.mean((predicted - outcome) ** 2))
            assert row["nll"] == pytest.approx(-np.mean(np.log(np.where(outcome > 0, predicted, 1 - predicted))))
            exact = float(binary_auroc(torch.tensor(predicted), torch.tensor(outcome, dtype=torch.long)))
            assert row["roc_auc"] == pytest.approx(exact, abs=3e-3)


def test_intervals_hold_the_value_and_shrink_with_more_prompts(case):
    conditional, accepted, proposed, prompt = case
    table = measure_table(*case)
    for name in ("brier", "nll", "roc_auc"):
        assert ((table[f"{name}_low"] <= table[name]) & (table[name] <= table[f"{name}_high"])).all()
    several = [
        np.tile(part, (4, 1)) if part.ndim == 2 else np.tile(part, 4) for part in (conditional, accepted, proposed)
    ]
    more = measure_table(*several, np.concatenate([prompt + 30 * i for i in range(4)]))
    assert ((more["brier_high"] - more["brier_low"]) < (table["brier_high"] - table["brier_low"])).all()


def test_a_single_prompt_has_no_interval_and_one_outcome_no_roc_auc(case):
    conditional, _, proposed, prompt = case
    table = measure_table(conditional, np.zeros(900, dtype=int), proposed, np.zeros_like(prompt))
    assert table["roc_auc"].isna().all() and table["ece_low"].isna().all()
    conditional_rows = table[table["reading"] == CONDITIONAL]
    assert conditional_rows["count"].tolist() == [900, 0, 0] and conditional_rows["ece"].isna().tolist() == [
        False,
        True,
        True,
    ]


def test_the_floor_is_the_mean_error_of_outcomes_drawn_with_the_predictions_themselves():
    generator = np.random.default_rng(1)
    predicted = generator.uniform(size=700)
    draws = [calibration_error(predicted, (generator.uniform(size=700) < predicted) * 1.0) for _ in range(2000)]
    mean, high = ece_floor(predicted, np.random.default_rng(2))
    assert mean == pytest.approx(np.mean(draws), rel=0.03) and high == pytest.approx(np.quantile(draws, 0.95), rel=0.05)
    # In a bin of n slots the mean misses by sqrt(2/pi) standard deviations: with many slots the floor is just that.
    spread = np.bincount((predicted * NUM_BINS).astype(int), predicted * (1 - predicted))
    assert mean == pytest.approx(np.sqrt(2 / np.pi * spread).sum() / 700, rel=0.05)


def test_the_floor_falls_with_more_slots_and_certain_predictions_have_none():
    generator = np.random.default_rng(3)
    few, many = (ece_floor(generator.uniform(size=size), generator)[0] for size in (400, 6400))
    assert many == pytest.approx(few / 4, rel=0.25)
    assert ece_floor(np.array([0.0, 1.0, 1.0]), generator) == (0.0, 0.0)
    assert np.isnan(ece_floor(np.zeros(0), generator)).all()
