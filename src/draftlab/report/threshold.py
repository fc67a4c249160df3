"""The static threshold replayed on recorded rounds (Figure 5 of the paper): what is verified, accepted and rejected.

    v(θ)             leading slots with calibrated conditional confidence >= θ            what the target would have read
    accepted a step  min(accepted, v)          rejected a step   v - min(accepted, v)
    acceptance rate  Σ min(accepted, v) / Σ v

A round was verified whole, so what any shorter prefix would have given is known. Later rounds of the same prompt would begin
elsewhere under θ; that they are like these is assumed. Intervals are over prompts. It knows nothing of pictures.

    table = sweep_table(study.conditional(), study.rounds["confidence"])
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from draftlab.calibration.rounds import RoundArrays
from draftlab.calibration.transfer import by_domain
from draftlab.report.bootstrap import ratio
from draftlab.report.tables import domain_order

THRESHOLDS = tuple(np.round(np.arange(0.0, 0.951, 0.05), 2).tolist())
COLUMNS = ("accepted", "rejected", "acceptance_rate")
# Method 6: acceptance rate of the paper's DSpark at thresholds 0 and 0.8.
PAPER = {"math": (0.769, 0.925), "code": (0.676, 0.920), "chat": (0.457, 0.957)}
PAPER_ENDS = (0.0, 0.8)


def verified(conditional: np.ndarray, threshold: float) -> np.ndarray:
    """Slots [n] that a threshold sends to the target, of conditional confidences [n, G]; NaN is a slot not proposed."""
    return (np.nan_to_num(conditional, nan=-1.0) >= threshold).cumprod(axis=1).sum(axis=1)


def sweep_table(conditional: np.ndarray, rounds: RoundArrays, thresholds=THRESHOLDS) -> pd.DataFrame:
    """One row a domain (and all together) and threshold: rounds, verified tokens, and COLUMNS with _low and _high.

    Where nothing is verified any more, the acceptance rate is NaN.
    """
    rows = []
    names = sorted(set(rounds.domain), key=domain_order)
    whole = [name for name, _ in by_domain(rounds) if name not in names]
    for name in [*names, *whole]:
        rows += _sweep(name, conditional, rounds, rounds.domain == name if name in names else None, thresholds)
    return pd.DataFrame(rows)


def _sweep(name: str, conditional, rounds: RoundArrays, mask: np.ndarray | None, thresholds) -> list[dict]:
    """The rows of one domain; the sums of all thresholds share each resample of prompts."""
    mask = np.ones(len(rounds), dtype=bool) if mask is None else mask
    part, scores = rounds.of(mask), conditional[mask]
    sent = np.stack([verified(scores, value) for value in thresholds], axis=1)  # [n, S]
    passed = np.minimum(part.accepted[:, None], sent)
    sums = {"verified": _by_prompt(part, sent), "accepted": _by_prompt(part, passed)}
    steps = _by_prompt(part, np.ones_like(sent))
    estimates = {
        "accepted": ratio(sums["accepted"], steps),
        "rejected": ratio(sums["verified"] - sums["accepted"], steps),
        "acceptance_rate": ratio(sums["accepted"], sums["verified"]),
    }
    rows = []
    for index, value in enumerate(thresholds):
        row = {"domain": name, "threshold": value, "rounds": len(part), "verified": int(sent[:, index].sum())}
        for column, estimate in estimates.items():
            row |= {column: estimate.value[index], f"{column}_low": estimate.low[index]}
            row |= {f"{column}_high": estimate.high[index]}
        rows.append(row)
    return rows


def _by_prompt(rounds: RoundArrays, values: np.ndarray) -> np.ndarray:
    """Sums [P, S] by prompt of ``values`` [n, S]."""
    sums = np.zeros((int(rounds.prompt.max()) + 1, values.shape[1]))
    np.add.at(sums, rounds.prompt, values)
    return sums


def falls(table: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """By domain: steps of the sweep at which the acceptance rate falls, and those of them that are more than noise, the rate's
    interval lying wholly below the one before it."""
    result = {}
    for name, rows in table.groupby("domain", sort=False):
        rows = rows.sort_values("threshold").dropna(subset=["acceptance_rate"])
        down = np.diff(rows["acceptance_rate"]) < 0
        clear = rows["acceptance_rate_high"].to_numpy()[1:] < rows["acceptance_rate_low"].to_numpy()[:-1]
        result[str(name)] = (int(down.sum()), int((down & clear).sum()))
    return result
