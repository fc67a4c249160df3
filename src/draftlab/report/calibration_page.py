"""calibration.html of a run: reliability, the head against the baseline and the ceiling, threshold sweep, transfer and drift.

    write_calibration("outputs/demo", study)      tables/calibration_*.csv, figures/calibration_*.png, calibration.html

Everything shown is of the part that the study tested on. It computes nothing but tables of what the study holds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from draftlab.calibration import CONDITIONAL, SURVIVAL
from draftlab.calibration.fitting import AFTER, ALL_POSITIONS, BEFORE, FIT
from draftlab.calibration.rounds import CONFIDENCE, DRAFT_TOP, EXPECTED
from draftlab.calibration.study import Study
from draftlab.report import calibration_figures as figures
from draftlab.report.html import write_csv
from draftlab.report.reliability import position_bins
from draftlab.report.style import save
from draftlab.report.tables import with_interval
from draftlab.report.template import image, table, write_page
from draftlab.report.threshold import PAPER, PAPER_ENDS, falls, sweep_table

PAGE = "calibration.html"
NAMES = {CONFIDENCE: "confidence head", DRAFT_TOP: "draft law's top probability", EXPECTED: "ceiling c*"}
MEASURES = {"roc_auc": "ROC-AUC", "ece": "ECE", "nll": "NLL"}
INTERVALS = "In brackets: 95 % bootstrap over prompts."


def write_calibration(folder: str | Path, study: Study) -> Path:
    """Write tables, pictures and page of ``study`` into run ``folder``; returns the page's path."""
    folder = Path(folder)
    arrays = study.rounds[study.calibration.source]
    sweep = sweep_table(study.conditional(), arrays)
    bins = pd.concat(
        [
            position_bins(study.conditional(when == AFTER), arrays.accepted, arrays.proposed, arrays.prompt).assign(
                when=when
            )
            for when in (BEFORE, AFTER)
        ],
        ignore_index=True,
    )
    tables = {"measures": study.measures, "differences": study.differences, "transfer": study.transfer}
    tables |= {"drift": study.drift, "bins": bins, "threshold": sweep}
    for name, frame in tables.items():
        if len(frame):
            write_csv(frame, folder / "tables" / f"calibration_{name}.csv")
    pictures = {
        reading: figures.reliability_by_position(bins, own_measures(study), reading)
        for reading in (SURVIVAL, CONDITIONAL)
    }
    pictures["threshold"] = figures.threshold_sweep(sweep)
    images = {
        name: image(save(figure, folder / "figures" / f"calibration_{name}.png")) for name, figure in pictures.items()
    }
    return write_page(
        folder / PAGE,
        title=f"Calibration: {folder.resolve().name}",
        subtitle="Whether confidences say how likely drafted tokens are to be accepted, and what a threshold on them does.",
        cards=_cards(study),
        warnings=list(study.notes),
        sections=_sections(study, sweep, images),
        details=[],
    )


def _cards(study: Study) -> list[dict[str, str]]:
    source = study.calibration.source
    cards = []
    for name, label in ((source, NAMES[source]), (EXPECTED, NAMES[EXPECTED])):
        row = pick(study, name, CONDITIONAL, 1, BEFORE)
        if row is not None:
            cards.append({"value": f"{row['roc_auc']:.3f}", "label": f"ROC-AUC at position 1: {label}"})
    before, after = (pick(study, source, SURVIVAL, 1, when) for when in (BEFORE, AFTER))
    text = (
        f"survival ECE at position 1 after STS (before: {percent(before['ece'])}, floor {percent(after['ece_floor'])})"
    )
    return [*cards, {"value": percent(after["ece"]), "label": text}]


def pick(study: Study, source: str, reading: str, position: int, when: str) -> pd.Series | None:
    """The row of the measures of the tested part; None where the source is not recorded."""
    rows = study.measures
    found = rows[
        (rows["part"] == study.part)
        & (rows["source"] == source)
        & (rows["reading"] == reading)
        & (rows["position"] == position)
        & (rows["when"] == when)
    ]
    return found.iloc[0] if len(found) else None


def percent(value: float, digits: int = 1) -> str:
    """A share as text; NaN is a dash."""
    return "–" if np.isnan(value) else f"{100 * value:.{digits}f} %"


