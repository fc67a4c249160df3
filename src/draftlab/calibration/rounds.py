"""Decode rounds as arrays for calibration: logits of the confidences, counts, prompts and domains.

    rounds = round_arrays(pandas.read_parquet("outputs/demo/calibration/rounds.parquet"), temperature=1.0)
    temperatures = fit(rounds.logits, rounds.accepted, rounds.proposed)

It checks what it is given and knows nothing of decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftlab.calibration.sts import confidence_logits


@dataclass(frozen=True)
class RoundArrays:
    """Rounds [n] of one temperature; logits [n, G] are NaN where a slot was not proposed, prompts count from 0."""

    logits: np.ndarray
    accepted: np.ndarray
    proposed: np.ndarray
    prompt: np.ndarray
    domain: np.ndarray

    def __len__(self) -> int:
        return len(self.accepted)

    def of(self, rows: np.ndarray) -> RoundArrays:
        """The rounds at ``rows`` (bool [n]), prompts counted anew."""
        prompt = np.unique(self.prompt[rows], return_inverse=True)[1]
        return RoundArrays(
            self.logits[rows], self.accepted[rows], self.proposed[rows], prompt.astype(np.int64), self.domain[rows]
        )


def round_arrays(rounds: pd.DataFrame, temperature: float, gamma: int) -> RoundArrays:
    """The rounds of ``temperature`` in a table as ``rounds.parquet`` holds it.

    Raises:
        ValueError: no round of that temperature, confidences that are missing, or blocks longer than ``gamma``.
    """
    rows = rounds[rounds["temperature"] == temperature]
    if rows.empty:
        there = ", ".join(f"{value:g}" for value in sorted(rounds["temperature"].unique()))
        raise ValueError(f"no round was decoded at temperature {temperature:g}; there are {there or 'none at all'}")
    proposed = rows["proposed"].to_numpy().astype(np.int64)
    lengths = rows["confidence"].map(lambda value: -1 if value is None else len(value)).to_numpy()
    if (lengths != proposed).any():
        raise ValueError(
            "the rounds hold no confidence for some proposed tokens; calibration needs a drafter with confidence head "
            "(drafter.confidence_head=true)"
        )
    if proposed.max() > gamma:
        raise ValueError(f"a round proposed {proposed.max()} tokens, but the drafter has gamma {gamma}")
    confidence = np.full((len(rows), gamma), np.nan)
    confidence[np.arange(gamma) < proposed[:, None]] = np.concatenate(rows["confidence"].to_list())
    prompt = rows.groupby(["benchmark", "prompt_id"], sort=True).ngroup().to_numpy()
    return RoundArrays(
        confidence_logits(confidence),
        rows["accepted"].to_numpy().astype(np.int64),
        proposed,
        prompt.astype(np.int64),
        rows["domain"].astype(str).to_numpy(),
    )
