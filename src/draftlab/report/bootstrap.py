"""95 % intervals over prompts for ratios of sums, by resampling whole prompts.

    value     Σ_p numerator_p / Σ_p weight_p
    interval  2.5 % and 97.5 % quantiles of the value over 2,000 resamples

Rounds of one prompt are not independent, prompts are: so prompts are drawn with replacement, never rounds. A resample
is a row of multinomial counts, hence all resamples of all columns are one matrix product. It knows nothing of what is
counted.

    >>> estimate = ratio(np.array([[3.0], [5.0]]), np.array([[2.0], [2.0]]))
    >>> float(estimate.value[0]), float(estimate.low[0]), float(estimate.high[0])
    (2.0, 1.5, 2.5)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
SEED = 0
METHOD = f"{100 * LEVEL:.0f} % percentile bootstrap over prompts ({RESAMPLES:,} resamples, ratio of sums, seed {SEED})"


@dataclass(frozen=True)
class Estimate:
    """Ratios of sums over prompts, one a column: value, interval, and the sums they come from (all [C])."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    numerator: np.ndarray
    weight: np.ndarray


def resample_counts(num_prompts: int, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """How often each prompt is drawn in each resample [resamples, P]; every row sums to P."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(num_prompts, np.full(num_prompts, 1.0 / num_prompts), size=resamples).astype(
        np.float64
    )


def resampled_ratio(numerator: np.ndarray, weight: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Ratio of sums in each resample [resamples, C] from sums by prompt [P, C]; NaN where a resample has weight 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return (counts @ numerator) / (counts @ weight)


def quantile_interval(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Low and high end [C] of the central interval of samples [resamples, C]; a column of NaN stays NaN."""
    low, high = np.full(samples.shape[1], np.nan), np.full(samples.shape[1], np.nan)
    known = ~np.isnan(samples).all(axis=0)
    if known.any():
        tail = (1.0 - LEVEL) / 2.0
        low[known], high[known] = np.nanquantile(samples[:, known], [tail, 1.0 - tail], axis=0)
    return low, high


def ratio(numerator: np.ndarray, weight: np.ndarray, resamples: int = RESAMPLES, seed: int = SEED) -> Estimate:
    """Estimate the ratio of column sums of numerator [P, C] and weight [P, C] with intervals over the P prompts.

    A column of weight 0 is NaN. One prompt alone gives a value without an interval (NaN): resampling it shows nothing.
    """
    totals, weights = numerator.sum(axis=0), weight.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = totals / weights
    if len(numerator) < 2:
        unknown = np.full(value.shape, np.nan)
        return Estimate(value, unknown, unknown, totals, weights)
    low, high = quantile_interval(resampled_ratio(numerator, weight, resample_counts(len(numerator), resamples, seed)))
    return Estimate(value, low, high, totals, weights)
