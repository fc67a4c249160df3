"""The look of all figures: colours, fonts, grid, labels at the lines' ends, and saving.

Colours are Okabe and Ito's, which stay apart for colour-blind readers; math, code and chat keep theirs in every figure.
Figures are made without pyplot, so no global state and no display is touched. It knows nothing of the numbers.

    >>> with matplotlib.rc_context(STYLE):   # doctest: +SKIP
    ...     figure, axes = panels(2)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DPI = 160
INK, MUTED, GRID = "#1f2933", "#66727f", "#e4e8ec"
BLUE, ORANGE, GREEN, PURPLE, SKY, GOLD = "#0072B2", "#D55E00", "#009E73", "#A8578E", "#4FA3D1", "#B98300"
BROWN = "#7A5230"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, GOLD, INK, BROWN, MUTED)
DOMAIN_COLOURS = {"math": BLUE, "code": ORANGE, "chat": GREEN}
MARKERS = "osD^vPX*"

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 10.5,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": "#b8c0c8",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def colours(names: Sequence[str]) -> dict[str, str]:
    """One colour a name: the domains' own, then the cycle's that are still free."""
    taken = {DOMAIN_COLOURS[name] for name in names if name in DOMAIN_COLOURS}
    free = [colour for colour in CYCLE if colour not in taken] or list(CYCLE)
    others = [name for name in names if name not in DOMAIN_COLOURS]
    return {name: DOMAIN_COLOURS[name] for name in names if name in DOMAIN_COLOURS} | {
        name: free[index % len(free)] for index, name in enumerate(others)
    }


def panels(count: int, width: float = 5.4, height: float = 3.9, share_y: bool = True) -> tuple[Figure, list[Axes]]:
    """A row of ``count`` panels; inches a panel."""
    figure = Figure(figsize=(width * count, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08, wspace=0.04)
    return figure, list(figure.subplots(1, count, sharey=share_y, squeeze=False)[0])


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move label heights apart until neighbours are at least ``gap`` from each other; order and centre are kept."""
    order = np.argsort(heights, kind="stable")
    groups = [[float(heights[index]), 1] for index in order]  # [centre, members], merged while they overlap
    position = 0
    while position < len(groups) - 1:
        (low, low_count), (high, high_count) = groups[position], groups[position + 1]
        if high - low >= gap * (low_count + high_count) / 2 - 1e-12:
            position += 1
            continue
        centre = (low * low_count + high * high_count) / (low_count + high_count)
        groups[position : position + 2] = [[centre, low_count + high_count]]
        position = max(position - 1, 0)
    placed = [centre + gap * (slot - (members - 1) / 2) for centre, members in groups for slot in range(members)]
    result = [0.0] * len(order)
    for index, height in zip(order, placed, strict=True):
        result[index] = height
    return result


def label_ends(axes: Axes, ends: Sequence[tuple[str, float, float, str]], room: float = 0.2) -> None:
    """Write each line's name right of its last point; ``ends`` holds (name, x, y, colour). Set the y limits before."""
    if not ends:
        return
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    x = max(end[1] for end in ends)
    text_x = x + 0.035 * (right - left)
    heights = spread([end[2] for end in ends], gap=0.062 * (high - low))
    for (name, end_x, y, colour), height in zip(ends, heights, strict=True):
        if abs(height - y) > 0.012 * (high - low) or end_x < x:
            axes.plot([end_x, text_x], [y, height], color=colour, linewidth=0.7, alpha=0.6, clip_on=False)
        axes.text(text_x, height, f" {name}", color=colour, va="center", ha="left", fontsize=10, fontweight="bold")
    axes.set_xlim(left, x + room * (right - left))


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG of DPI dots an inch, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    figure.savefig(partial, dpi=DPI, format="png")
    partial.replace(path)
    return path