def own_measures(study: Study) -> pd.DataFrame:
    """The rows of the measures that are of what is calibrated, on the tested part."""
    rows = study.measures
    return rows[(rows["part"] == study.part) & (rows["source"] == study.calibration.source)]


def _sections(study: Study, sweep: pd.DataFrame, images: dict[str, str]) -> list[dict]:
    part = "the rounds of the fit" if study.part == FIT else "the run's evaluation, which the fit has not seen"
    source = NAMES[study.calibration.source]
    sections = [
        {
            "title": "Temperatures, and ECE before and after",
            "text": f"Sequential Temperature Scaling of the {source} at T = {study.temperature:g}, fitted on "
            f"{study.calibration.num_samples:,} rounds of {study.calibration.dataset}, tested on {part}. Survival: the whole "
            "prefix accepted, over all rounds. Conditional: the token accepted, over the rounds that got to it. The floor is the "
            "mean ECE that perfectly calibrated predictions would show on as many slots; an ECE near it cannot be bettered.",
            "table": ece_rows(study),
            "note": INTERVALS,
        },
        {
            "title": "Survival a_k, position by position",
            "image": images[SURVIVAL],
            "caption": f"Observed against predicted survival on {part}, in ten bins; bins of fewer than {figures.FEWEST} rounds "
            "are in the table only. Bars: 95 % bootstrap over prompts. Below: what was predicted, before STS as a line.",
        },
        {
            "title": "Conditional c_k, position by position",
            "image": images[CONDITIONAL],
            "caption": "The same for the conditional confidence, over rounds whose tokens before k were all accepted.",
        },
        _ranking_section(study),
        _threshold_section(sweep, images),
        _transfer_section(study),
        _drift_section(study),
    ]
    return [section for section in sections if section]


def ece_rows(study: Study) -> dict:
    """ECE of both readings, before and after, with floors, by position."""
    rows = []
    for position, temperature in enumerate(study.calibration.temperatures, start=1):
        cells = [str(position), f"{temperature:.2f}"]
        for reading in (SURVIVAL, CONDITIONAL):
            before, after = (pick(study, study.calibration.source, reading, position, when) for when in (BEFORE, AFTER))
            cells += [
                f"{after['count']:,.0f}",
                *(with_interval(row, "ece", 2, percent=True) for row in (before, after)),
            ]
            cells.append(percent(after["ece_floor"]))
        rows.append(cells)
    heads = [
        f"{reading} {what}"
        for reading in (SURVIVAL, CONDITIONAL)
        for what in ("rounds", "ECE before", "after", "floor")
    ]
    return table(["k", "T_k", *heads], rows, left=1)


def _ranking_section(study: Study) -> dict:
    """ROC-AUC and NLL of head, baseline and ceiling, and who wins."""
    sources = [source for source in NAMES if source in study.rounds]
    rows = []
    for position in range(1, len(study.calibration.temperatures) + 1):
        found = [pick(study, s, CONDITIONAL, position, BEFORE if s == EXPECTED else AFTER) for s in sources]
        cells = [str(position), f"{found[0]['count']:,.0f}"]
        cells += [with_interval(row, name, 3) for name in ("roc_auc", "nll") for row in found]
        rows.append(cells)
    heads = [f"{MEASURES[name]} {NAMES[source]}" for name in ("roc_auc", "nll") for source in sources]
    text = (
        "The conditional confidence after STS. The ceiling is c* = 1 - TV(p_d, p_t), the chance with which the outcome of each "
        "slot was really drawn: no head, however good, ranks these outcomes better than c* does, but for luck."
    )
    return {
        "title": "Head, baseline and ceiling",
        "text": " ".join([text, *verdicts(study)]),
        "table": table(["k", "rounds", *heads], rows, left=1),
        "note": INTERVALS,
    }


