"""Whether temperatures hold elsewhere: fitted on one domain and tested on another, fitted at one temperature of sampling and
tested at others.

    mean ECE = 1/G Σ_k ECE of the survival a_k           one number a cell, with an interval over the tested prompts

The floor beside it is what perfect calibration would show on as many slots. Positions deep in the block are seldom reached,
so their ECE is small whatever the temperatures; compare cells of one tested set, not sets with each other. The module knows
nothing of files or decoding.

    table = transfer_table(fitted_on, tested_on)          # RoundArrays of different prompts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from draftlab.calibration.measures import (
    CONDITIONAL,
    SEED,
    SURVIVAL,
    Slots,
    ece_floor,
    measures,
    prompt_weights,
    readings,
    with_limits,
)
from draftlab.calibration.rounds import RoundArrays
from draftlab.calibration.sts import calibrated, fit

UNSCALED, POOLED, OWN = "not scaled", "all domains", "the tested rounds themselves"


def halves(rounds: RoundArrays) -> tuple[RoundArrays, RoundArrays]:
    """Rounds of every second prompt, and of the others: one part to fit on and one to test on."""
    return rounds.of(rounds.prompt % 2 == 0), rounds.of(rounds.prompt % 2 == 1)


def transfer_table(fitted_on: RoundArrays, tested_on: RoundArrays) -> pd.DataFrame:
    """One row a pair of domains: fitted, tested, rounds, ece_survival with limits and floor, and ``reason`` where it is missing.

    ``fitted`` has UNSCALED, each domain and POOLED; ``tested`` has each domain and POOLED. A domain with too few rounds for a
    fit keeps its rows, without numbers and with the reason.
    """
    gamma = fitted_on.logits.shape[1]
    fitted: dict[str, np.ndarray | str] = {UNSCALED: np.ones(gamma)}
    for name, rounds in by_domain(fitted_on):
        try:
            fitted[name] = fit(rounds.logits, rounds.accepted, rounds.proposed)
        except ValueError as error:
            fitted[name] = str(error)
    rows = []
    for tested, rounds in by_domain(tested_on):
        for name, temperatures in fitted.items():
            row = {"fitted": name, "tested": tested, "rounds": len(rounds)}
            rows.append(row | _cell(temperatures, rounds))
    return pd.DataFrame(rows)


def drift_table(tested: Mapping[float, RoundArrays], temperatures: np.ndarray) -> pd.DataFrame:
    """One row a sampling temperature of ``tested`` and set of ``temperatures``: unscaled, these, and those fitted on the
    tested rounds, the least that could be had."""
    rows = []
    for sampling, rounds in tested.items():
        try:
            own = fit(rounds.logits, rounds.accepted, rounds.proposed)
        except ValueError as error:
            own = str(error)
        choices = {UNSCALED: np.ones_like(temperatures), "calibration.json": temperatures, OWN: own}
        for name, used in choices.items():
            row = {"sampling": sampling, "fitted": name, "rounds": len(rounds)}
            rows.append(row | _cell(used, rounds) | _ranking(rounds))
    return pd.DataFrame(rows)


def by_domain(rounds: RoundArrays) -> Iterator[tuple[str, RoundArrays]]:
    """Each domain by name, then all rounds as POOLED where there are several."""
    names = sorted(set(rounds.domain))
    for name in names:
        yield name, rounds.of(rounds.domain == name)
    if len(names) > 1:
        yield POOLED, rounds


def _cell(temperatures: np.ndarray | str, rounds: RoundArrays) -> dict[str, float | str]:
    """Mean survival ECE of ``rounds`` under ``temperatures``; NaN and the reason where these could not be fitted."""
    if isinstance(temperatures, str):
        missing = dict.fromkeys(("ece_survival", "ece_survival_low", "ece_survival_high", "ece_floor"), float("nan"))
        return {**missing, "reason": temperatures}
    slots = _slots(calibrated(rounds.logits, temperatures), rounds, SURVIVAL)
    weights, generator = prompt_weights(rounds.prompt), np.random.default_rng(SEED)
    values = np.mean([measures(part, weights)["ece"] for part in slots], axis=0)
    floor = float(np.mean([ece_floor(part.predicted, generator)[0] for part in slots]))
    return {**with_limits("ece_survival", values, weights.shape[1]), "ece_floor": floor, "reason": ""}


def _ranking(rounds: RoundArrays) -> dict[str, float]:
    """ROC-AUC of the conditional confidence at position 1, which no temperature changes."""
    weights = prompt_weights(rounds.prompt)
    first = _slots(calibrated(rounds.logits, np.ones(rounds.logits.shape[1])), rounds, CONDITIONAL)[0]
    return with_limits("roc_auc_1", measures(first, weights)["roc_auc"], weights.shape[1])


def _slots(conditional: np.ndarray, rounds: RoundArrays, reading: str) -> list[Slots]:
    """Slots of ``reading``, by position, without positions that no round proposed."""
    found = readings(conditional, rounds.accepted, rounds.proposed, rounds.prompt)
    return [slots for slots in found if slots.reading == reading and len(slots.predicted)]
