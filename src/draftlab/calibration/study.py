"""Everything that rounds say about confidences: the calibration, the baseline without a head, the ceiling, transfer and drift.

    head       c_k, scaled                 baseline   top probability of the draft law, scaled in the same way
    ceiling    c*_k itself: outcomes are drawn with it, so no head can rank or predict these rounds better, but for luck

The part that is tested on is the run's evaluation where there is one, whose prompts the fit has not seen. It knows nothing of
decoding, files or pictures.

    study = make_study(StudyRounds(fit, held_out, drift={0.7: …}), temperature=1.0, drafter=identity, dataset="…")
    study.calibration.save("outputs/demo/calibration.json")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from draftlab.calibration.fitting import (
    BEFORE,
    FIT,
    HELD_OUT,
    before_and_after,
    calibrate,
    differences,
    records,
)
from draftlab.calibration.record import Calibration
from draftlab.calibration.rounds import CONFIDENCE, DRAFT_TOP, EXPECTED, RoundArrays, round_arrays
from draftlab.calibration.sts import calibrated
from draftlab.calibration.transfer import drift_table, halves, transfer_table


@dataclass(frozen=True)
class StudyRounds:
    """Tables as ``rounds.parquet`` holds them: to fit on, to test on (None: there is no evaluation), and decoded at other
    temperatures of sampling."""

    fit: pd.DataFrame
    held_out: pd.DataFrame | None = None
    drift: Mapping[float, pd.DataFrame] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """``measures``, ``differences``, ``transfer`` and ``drift`` are tables; ``rounds`` those of the part that is tested, by
    source, ``notes`` what could not be done and why."""

    calibration: Calibration
    baseline: Calibration | None
    temperature: float
    part: str
    rounds: Mapping[str, RoundArrays]
    measures: pd.DataFrame
    differences: pd.DataFrame
    transfer: pd.DataFrame
    drift: pd.DataFrame
    notes: tuple[str, ...] = ()

    def conditional(self, scaled: bool = True) -> np.ndarray:
        """Conditional confidences [n, G] of the tested rounds, scaled or as the drafter gave them."""
        rounds = self.rounds[self.calibration.source]
        return self.calibration(rounds.logits) if scaled else calibrated(rounds.logits, np.ones(rounds.logits.shape[1]))


def make_study(
    rounds: StudyRounds, temperature: float, drafter: Mapping[str, Any], dataset: str, has_head: bool = True
) -> Study:
    """Fit on ``rounds.fit`` and test on ``rounds.held_out``, or on the rounds of the fit where there are none.

    ``drafter`` is the identity that the calibration is kept with; its ``block_size`` is gamma. Without a head (``has_head``
    false) the top probability of the draft law takes its place.

    Raises:
        ValueError: rounds that cannot be calibrated on; see :func:`draftlab.calibration.sts.check_rounds`.
    """
    notes: list[str] = []
    gamma = drafter["block_size"]
    primary = CONFIDENCE if has_head else DRAFT_TOP
    fitted = {primary: round_arrays(rounds.fit, temperature, gamma, primary)}
    fitted |= _others(rounds.fit, temperature, gamma, [DRAFT_TOP, EXPECTED], fitted, notes)
    tested, part = fitted, FIT
    if rounds.held_out is not None:
        held_out = _others(rounds.held_out, temperature, gamma, list(fitted), {}, notes)
        if primary in held_out:
            tested, part = held_out, HELD_OUT
    calibrations = {
        source: calibrate(fitted[source], drafter, dataset, source) for source in fitted if source != EXPECTED
    }
    measured = _measures(calibrations, fitted, tested, part)
    calibration = calibrations[primary].with_measures(
        records(measured[(measured["source"] == primary) & (measured["part"] == HELD_OUT)].drop(columns="source"))
    )
    baseline = calibrations.get(DRAFT_TOP) if has_head else None
    compared = pd.DataFrame()
    if baseline is not None and DRAFT_TOP in tested:
        scores = (chosen(tested[chosen.source].logits) for chosen in (calibration, baseline))
        compared = differences(*scores, tested[primary])
    apart = (fitted[primary], tested[primary]) if part == HELD_OUT else halves(fitted[primary])
    drifted = {temperature: tested[primary]} | {
        other: round_arrays(table, other, gamma, primary) for other, table in rounds.drift.items()
    }
    return Study(
        calibration=calibration,
        baseline=baseline,
        temperature=temperature,
        part=part,
        rounds=tested,
        measures=measured,
        differences=compared,
        transfer=transfer_table(*apart),
        drift=drift_table(drifted, np.asarray(calibration.temperatures)),
        notes=tuple(notes),
    )


def _others(table: pd.DataFrame, temperature: float, gamma: int, sources, known, notes) -> dict[str, RoundArrays]:
    """The arrays of ``sources`` that are not ``known``; what is not there is told in ``notes``."""
    found = {}
    for source in sources:
        if source in known:
            continue
        try:
            found[source] = round_arrays(table, temperature, gamma, source)
        except ValueError as error:
            notes.append(f"{source}: {error}")
    return found


def _measures(calibrations, fitted, tested, part) -> pd.DataFrame:
    """Rows by source, part and when; the ceiling stands as it is, under BEFORE."""
    tables = []
    for name, arrays in {FIT: fitted, part: tested}.items():
        for source, rounds in arrays.items():
            scaled = calibrations[source].temperatures if source in calibrations else np.ones(rounds.logits.shape[1])
            table = before_and_after(rounds, np.asarray(scaled), name).assign(source=source)
            tables.append(table if source in calibrations else table[table["when"] == BEFORE])
    return pd.concat(tables, ignore_index=True)