def verdicts(study: Study) -> list[str]:
    """Who wins, over the slots of all positions: one sentence a measure and reading, with the paired difference."""
    sentences = []
    pooled = study.differences
    pooled = pooled[pooled["position"] == ALL_POSITIONS] if len(pooled) else pooled
    for _, row in pooled.iterrows():
        gain = 1 if row["measure"] == "roc_auc" else -1  # a higher ROC-AUC is better, a lower ECE or NLL
        low, high = sorted((gain * row["difference_low"], gain * row["difference_high"]))
        winner = "the head wins" if low > 0 else "the baseline wins" if high < 0 else "neither wins"
        value = with_interval(row, "difference", 4)
        sentences.append(f"{row['reading']} {MEASURES[row['measure']]}: {winner} (head less baseline {value}).")
    return ["All positions together:", *sentences] if sentences else []


def _threshold_section(sweep: pd.DataFrame, images: dict[str, str]) -> dict:
    rows = []
    for name, part in sweep.groupby("domain", sort=False):
        ends = [part[np.isclose(part["threshold"], value)].iloc[0] for value in PAPER_ENDS]
        paper = [percent(value) for value in PAPER[name]] if name in PAPER else ["–", "–"]
        rate = [with_interval(row, "acceptance_rate", 2, percent=True) for row in ends]
        rows.append([name, f"{ends[0]['rounds']:,}", rate[0], paper[0], rate[1], paper[1]])
        rows[-1] += [with_interval(row, column) for column in ("accepted", "rejected") for row in ends]
    heads = [f"acceptance rate at {value:g}{who}" for value in PAPER_ENDS for who in ("", ", paper")]
    heads += [f"{column} a step at {value:g}" for column in ("accepted", "rejected") for value in PAPER_ENDS]
    down = [f"{name} {all_falls} ({clear})" for name, (all_falls, clear) in falls(sweep).items()]
    return {
        "title": "Threshold sweep",
        "text": "A static threshold on the calibrated conditional confidence, replayed on rounds that were verified whole. Steps "
        f"at which the acceptance rate falls, in brackets those beyond its interval: {', '.join(down)}.",
        "image": images["threshold"],
        "caption": "Bands: 95 % bootstrap over prompts. Stars: the paper's acceptance rates at thresholds 0 and 0.8, of "
        "another target and drafter.",
        "table": table(["domain", "rounds", *heads], rows, left=1),
        "note": INTERVALS,
    }


def _transfer_section(study: Study) -> dict | None:
    cells = study.transfer
    if cells["tested"].nunique() < 2:
        return None
    tested = list(dict.fromkeys(cells["tested"]))
    rows = []
    for name, part in cells.groupby("fitted", sort=False):
        by = part.set_index("tested")
        rows.append([name, *(with_interval(by.loc[other], "ece_survival", 3, percent=True) for other in tested)])
    floors = cells.drop_duplicates("tested").set_index("tested")["ece_floor"]
    rows.append(["floor", *(percent(floors[other], 2) for other in tested)])
    reasons = [
        f"{row['fitted']}: {row['reason']}" for _, row in cells.drop_duplicates("fitted").iterrows() if row["reason"]
    ]
    return {
        "title": "Transfer between domains",
        "text": "Mean over positions of the survival ECE: temperatures fitted on the domain of the row, tested on that of the "
        "column, on prompts that no fit has seen. Compare within a column.",
        "table": table(["fitted on", *(f"tested on {name}" for name in tested)], rows, left=1),
        "note": " ".join([INTERVALS, *reasons]),
    }


def _drift_section(study: Study) -> dict | None:
    if study.drift["sampling"].nunique() < 2:
        return None
    rows = []
    for sampling, part in study.drift.groupby("sampling", sort=False):
        cells = [with_interval(row, "ece_survival", 3, percent=True) for _, row in part.iterrows()]
        first = part.iloc[0]
        cells += [
            percent(first["ece_floor"], 2),
            with_interval(first, "roc_auc_1", 3),
        ]
        rows.append([f"{sampling:g}", f"{first['rounds']:,}", *cells])
    choices = list(dict.fromkeys(study.drift["fitted"]))
    heads = ["T of sampling", "rounds", *(f"ECE, {name}" for name in choices), "floor", "ROC-AUC at position 1"]
    return {
        "title": "Drift across temperatures of sampling",
        "text": f"Mean over positions of the survival ECE, temperatures of calibration.json fitted at T = {study.temperature:g}. "
        "Its last choice is fitted on the rounds it is tested on, so it is the least that scaling could reach.",
        "table": table(heads, rows, left=1),
        "note": INTERVALS,
    }
