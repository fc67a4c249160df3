"""How well the confidence says what then happens: observed acceptance against predicted c_k, in ten bins, and the ECE.

    ECE = Σ_bins n_bin / n · |share accepted - mean confidence|

Only slots that were tested count: 1..k-1 were accepted and k was proposed, as c_k is conditional on all before it.
It knows nothing of the drafter and nothing of pictures.

    >>> reliability_table(read_run("outputs/demo").rounds)   # doctest: +SKIP
"""

from __future__ import annotations

import numpy as np
import pandas as pd

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
