"""How well the confidence says what then happens: observed acceptance against predicted c_k, in ten bins, and the ECE.

    ECE = Σ_bins n_bin / n · |share accepted - mean confidence|

Only slots that were tested count: 1..k-1 were accepted and k was proposed, as c_k is conditional on all before it. By position
the same is given for the survival a_k too, over every round that proposed slot k.
It knows nothing of the drafter and nothing of pictures.

    >>> reliability_table(read_run("outputs/demo").rounds)   # doctest: +SKIP
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from draftlab.calibration.measures import readings
from draftlab.report.bootstrap import ratio

BINS = 10


def tested_slots(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row a tested slot: temperature, position (from 1), confidence, accepted (bool)."""
    rows = rounds[rounds["confidence"].map(lambda value: value is not None and np.ndim(value) == 1)]
    tested = np.minimum(rows["accepted"] + 1, rows["proposed"]).to_numpy()
    confidence = [
        np.asarray(value, dtype=np.float64)[:count] for value, count in zip(rows["confidence"], tested, strict=True)
    ]
    kept = np.array([len(value) for value in confidence], dtype=np.int64)
    position = np.concatenate([np.arange(1, count + 1) for count in kept]) if len(kept) else np.zeros(0, dtype=np.int64)
    return pd.DataFrame(
        {
            "temperature": np.repeat(rows["temperature"].to_numpy(), kept),
            "position": position,
            "confidence": np.concatenate(confidence) if len(kept) else np.zeros(0),
            "accepted": position <= np.repeat(rows["accepted"].to_numpy(), kept),
        }
    )


def reliability_table(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row a temperature and filled bin: bin, count, mean confidence, share accepted. Empty without confidences."""
    columns = ["temperature", "bin", "count", "confidence", "accepted"]
    if "confidence" not in rounds.columns:
        return pd.DataFrame(columns=columns)
    slots = tested_slots(rounds)
    slots["bin"] = np.minimum((slots["confidence"] * BINS).astype(int), BINS - 1)
    grouped = slots.groupby(["temperature", "bin"], sort=True)
    table = grouped.agg(count=("accepted", "size"), confidence=("confidence", "mean"), accepted=("accepted", "mean"))
    return table.reset_index()[columns]


def calibration_error(bins: pd.DataFrame) -> float:
    """ECE of the rows of one temperature; NaN without slots."""
    if bins["count"].sum() == 0:
        return float("nan")
    return float(np.average((bins["accepted"] - bins["confidence"]).abs(), weights=bins["count"]))


def position_bins(
    conditional: np.ndarray, accepted: np.ndarray, proposed: np.ndarray, prompt: np.ndarray
) -> pd.DataFrame:
    """One row a reading, position (from 1) and filled bin: count, mean predicted, share observed with _low and _high.

    The readings are those of :mod:`draftlab.calibration.measures`; intervals are over prompts.
    """
    rows = []
    for slots in readings(conditional, accepted, proposed, prompt):
        place = np.minimum((slots.predicted * BINS).astype(np.int64), BINS - 1)
        num_prompts = int(slots.prompt.max()) + 1 if len(slots.prompt) else 0
        count, predicted, observed = (
            np.bincount(slots.prompt * BINS + place, values, minlength=num_prompts * BINS).reshape(num_prompts, BINS)
            for values in (np.ones(len(place)), slots.predicted, slots.outcome)
        )
        share = ratio(observed, count)
        for index in np.flatnonzero(share.weight):
            row = {"reading": slots.reading, "position": slots.position, "bin": int(index)}
            row |= {"count": int(share.weight[index]), "predicted": predicted[:, index].sum() / share.weight[index]}
            row |= {"observed": share.value[index], "observed_low": share.low[index]}
            rows.append(row | {"observed_high": share.high[index]})
    columns = ["reading", "position", "bin", "count", "predicted", "observed", "observed_low", "observed_high"]
    return pd.DataFrame(rows, columns=columns)
