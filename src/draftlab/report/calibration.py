"""What a calibration changed, for a terminal: temperatures, and ECE and ROC-AUC before and after by position.

    print_calibration(Calibration.load("outputs/demo/calibration.json"))
    print_study(study)                                                        the same, and who wins

It computes nothing.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from draftlab.calibration import CONDITIONAL, SURVIVAL, Calibration
from draftlab.calibration.fitting import AFTER, BEFORE, FIT, HELD_OUT
from draftlab.calibration.study import Study
from draftlab.report.calibration_page import verdicts
from draftlab.report.tables import console, with_interval

PARTS = {FIT: "rounds of the fit", HELD_OUT: "held-out rounds (the run's evaluation)"}


def print_calibration(calibration: Calibration) -> None:
    """One table a part, and a note on what the numbers mean."""
    frame = pd.DataFrame(calibration.measures)
    frame = frame.where(frame.notna(), np.nan).infer_objects()
    terminal = console()
    for part, title in PARTS.items():
        rows = frame[frame["part"] == part]
        if len(rows):
            terminal.print(_table(rows, calibration, title))
    terminal.print(
        "survival: the whole prefix accepted, over all rounds; conditional: the token accepted, over rounds that got to it. "
        "In brackets: 95 % bootstrap over prompts.",
        highlight=False,
    )


def print_study(study: Study) -> None:
    """The calibration, the baseline's place beside it, and what could not be done."""
    print_calibration(study.calibration)
    for line in (*verdicts(study), *study.notes):
        console().print(line, highlight=False)


def _table(rows: pd.DataFrame, calibration: Calibration, title: str) -> Table:
    grid = Table(title=f"calibration: {title}", title_justify="left", box=box.SIMPLE_HEAD)
    heads = (
        "k",
        "T_k",
        "rounds",
        "survival ECE before",
        "after",
        "tested",
        "conditional ECE before",
        "after",
        "ROC-AUC",
    )
    for heading in heads:
        grid.add_column(heading, justify="right")
    by = rows.set_index(["position", "reading", "when"]).sort_index()
    for position, temperature in enumerate(calibration.temperatures, start=1):
        cells = [str(position), f"{temperature:.2f}"]
        for reading in (SURVIVAL, CONDITIONAL):
            before, after = (by.loc[(position, reading, when)] for when in (BEFORE, AFTER))
            cells += [
                f"{before['count']:,.0f}",
                *(with_interval(row, "ece", 2, percent=True) for row in (before, after)),
            ]
        cells.append(with_interval(by.loc[(position, CONDITIONAL, AFTER)], "roc_auc"))
        grid.add_row(*cells)
    return grid
