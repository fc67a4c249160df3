"""What the drafters of a comparison cost: parameters, and the time of a round beside what the round commits.

    parameters      trained ones, the frozen ends of the target not counted
    draft_ms        milliseconds that drafting takes of a round, verify_ms the target's pass; of the speed comparison
    over_plain      tokens/s over plain decoding of the same prompts in the same run

What an evaluation did not record is NaN. It knows nothing of files.

    >>> cost_table(runs, [1.0])                                 # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from draftlab.report.run import Run
from draftlab.report.tables import ALL, length_table
from draftlab.report.template import table

HEADS = ("T", "run", "parameters", "tokens a round", "draft ms a round", "verify ms a round", "tokens/s over plain")
NOTE = (
    "Parameters are the trained ones. Milliseconds and tokens/s are of each run's own speed comparison, at its batch size and "
    "on the machine that it ran on; compare them across runs only if that was the same and idle."
)


def cost_table(runs: Sequence[Run], temperatures: Sequence[float]) -> pd.DataFrame:
    """One row a temperature and run: parameters, accepted_length (with bonus), draft_ms, verify_ms, over_plain, batch_size."""
    rows = []
    for temperature in temperatures:
        for run in runs:
            lengths = length_table(run.rounds[run.rounds["temperature"] == temperature])
            speed = speed_row(run, temperature)
            drafter = run.settings.get("drafter")
            parameters = drafter.get("parameters") if isinstance(drafter, Mapping) else None
            row = {"temperature": temperature, "run": run.name, "parameters": parameters or np.nan}
            row["accepted_length"] = float(lengths.loc[lengths["scope"] == ALL, "accepted_length"].iloc[0])
            row |= round_milliseconds(speed) | {"over_plain": speed.get("ratio", np.nan)}
            rows.append(row | {"batch_size": speed.get("batch_size", np.nan)})
    return pd.DataFrame(rows)


def speed_row(run: Run, temperature: float) -> Mapping:
    """The speed comparison of a run at a temperature; empty where there was none."""
    rows: list[Mapping] = run.speed.to_dict("records")
    return next((row for row in rows if row.get("temperature") == temperature), {})


def round_milliseconds(speed: Mapping) -> dict[str, float]:
    """Milliseconds that a round drafts and verifies, of a row of the speed comparison; NaN where rounds were not counted."""
    rounds = speed.get("rounds") or np.nan
    return {f"{part}_ms": 1000.0 * (speed.get(f"{part}_seconds") or np.nan) / rounds for part in ("draft", "verify")}


def cost_cells(rows: pd.DataFrame) -> list[list[str]]:
    """The rows as text under HEADS; a dash where nothing is known."""
    return [
        [
            f"{row['temperature']:g}",
            row["run"],
            _number(row["parameters"], ",.0f"),
            f"{row['accepted_length']:.2f}",
            _number(row["draft_ms"], ".1f"),
            _number(row["verify_ms"], ".1f"),
            _number(row["over_plain"], ".2f"),
        ]
        for row in rows.to_dict("records")
    ]


def cost_section(rows: pd.DataFrame) -> list[dict]:
    """The section of the page; none where nothing is known."""
    if rows[["parameters", "draft_ms", "over_plain"]].isna().all(axis=None):
        return []
    return [{"title": "What the drafters cost", "table": table(list(HEADS), cost_cells(rows), left=2), "note": NOTE}]


def _number(value: float, form: str) -> str:
    return "–" if np.isnan(value) else format(value, form)
