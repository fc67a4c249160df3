"""How good probabilities of acceptance are, by position, with intervals over prompts (method 4).

    ECE = Σ_bins n_b/n |mean predicted_b - mean outcome_b|        Brier = mean (predicted - outcome)²
    ece_floor = mean ECE of outcomes drawn with the predicted chances themselves: what perfect calibration would show here
    NLL = -mean log of the predicted chance of what happened      ROC-AUC = P(predicted of an accepted > of a rejected)

In two readings. *conditional*: c_k, over rounds in which 1..k-1 were accepted. *survival*: a_k = Π_{i≤k} c_i, over every
round that proposed slot k, against "prefix of length k accepted". Each is made from sums by prompt, so that a resample of
prompts is one matrix product. The module knows nothing of temperatures or files.

    rows = measure_table(conditional, accepted, proposed, prompt)     # one row a reading and position
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftlab.calibration.sts import NUM_BINS, bins

CONDITIONAL, SURVIVAL = "conditional", "survival"
RANK_BINS = 400  # of the histogram behind ROC-AUC
RESAMPLES, LEVEL, SEED = 500, 0.95, 0
FLOOR_DRAWS, FLOOR_CHUNK = 200, 25
SMALLEST = 1e-12  # a chance below it would make one round's NLL infinite


@dataclass(frozen=True)
class Slots:
    """Slots [n] of one reading and position: what was predicted, what happened, and of which prompt (from 0)."""

    reading: str
    position: int
    predicted: np.ndarray
    outcome: np.ndarray
    prompt: np.ndarray


def readings(
    conditional: np.ndarray, accepted: np.ndarray, proposed: np.ndarray, prompt: np.ndarray
) -> Iterator[Slots]:
    """Both readings of every position of rounds with ``conditional`` [n, G] and counts [n]; positions from 1."""
    survival = np.cumprod(np.nan_to_num(conditional, nan=1.0), axis=1)
    for k in range(conditional.shape[1]):
        proposals = proposed > k
        for reading, values, rows in (
            (CONDITIONAL, conditional, proposals & (accepted >= k)),
            (SURVIVAL, survival, proposals),
        ):
            yield Slots(reading, k + 1, values[rows, k], (accepted[rows] > k).astype(np.float64), prompt[rows])


def measure_table(
    conditional: np.ndarray, accepted: np.ndarray, proposed: np.ndarray, prompt: np.ndarray
) -> pd.DataFrame:
    """One row a reading and position: count, positives, and ece, brier, nll, roc_auc with _low and _high over prompts.

    ``ece_floor`` and ``ece_floor_high`` are the mean and the 95 % quantile of the ECE that calibrated predictions would have. A
    measure without data is NaN; so is the interval of a single prompt.
    """
    weights = prompt_weights(prompt)
    generator = np.random.default_rng(SEED)
    rows = []
    for slots in readings(conditional, accepted, proposed, prompt):
        row = {"reading": slots.reading, "position": slots.position, "count": len(slots.predicted)}
        row["positives"] = int(slots.outcome.sum())
        for name, values in measures(slots, weights).items():
            row |= with_limits(name, values, weights.shape[1])
        row["ece_floor"], row["ece_floor_high"] = ece_floor(slots.predicted, generator)
        rows.append(row)
    return pd.DataFrame(rows)


def prompt_weights(prompt: np.ndarray) -> np.ndarray:
    """How often each of the P prompts counts, [1 + RESAMPLES, P]: once each as measured, then in every bootstrap resample."""
    num_prompts = int(prompt.max()) + 1 if len(prompt) else 0
    generator = np.random.default_rng(SEED)
    counts = generator.multinomial(num_prompts, np.full(num_prompts, 1.0 / num_prompts), size=RESAMPLES)
    return np.concatenate([np.ones((1, num_prompts)), counts])


def with_limits(name: str, values: np.ndarray, num_prompts: int) -> dict[str, float]:
    """``name``, name_low and name_high of ``values`` [1 + RESAMPLES], the measured one first; one prompt has no interval."""
    low, high = _interval(values[1:], num_prompts)
    return {name: float(values[0]), f"{name}_low": low, f"{name}_high": high}


def ece_floor(predicted: np.ndarray, generator: np.random.Generator) -> tuple[float, float]:
    """Mean and 95 % quantile of the ECE of ``predicted`` [n] against outcomes drawn with just these chances.

    Not 0: in each bin, the outcomes of finitely many slots miss their mean by chance.
    """
    if not len(predicted):
        return float("nan"), float("nan")
    chances = np.sort(predicted)
    starts = np.flatnonzero(np.diff(bins(chances, NUM_BINS), prepend=-1))
    draws = np.empty(FLOOR_DRAWS)
    for first in range(0, FLOOR_DRAWS, FLOOR_CHUNK):
        outcome = generator.random((FLOOR_CHUNK, len(chances))) < chances
        draws[first : first + FLOOR_CHUNK] = np.abs(np.add.reduceat(chances - outcome, starts, axis=1)).sum(axis=1)
    draws /= len(chances)
    return float(draws.mean()), float(np.quantile(draws, LEVEL))


def measures(slots: Slots, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Each measure [S] under ``weights`` [S, P]: how often every prompt counts."""
    predicted, outcome = slots.predicted, slots.outcome
    happened = np.where(outcome > 0, predicted, 1.0 - predicted)
    first = np.zeros(len(predicted), dtype=np.int64)
    total = _by_prompt(slots, first, np.ones(len(predicted)), 1, weights)[:, 0]
    gaps = _by_prompt(slots, bins(predicted, NUM_BINS), predicted - outcome, NUM_BINS, weights)
    rank = bins(predicted, RANK_BINS)
    positives = _by_prompt(slots, rank, outcome, RANK_BINS, weights)
    negatives = _by_prompt(slots, rank, 1.0 - outcome, RANK_BINS, weights)
    squares = _by_prompt(slots, first, (predicted - outcome) ** 2, 1, weights)[:, 0]
    surprise = _by_prompt(slots, first, -np.log(np.maximum(happened, SMALLEST)), 1, weights)[:, 0]
    below = negatives.cumsum(axis=1) - negatives
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "ece": np.abs(gaps).sum(axis=1) / total,
            "brier": squares / total,
            "nll": surprise / total,
            "roc_auc": (positives * (below + 0.5 * negatives)).sum(axis=1)
            / (positives.sum(axis=1) * negatives.sum(axis=1)),
        }


def _by_prompt(slots: Slots, place: np.ndarray, values: np.ndarray, size: int, weights: np.ndarray) -> np.ndarray:
    """Sums of ``values`` [n] by ``place`` [n] in 0..size-1, prompts counted as ``weights`` [S, P] say: [S, size]."""
    num_prompts = weights.shape[1]
    flat = np.bincount(slots.prompt * size + place, values, minlength=num_prompts * size)
    return weights @ flat.reshape(num_prompts, size)


def _interval(values: np.ndarray, num_prompts: int) -> tuple[float, float]:
    if num_prompts < 2 or np.isnan(values).all():
        return float("nan"), float("nan")
    tail = (1.0 - LEVEL) / 2.0
    low, high = np.nanquantile(values, [tail, 1.0 - tail])
    return float(low), float(high)
