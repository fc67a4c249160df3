"""From rounds to a calibration: fit, and measure before and after, on the rounds of the fit and on others.

    calibration = calibrate(rounds, trained.identity, "held-out prompts")

The module knows nothing of decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftlab.calibration.measures import SURVIVAL, measure_table
from draftlab.calibration.record import Calibration
from draftlab.calibration.rounds import RoundArrays, round_arrays
from draftlab.calibration.sts import calibrated, fit

FIT, HELD_OUT = "fit", "held-out"
BEFORE, AFTER = "before", "after"


def calibrate(rounds: RoundArrays, drafter: Mapping[str, Any], dataset: str) -> Calibration:
    """Fit temperatures on ``rounds`` and record every measure before and after.

    Raises:
        ValueError: see :func:`draftlab.calibration.sts.fit`.
    """
    temperatures = fit(rounds.logits, rounds.accepted, rounds.proposed)
    table = before_and_after(rounds, temperatures, FIT)
    survival = table[table["reading"] == SURVIVAL].sort_values("position")
    errors = {when: survival.loc[survival["when"] == when, "ece"].tolist() for when in (BEFORE, AFTER)}
    return Calibration(
        temperatures.tolist(), dataset, len(rounds), errors[BEFORE], errors[AFTER], dict(drafter), records(table)
    )


def before_and_after(rounds: RoundArrays, temperatures: np.ndarray, part: str) -> pd.DataFrame:
    """Rows of :func:`draftlab.calibration.measures.measure_table` with ``part`` and ``when`` (before, after)."""
    tables = []
    for when, used in ((BEFORE, np.ones_like(temperatures)), (AFTER, np.asarray(temperatures))):
        conditional = calibrated(rounds.logits, used)
        table = measure_table(conditional, rounds.accepted, rounds.proposed, rounds.prompt)
        tables.append(table.assign(part=part, when=when))
    return pd.concat(tables, ignore_index=True)


def held_out_measures(calibration: Calibration, path: Path, temperature: float) -> list[dict[str, Any]]:
    """Measures on the rounds of an evaluation at ``path``; none, and a line that says so, where there are no such rounds."""
    try:
        if not path.is_file():
            raise ValueError("there is no evaluation")
        rounds = round_arrays(pd.read_parquet(path), temperature, len(calibration.temperatures))
    except ValueError as error:
        print(f"no held-out figures: {path}: {error}")
        return []
    return records(before_and_after(rounds, np.asarray(calibration.temperatures), HELD_OUT))


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain values; a number that is not known is None, as JSON has it."""
    rows = table.to_dict("records")
    return [{key: None if isinstance(v, float) and np.isnan(v) else v for key, v in row.items()} for row in rows]
