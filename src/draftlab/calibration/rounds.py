"""Decode rounds as arrays for calibration: logits of a score a slot, counts, prompts and domains.

    confidence   c_k of the drafter's head
    draft_top    max_v p_d^k(v) of the untempered draft law: the baseline without a head. Like c_k it does not know x_k, so a
                 scheduler may use it without changing the output law.
    expected     c*_k = 1 - TV of the two laws: what the outcome really is drawn with, hence what a perfect head would say

    rounds = round_arrays(pandas.read_parquet("outputs/demo/calibration/rounds.parquet"), temperature=1.0)
    temperatures = fit(rounds.logits, rounds.accepted, rounds.proposed)

It checks what it is given and knows nothing of decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftlab.calibration.sts import confidence_logits

CONFIDENCE, DRAFT_TOP, EXPECTED = "confidence", "draft_top", "expected"
LACKING = {
    CONFIDENCE: "calibration of a head needs a drafter with confidence head (drafter.confidence_head=true)",
    DRAFT_TOP: "they are of an earlier version or of a drafter that does not tell it; decode them again",
    EXPECTED: "they are of an earlier version; decode them again",
}


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


def round_arrays(rounds: pd.DataFrame, temperature: float, gamma: int, source: str = CONFIDENCE) -> RoundArrays:
    """The rounds of ``temperature`` in a table as ``rounds.parquet`` holds it, with the scores of column ``source``.

    Raises:
        ValueError: no round of that temperature, scores that are missing, or blocks longer than ``gamma``.
    """
    rows = rounds[rounds["temperature"] == temperature]
    if rows.empty:
        there = ", ".join(f"{value:g}" for value in sorted(rounds["temperature"].unique()))
        raise ValueError(f"no round was decoded at temperature {temperature:g}; there are {there or 'none at all'}")
    proposed = rows["proposed"].to_numpy().astype(np.int64)
    scores = rows[source] if source in rows.columns else pd.Series([None] * len(rows))
    lengths = scores.map(lambda value: len(value) if np.ndim(value) == 1 else -1).to_numpy()
    if (lengths != proposed).any():
        raise ValueError(f"the rounds hold no {source} for some proposed tokens; {LACKING[source]}")
    if proposed.max() > gamma:
        raise ValueError(
            f"a round proposed {proposed.max()} tokens, but the drafter has gamma {gamma}: the rounds are of another drafter; "
            "decode its own"
        )
    values = np.full((len(rows), gamma), np.nan)
    values[np.arange(gamma) < proposed[:, None]] = np.concatenate(scores.to_list())
    prompt = rows.groupby(["benchmark", "prompt_id"], sort=True).ngroup().to_numpy()
    return RoundArrays(
        confidence_logits(values),
        rows["accepted"].to_numpy().astype(np.int64),
        proposed,
        prompt.astype(np.int64),
        rows["domain"].astype(str).to_numpy(),
    )
