"""The pictures of serving experiments, each a function from a table to a matplotlib Figure.

    pareto    Figure 7 of the paper: throughput against tokens/s a user, a line a drafter with a scheduler, a mark a load
    load      Figure 8: throughput and verified tokens a request against concurrent requests
    regret    lag × burstiness: what stale budgets lose against an oracle

It knows nothing of files; :mod:`draftlab.report.style` holds the look.

    >>> pareto(with_lines(rows), anchors=[40.0, 80.0])   # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from draftlab.report.serving_tables import PLAIN, RATE, SPEED
from draftlab.report.style import INK, MARKERS, MUTED, ORANGE, STYLE, colours, panels

X_SPEED, Y_RATE = "tokens/s a user (mean)", "throughput (tokens/s, all users)"
LOSS = LinearSegmentedColormap.from_list("loss", ["#ffffff", "#f6c9a8", ORANGE, "#7a2f00"])
SMALL, BIG = 5.5, 8.5  # marks; crosses and stars fill less of their size
DARK = 0.55  # of the colour scale, from which numbers are written in white


def pareto(table: pd.DataFrame, anchors: Sequence[float] = ()) -> Figure:
    """Figure 7 from rows with ``line``: up and to the right is better; dotted lines mark the speeds of ``anchors``."""
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = panels(1, width=8.6, height=4.9)
        for anchor in anchors:
            axes.axvline(anchor, color=MUTED, linewidth=1.0, linestyle=(0, (1, 3)))
        _lines(axes, table, SPEED, RATE)
        axes.set_xlabel(X_SPEED)
        axes.set_ylabel(Y_RATE)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        _legend(figure, axes)
        return figure


def load(table: pd.DataFrame) -> Figure:
    """Figure 8 from rows with ``line``: throughput, and budget (anchor included), by concurrent requests."""
    with matplotlib.rc_context(STYLE):
        figure, (left, right) = panels(2, width=5.6, height=4.2, share_y=False)
        for axes, column, label in (
            (left, RATE, Y_RATE),
            (right, "budget", "budget (tokens a request and step)"),
        ):
            _lines(axes, table, "concurrency", column)
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
            _doubling(axes, table["concurrency"])
            axes.set_xlabel("concurrent requests")
        _legend(figure, left)
        return figure


def regret(table: pd.DataFrame, columns: Sequence[tuple[str, str]]) -> Figure:
    """A heat map for each (column, title) of ``columns``: rows burstiness, columns lag; all on one scale of colour."""
    stale = table[table["lag"].notna()]
    highest = max(float(np.nanmax(stale[[name for name, _ in columns]].to_numpy())), 1e-9)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure, axes = panels(len(columns), width=5.4, height=4.0)
        for panel, (column, title) in zip(axes, columns, strict=True):
            grid = stale.pivot(index="burstiness", columns="lag", values=column).sort_index()
            picture = panel.imshow(grid, cmap=LOSS, vmin=0.0, vmax=highest, aspect="auto", origin="lower")
            for (row, column_place), value in np.ndenumerate(grid.to_numpy()):
                colour = "white" if value > DARK * highest else INK
                panel.text(column_place, row, f"{value:.1%}", ha="center", va="center", color=colour, fontsize=10)
            panel.set_xticks(range(grid.shape[1]), [f"{lag:g}" for lag in grid.columns])
            panel.set_yticks(range(grid.shape[0]), [f"{level:g}" for level in grid.index])
            panel.set_xlabel("lag of the budget (steps)")
            panel.set_title(title)
            panel.spines[:].set_visible(False)
        axes[0].set_ylabel("burstiness (rate in a burst / between)")
        bar = figure.colorbar(picture, ax=axes, shrink=0.9, pad=0.02)
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        bar.outline.set_visible(False)
        return figure


def _lines(axes: Axes, table: pd.DataFrame, x: str, y: str) -> None:
    """Every line of ``table`` by load, with intervals of ``y`` where it has some; no drafting is dashed.

    Later lines are thinner, so that an earlier one shows where both have the same values.
    """
    names = list(dict.fromkeys(table["line"]))
    widths = np.linspace(3.4, 1.4, len(names))
    colour = colours([name for name in names if name != PLAIN]) | {PLAIN: MUTED}
    for place, name in enumerate(names):
        rows = table[table["line"] == name].sort_values("concurrency")
        axes.plot(
            rows[x],
            rows[y],
            label=name,
            color=colour[name],
            marker=MARKERS[place % len(MARKERS)],
            markersize=BIG if MARKERS[place % len(MARKERS)] in "PX*" else SMALL,
            markeredgecolor="white",
            markeredgewidth=0.6,
            linewidth=widths[place],
            linestyle=(0, (4, 2)) if name == PLAIN else "-",
            zorder=2 if name == PLAIN else 3,
        )
        if f"{y}_low" in rows:
            axes.vlines(rows[x], rows[f"{y}_low"], rows[f"{y}_high"], color=colour[name], linewidth=1.3, alpha=0.55)


def _doubling(axes: Axes, values: pd.Series) -> None:
    """A scale by doubling, with the powers of two that lie in the range as ticks."""
    low, high = float(values.min()), float(values.max())
    axes.set_xscale("log", base=2)
    powers = 2.0 ** np.arange(np.floor(np.log2(max(low, 1e-9)) + 0.01), np.ceil(np.log2(high) - 0.01) + 1)
    axes.xaxis.set_major_locator(FixedLocator(powers.tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlim(low / 1.15, high * 1.15)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=10)
