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
from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

from draftlab.calibration.sts import confidence_logits

CONFIDENCE, DRAFT_TOP, EXPECTED = "confidence", "draft_top", "expected"
LACKING = {
    CONFIDENCE: "calibration of a head needs a drafter with confidence head (drafter.confidence_head=true)",
    DRAFT_TOP: "they are of an earlier version or of a drafter that does not tell it; decode them again",
    EXPECTED: "they are of an earlier version; decode them again",
}


WHOLE = ("proposed", "accepted", "committed", "round")  # columns of whole numbers
NAMES = ("benchmark", "domain", "prompt_id")
MOST = 10**9  # of any of them
DAMAGED = "the rounds were damaged or changed after they were recorded; evaluate again"


def with_counts(rounds: pd.DataFrame) -> pd.DataFrame:
    """``rounds`` with counts in int64 and a temperature in float64.

    Raises:
        ValueError: a column of other values, or more accepted than proposed tokens.
    """
    for name in rounds.columns.intersection(NAMES):
        if rounds[name].isna().any():
            raise ValueError(f"the column {name} must hold a name in every row; {DAMAGED}")
    found = {}
    for name in (name for name in (*WHOLE, "temperature") if name in rounds.columns):
        column = rounds[name]
        fits = is_numeric_dtype(column) and not is_bool_dtype(column) and not is_complex_dtype(column)
        values = column.to_numpy(dtype=np.float64, na_value=np.nan) if fits else np.full(len(column), np.nan)
        whole = name == "temperature" or bool((values == np.floor(values)).all())
        if not (whole and ((values >= 0) & (values <= MOST)).all()):
            raise ValueError(
                f"the column {name} must hold {'finite' if name == 'temperature' else 'whole'} numbers from 0 on; {DAMAGED}"
            )
        found[name] = values if name == "temperature" else values.astype(np.int64)
    if {"proposed", "accepted"} <= found.keys() and (found["accepted"] > found["proposed"]).any():
        raise ValueError(f"a round has more accepted than proposed tokens; {DAMAGED}")
    return rounds.assign(**found)


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
        ValueError: values that cannot be, no round of that temperature, scores that are missing, or blocks longer than ``gamma``.
    """
    rounds = with_counts(rounds)
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
    given = np.concatenate([np.zeros(0), *scores])
    if (
        given.dtype.kind not in "iuf" or ((given < 0) | (given > 1)).any()
    ):  # NaN, of a broken drafter, is the fit's to refuse
        raise ValueError(f"the column {source} must hold numbers from 0 to 1; {DAMAGED}")
    values[np.arange(gamma) < proposed[:, None]] = given
    prompt = rows.groupby(["benchmark", "prompt_id"], sort=True).ngroup().to_numpy()
    return RoundArrays(
        confidence_logits(values),
        rows["accepted"].to_numpy().astype(np.int64),
        proposed,
        prompt.astype(np.int64),
        rows["domain"].astype(str).to_numpy(),
    )
