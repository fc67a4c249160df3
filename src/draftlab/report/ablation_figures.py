"""Figures 3 and 4 of the paper, from :func:`draftlab.report.ablation.sweep_table`; a column a temperature, a line a drafter.

    depth         Figure 3: accepted length against the drafter's layers
    draft_length  Figure 4: accepted length against the block size; below it the gain over DFlash of the same block
                  size, and the milliseconds of a round, each where it is known

It knows nothing of runs and files; :mod:`draftlab.report.style` holds the look.

    >>> depth(sweep_table(groups, temperatures, DEPTH))   # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.ablation import BASELINE
from draftlab.report.figures import temperature_title
from draftlab.report.style import MARKERS, MUTED, STYLE, colours, label_ends

DATA, LETTER, HEIGHT = 3.9, 0.096, 3.5  # inches: the lines of a panel, a letter of a name beside them, a panel's height
LENGTH = "accepted length (with bonus)"
GAIN = f"gain over {BASELINE} (tokens a round)"
ROUND = "ms a round (dashed: drafting)"


def depth(table: pd.DataFrame) -> Figure:
    """Figure 3: accepted length, tokens a round with bonus, by layers of the drafter."""
    return _grid(table, "layers of the drafter", [(LENGTH, "accepted_length")])


def draft_length(table: pd.DataFrame) -> Figure:
    """Figure 4: accepted length, gain over DFlash and milliseconds a round by drafted tokens (block size)."""
    rows = [(LENGTH, "accepted_length"), (GAIN, "gain"), (ROUND, "round_ms")]
    table = table.assign(round_ms=table["draft_ms"] + table["verify_ms"])
    return _grid(table, "drafted tokens (block size)", [row for row in rows if table[row[1]].notna().any()])


def _grid(table: pd.DataFrame, x_label: str, rows: list[tuple[str, str]]) -> Figure:
    """A row of panels for each (label, column) of ``rows``; heights are shared along a row."""
    temperatures = sorted(table["temperature"].unique())
    look = _look(table)
    names = 0.25 + LETTER * max(map(len, look))
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=((DATA + names + 0.5) * len(temperatures), HEIGHT * len(rows) + 0.4), layout="constrained"
        )
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.04, hspace=0.04)
        grid = figure.subplots(len(rows), len(temperatures), sharey="row", squeeze=False)
        for panels, (y_label, column) in zip(grid, rows, strict=True):
            limits = _limits(table, column)
            for panel, temperature in zip(panels, temperatures, strict=True):
                panel.set_ylim(*limits)
                _draw(panel, table[table["temperature"] == temperature], column, look, names / DATA)
            panels[0].set_ylabel(y_label)
        for top, bottom, temperature in zip(grid[0], grid[-1], temperatures, strict=True):
            top.set_title(temperature_title(temperature))
            bottom.set_xlabel(x_label)
        return figure


def _look(table: pd.DataFrame) -> dict[str, tuple[str, str, float]]:
    """Colour, marker and shift along x of each line: intervals at the same value must not hide each other."""
    names = sorted(table["line"].unique())
    colour = colours(names)
    values = np.unique(table["value"])
    shifts = (np.arange(len(names)) - (len(names) - 1) / 2) * min(0.03, 0.16 / len(names)) * np.diff(values).min()
    return {
        name: (colour[name], MARKERS[place % len(MARKERS)], float(shifts[place])) for place, name in enumerate(names)
    }


def _limits(table: pd.DataFrame, column: str) -> tuple[float, float]:
    """Heights that hold all points and intervals; milliseconds start at 0, gains hold it."""
    shown = table[[name for name in (column, f"{column}_low", f"{column}_high") if name in table]].to_numpy()
    if column == "round_ms":
        return 0.0, 1.08 * float(np.nanmax(shown))
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    if column == "gain":
        low, high = min(low, 0.0), max(high, 0.0)
    pad = max(0.08 * (high - low), 0.02)
    return low - pad, high + pad


def _draw(
    panel: Axes, table: pd.DataFrame, column: str, look: Mapping[str, tuple[str, str, float]], room: float
) -> None:
    """Lines of one panel, their intervals, and their names at their ends, for which ``room`` is left at the right."""
    values = np.unique(table["value"])
    edge = 0.06 * float(np.ptp(values)) + 0.1
    panel.set_xlim(values[0] - edge, values[-1] + edge)
    if column == "gain":
        panel.axhline(0.0, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
    last = max(shift for _, _, shift in look.values())  # labels of lines that end at one value start at one x
    ends = []
    for name, (colour, marker, shift) in look.items():
        rows = table[(table["line"] == name) & table[column].notna()].sort_values("value")
        if rows.empty:
            continue
        x, y = rows["value"].to_numpy() + shift, rows[column].to_numpy()
        panel.plot(x, y, color=colour, marker=marker, markeredgecolor="white", markeredgewidth=0.8, zorder=3)
        if f"{column}_low" in rows:
            panel.vlines(x, rows[f"{column}_low"], rows[f"{column}_high"], color=colour, linewidth=1.3, alpha=0.55)
        if column == "round_ms":
            panel.plot(
                x, rows["draft_ms"], color=colour, linewidth=1.2, linestyle=(0, (3, 2)), marker="o", markersize=2.5
            )
        ends.append((name, float(x[-1] - shift + last), float(y[-1]), colour))
    left, right = panel.get_xlim()
    label_ends(panel, ends)
    panel.set_xlim(left, right + room * (right - left))  # panels above each other share their x axis
    panel.set_xticks(values)
    panel.grid(axis="x", visible=False)
