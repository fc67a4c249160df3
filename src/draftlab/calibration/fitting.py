"""From rounds to a calibration: fit, and measure before and after, on the rounds of the fit and on others.

    calibration = calibrate(rounds, trained.identity, "held-out prompts")
    table = differences(head, baseline, rounds)          # which of two scores says better what happened

The module knows nothing of decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from draftlab.calibration.measures import (
    SURVIVAL,
    Slots,
    measure_table,
    measures,
    prompt_weights,
    readings,
    with_limits,
)
from draftlab.calibration.record import Calibration
from draftlab.calibration.rounds import CONFIDENCE, RoundArrays
from draftlab.calibration.sts import calibrated, fit

FIT, HELD_OUT = "fit", "held-out"
BEFORE, AFTER = "before", "after"
ALL_POSITIONS = 0  # the row of a table that pools the slots of every position
COMPARED = ("roc_auc", "ece", "nll")


def calibrate(rounds: RoundArrays, drafter: Mapping[str, Any], dataset: str, source: str = CONFIDENCE) -> Calibration:
    """Fit temperatures on ``rounds``, whose logits are of ``source``, and record every measure before and after.

    Raises:
        ValueError: see :func:`draftlab.calibration.sts.fit`.
    """
    temperatures = fit(rounds.logits, rounds.accepted, rounds.proposed)
    table = before_and_after(rounds, temperatures, FIT)
    survival = table[table["reading"] == SURVIVAL].sort_values("position")
    errors = {when: survival.loc[survival["when"] == when, "ece"].tolist() for when in (BEFORE, AFTER)}
    return Calibration(
        temperatures.tolist(),
        dataset,
        len(rounds),
        errors[BEFORE],
        errors[AFTER],
        dict(drafter),
        records(table),
        source,
    )


def before_and_after(rounds: RoundArrays, temperatures: np.ndarray, part: str) -> pd.DataFrame:
    """Rows of :func:`draftlab.calibration.measures.measure_table` with ``part`` and ``when`` (before, after)."""
    tables = []
    for when, used in ((BEFORE, np.ones_like(temperatures)), (AFTER, np.asarray(temperatures))):
        conditional = calibrated(rounds.logits, used)
        table = measure_table(conditional, rounds.accepted, rounds.proposed, rounds.prompt)
        tables.append(table.assign(part=part, when=when))
    return pd.concat(tables, ignore_index=True)


def differences(first: np.ndarray, second: np.ndarray, rounds: RoundArrays) -> pd.DataFrame:
    """Measures of the conditional confidences ``first`` [n, G] less those of ``second``, on the same rounds and resamples.

    One row a reading, position (ALL_POSITIONS: the slots of all pooled) and measure of COMPARED, with _low and _high over
    prompts. Both scores share each resample, so what they have in common, the luck of the rounds, drops out.
    """
    weights = prompt_weights(rounds.prompt)
    rows = []
    pair = zip(*(_with_pooled(scores, rounds) for scores in (first, second)), strict=True)
    for ours, theirs in pair:
        values = [measures(slots, weights) for slots in (ours, theirs)]
        for name in COMPARED:
            row = {"reading": ours.reading, "position": ours.position, "measure": name, "count": len(ours.predicted)}
            rows.append(row | with_limits("difference", values[0][name] - values[1][name], weights.shape[1]))
    return pd.DataFrame(rows)


def _with_pooled(conditional: np.ndarray, rounds: RoundArrays) -> list[Slots]:
    """The slots of every reading and position, then those of each reading at all positions together."""
    apart = list(readings(conditional, rounds.accepted, rounds.proposed, rounds.prompt))
    pooled = []
    for reading in dict.fromkeys(slots.reading for slots in apart):
        parts = [slots for slots in apart if slots.reading == reading]
        joined = (np.concatenate([getattr(p, name) for p in parts]) for name in ("predicted", "outcome", "prompt"))
        pooled.append(Slots(reading, ALL_POSITIONS, *joined))
    return apart + pooled


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain values; a number that is not known is None, as JSON has it."""
    rows = table.to_dict("records")
    return [{key: None if isinstance(v, float) and np.isnan(v) else v for key, v in row.items()} for row in rows]
