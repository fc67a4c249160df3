"""Sequential Temperature Scaling: one temperature a position, fitted from left to right (method 4).

    ĉ_k = σ(logit_k / T_k)            a_k = Π_{i≤k} ĉ_i
    T_k = argmin_T ECE( σ(logit_k / T) · a_{k-1},  1[prefix of length k accepted] )        for k = 1..G in order

The scheduler needs absolute prefix probabilities, so each T_k is fitted on the *survival* a_k, earlier positions fixed at
their calibrated values. Every round that proposed slot k counts there, also one whose prefix ended before. Scaling keeps the
order of confidences at a position, so ROC-AUC of the conditional confidence does not change. The module knows nothing of
drafters or files.

    temperatures = fit(logits, accepted, proposed)                # [n, G], [n], [n] -> [G]
    conditional = calibrated(logits, temperatures)                # [n, G] in [0, 1]
"""

from __future__ import annotations

import numpy as np

NUM_BINS = 15  # equal-width bins of the ECE
FEWEST = 200  # rounds without which an ECE says little about a temperature
# Temperatures that are tried, 1 among them: a hundredfold range each way would not be calibration any more.
GRID = np.geomspace(0.1, 10.0, 241)
EDGE = 1e-7  # a float32 confidence closer to 0 or 1 has no logit left


def confidence_logits(confidence: np.ndarray) -> np.ndarray:
    """Logits of recorded float32 confidences in [0, 1], the ends taken in by 1e-7; NaN (not proposed) stays."""
    clipped = np.clip(np.asarray(confidence, dtype=np.float64), EDGE, 1.0 - EDGE)
    return np.log(clipped) - np.log1p(-clipped)


def calibrated(logits: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
    """Calibrated conditional confidences ĉ [..., G] of ``logits`` [..., G]."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-np.asarray(logits, dtype=np.float64) / np.asarray(temperatures)))


def fit(
    logits: np.ndarray, accepted: np.ndarray, proposed: np.ndarray, grid: np.ndarray = GRID, num_bins: int = NUM_BINS
) -> np.ndarray:
    """Temperatures [G] that give each position's survival the least ECE, the one nearest to 1 of equal ones.

    Args:
        logits: [n, G] confidence logits; NaN where a slot was not proposed.
        accepted: [n] accepted tokens of each round. proposed: [n] proposed tokens.
        grid: temperatures to try, positive. num_bins: of the ECE.

    Raises:
        ValueError: too few rounds at a position, or logits of proposed slots that are not finite.
    """
    check_rounds(logits, accepted, proposed)
    slots = np.arange(logits.shape[1])
    survived = (accepted[:, None] > slots).astype(np.float64)
    return fit_survival(logits, survived, proposed[:, None] > slots, grid, num_bins)


def fit_survival(
    logits: np.ndarray,
    survived: np.ndarray,
    proposed: np.ndarray,
    grid: np.ndarray = GRID,
    num_bins: int = NUM_BINS,
) -> np.ndarray:
    """The same from ``survived`` [n, G], 1 or 0 or the chance that the prefix was accepted, at ``proposed`` slots (bool [n, G]).

    A chance in place of an outcome has the same mean and none of its noise. A position without a slot keeps 1.
    """
    grid = grid[np.argsort(np.abs(np.log(grid)), kind="stable")]  # argmin then takes the one nearest to 1
    temperatures = np.ones(logits.shape[1])
    before = np.ones(len(logits))  # a_{k-1}
    for k in np.flatnonzero(proposed.any(axis=0)):
        rows = proposed[:, k]
        outcome = survived[rows, k]
        errors = [
            calibration_error(calibrated(logits[rows, k], value) * before[rows], outcome, num_bins) for value in grid
        ]
        temperatures[k] = grid[int(np.argmin(errors))]
        before[rows] *= calibrated(logits[rows, k], temperatures[k])
    return temperatures


def check_rounds(logits: np.ndarray, accepted: np.ndarray, proposed: np.ndarray) -> None:
    """Refuse rounds that cannot be calibrated on.

    Raises:
        ValueError: shapes that do not agree, impossible counts, too few rounds, or logits that are not finite.
    """
    if logits.ndim != 2 or accepted.shape != logits.shape[:1] or proposed.shape != logits.shape[:1]:
        raise ValueError(
            f"expected logits [rounds, gamma] and counts [rounds], got {logits.shape}, {accepted.shape}, {proposed.shape}"
        )
    if np.any(accepted < 0) or np.any(accepted > proposed) or np.any(proposed > logits.shape[1]):
        raise ValueError("expected 0 <= accepted <= proposed <= gamma in every round")
    for k in range(logits.shape[1]):
        values = logits[proposed > k, k]
        if len(values) < FEWEST:
            raise ValueError(
                f"position {k + 1} was proposed in {len(values)} rounds, but a temperature needs {FEWEST}; decode more "
                "prompts or longer answers"
            )
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            raise ValueError(
                f"position {k + 1} has {bad} confidence logits that are not finite; train the drafter again"
            )


def calibration_error(predicted: np.ndarray, outcome: np.ndarray, num_bins: int = NUM_BINS) -> float:
    """ECE of ``predicted`` [n] in [0, 1] against ``outcome`` [n], 0 or 1 or its chance, over equal-width bins."""
    gap = np.bincount(bins(predicted, num_bins), predicted - outcome, minlength=num_bins)
    return float(np.abs(gap).sum() / len(predicted))


def bins(values: np.ndarray, num_bins: int) -> np.ndarray:
    """Equal-width bin of values [...] in [0, 1]; 1 itself belongs to the last."""
    return np.minimum((values * num_bins).astype(np.int64), num_bins - 1)
