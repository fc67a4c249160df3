"""The pictures of a calibration, each a function from a table to a matplotlib Figure.

    reliability_by_position   Figure 6 of the paper: observed against predicted at positions 1, 3, 5, 7, before and after
                              scaling, with the histogram of what was predicted; one reading a figure
    threshold_sweep           Figure 5: accepted and rejected tokens a step and the acceptance rate against the threshold

It knows nothing of files; :mod:`draftlab.report.style` holds the look.
"""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from draftlab.calibration import CONDITIONAL
from draftlab.calibration.fitting import AFTER, BEFORE
from draftlab.report.reliability import BINS
from draftlab.report.style import BLUE, MARKERS, MUTED, ORANGE, STYLE, colours, panels
from draftlab.report.threshold import PAPER, PAPER_ENDS

SHOWN = (1, 3, 5, 7)
FEWEST = 10  # a bin of fewer slots is left to the table, as its share is mostly luck
PAINT = {BEFORE: (ORANGE, "s"), AFTER: (BLUE, "o")}
AXES = {"conditional": "token accepted, given those before it", "survival": "whole prefix accepted"}


def reliability_by_position(bins: pd.DataFrame, measures: pd.DataFrame, reading: str) -> Figure:
    """One ``reading`` at the SHOWN positions there are.

    Args:
        bins: rows (reading, when, position, bin, count, predicted, observed, observed_low, observed_high).
        measures: rows (reading, when, position, ece) of the same slots, whose ECEs are written into the diagrams.
    """
    bins = bins[bins["reading"] == reading]
    positions = [position for position in SHOWN if (bins["position"] == position).any()]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.55 * len(positions) + 0.4, 5.0), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.04, wspace=0.05, hspace=0.02)
        grid = figure.subplots(2, len(positions), sharex=True, squeeze=False, height_ratios=(3.3, 1.0))
        for column, position in enumerate(positions):
            rows = bins[bins["position"] == position]
            errors = measures[(measures["reading"] == reading) & (measures["position"] == position)]
            _draw_diagram(grid[0][column], rows, errors.set_index("when")["ece"])
            _draw_histogram(grid[1][column], rows)
            count = int(rows.loc[rows["when"] == AFTER, "count"].sum())
            grid[0][column].set_title(f"position {position}   n = {count:,}")
            what = "c" if reading == CONDITIONAL else "a"
            grid[1][column].set_xlabel(f"predicted {reading} {what}$_{position}$")
            if column:
                grid[0][column].tick_params(labelleft=False)
        grid[0][0].set_ylabel(AXES[reading])
        grid[1][0].set_ylabel("share of\nrounds")
        return figure


def _draw_diagram(panel: Axes, rows: pd.DataFrame, errors: pd.Series) -> None:
    panel.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
    for line, (when, (colour, marker)) in enumerate(PAINT.items()):
        part = rows[(rows["when"] == when) & (rows["count"] >= FEWEST)].sort_values("bin")
        spread = part[["observed_low", "observed_high"]].to_numpy()
        if not np.isnan(spread).any():
            panel.vlines(part["predicted"], spread[:, 0], spread[:, 1], color=colour, linewidth=1.1, alpha=0.55)
        panel.plot(part["predicted"], part["observed"], color=colour, linewidth=1.5)
        panel.plot(
            part["predicted"], part["observed"], marker, color=colour, markeredgecolor="white", markeredgewidth=0.7
        )
        text = f"{when} STS: ECE {errors[when]:.1%}"
        place = {"color": colour, "fontsize": 9.5, "fontweight": "bold", "transform": panel.transAxes}
        panel.text(0.035, 0.945 - 0.075 * line, text, va="center", **place)
    if not (rows["count"] >= FEWEST).any():
        panel.text(0.5, 0.45, f"fewer than {FEWEST}\nrounds a bin", ha="center", color=MUTED, transform=panel.transAxes)
    panel.set(xlim=(0, 1), ylim=(0, 1.02))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _draw_histogram(panel: Axes, rows: pd.DataFrame) -> None:
    """Shares of slots by bin, before as steps, after as bars."""
    edges = np.linspace(0.0, 1.0, BINS + 1)
    shares = {}
    for when in PAINT:
        part = rows[rows["when"] == when]
        counts = np.bincount(part["bin"], part["count"], minlength=BINS)
        shares[when] = counts / counts.sum()
    panel.bar(edges[:-1], shares[AFTER], width=1.0 / BINS, align="edge", color=BLUE, alpha=0.45, edgecolor="white")
    panel.stairs(shares[BEFORE], edges, color=ORANGE, linewidth=1.5)
    panel.set(xlim=(0, 1), ylim=(0, 1.08 * max(map(max, shares.values()))))
    panel.yaxis.set_major_locator(MaxNLocator(nbins=2))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panel.grid(axis="x", visible=False)


PANELS = (
    ("accepted", "accepted tokens a step"),
    ("rejected", "rejected tokens a step"),
    ("acceptance_rate", "acceptance rate of verified tokens"),
)


def threshold_sweep(table: pd.DataFrame) -> Figure:
    """From :func:`draftlab.report.threshold.sweep_table`: a panel a quantity, a line a domain; stars are the paper's."""
    names = [name for name in dict.fromkeys(table["domain"]) if name in PAPER] or list(dict.fromkeys(table["domain"]))
    colour = colours(names)
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(PANELS), width=4.5, height=3.9, share_y=False)
        for panel, (column, title) in zip(axes, PANELS, strict=True):
            for name, marker in zip(names, MARKERS, strict=False):
                _draw_sweep(panel, table[table["domain"] == name], column, colour[name], marker)
            panel.set(title=title, xlabel="threshold on the calibrated conditional confidence")
            panel.set_ylim(bottom=0 if column != "acceptance_rate" else None)
            panel.set_xlim(-0.03, 0.98)
            panel.set_xticks(np.arange(0.0, 0.81, 0.2))
        lines = [
            Line2D([], [], color=colour[n], marker=m, markeredgecolor="white")
            for n, m in zip(names, MARKERS, strict=False)
        ]
        axes[0].legend(lines, names, frameon=False, labelcolor="linecolor", loc="upper right")
        if set(names) & set(PAPER):
            stars = Line2D([], [], color=MUTED, linestyle="none", marker="*", markersize=11, markerfacecolor="white")
            axes[-1].legend([stars], ["the paper"], frameon=False, labelcolor=MUTED, loc="lower right")
        axes[-1].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        return figure


def _draw_sweep(panel: Axes, rows: pd.DataFrame, column: str, colour: str, marker: str) -> None:
    """Line, band and every second mark of one domain, and the paper's stars."""
    name = rows["domain"].iloc[0]
    rows = rows[rows[column].notna()].sort_values("threshold")
    x, y, low, high = (rows[key].to_numpy() for key in ("threshold", column, f"{column}_low", f"{column}_high"))
    panel.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
    panel.plot(x, y, color=colour)
    panel.plot(x[::2], y[::2], marker, color=colour, markeredgecolor="white")
    if column == "acceptance_rate" and name in PAPER:
        panel.plot(PAPER_ENDS, PAPER[name], "*", color=colour, markerfacecolor="white", markersize=11, clip_on=False)
