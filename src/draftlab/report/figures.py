"""The pictures of a report, each a function from a table to a matplotlib Figure.

    conditional_acceptance   Figure 2 of the paper: acceptance of slot k given 1..k-1, one line a domain, with intervals
    length_histogram         tokens committed a round: share of rounds by 1..G+1, and the mean τ
    reliability              observed acceptance against confidence
    training_curves          loss and expected accepted length by step

It knows nothing of files; :mod:`draftlab.report.style` holds the look.

    >>> conditional_acceptance(position_table(run.rounds))   # doctest: +SKIP
"""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from draftlab.report.reliability import calibration_error
from draftlab.report.style import BLUE, INK, MARKERS, MUTED, STYLE, colours, label_ends, panels
from draftlab.report.tables import ALL, DOMAIN

FEW = 30  # a position tested in fewer rounds than this is drawn hollow
FEWEST = 10  # in fewer than this, it is left to the table
HOLLOW = f"Hollow marks: fewer than {FEW} rounds reached the position; fewer than {FEWEST} are shown in the table only."


def conditional_acceptance(positions: pd.DataFrame) -> Figure:
    """Figure 2's shape from :func:`~draftlab.report.tables.position_table`: a panel a temperature, a line a domain."""
    domains = positions[positions["scope"] == DOMAIN]
    if domains["name"].nunique() < 2:
        domains = positions[positions["scope"].isin([ALL])]
    return lines_by_position(domains.rename(columns={"name": "line"}))


def lines_by_position(lines: pd.DataFrame) -> Figure:
    """Conditional acceptance by position from rows of (temperature, line, position, tested, value, low, high)."""
    names = list(dict.fromkeys(lines["line"]))
    colour = colours(names)
    temperatures = sorted(lines["temperature"].unique())
    low, high = _limits(lines)
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(temperatures), width=5.6)
        for panel, temperature in zip(axes, temperatures, strict=True):
            part = lines[lines["temperature"] == temperature]
            last = int(part["position"].max())
            panel.set_xlim(0.7, last + 0.3)
            panel.set_ylim(low, high)
            ends = [
                _draw_line(panel, part[part["line"] == name], colour[name], MARKERS[index % len(MARKERS)])
                for index, name in enumerate(names)
            ]
            longest = max(map(len, names))
            label_ends(
                panel, [(name, *end) for name, end in zip(names, ends, strict=True) if end], 0.08 + 0.021 * longest
            )
            panel.set_xticks(range(1, last + 1))
            panel.set_title(temperature_title(temperature))
            panel.set_xlabel("position in the block")
            panel.grid(axis="x", visible=False)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[0].set_ylabel("accepted, given all before it were")
        return figure


def _limits(lines: pd.DataFrame) -> tuple[float, float]:
    """Heights that hold every drawn point, and the bands of points that are well known; within [0, 1.01]."""
    values = lines.loc[lines["tested"] >= FEWEST, "conditional_acceptance"].to_numpy()
    bands = lines.loc[lines["tested"] >= FEW, ["conditional_acceptance_low", "conditional_acceptance_high"]].to_numpy()
    heights = np.concatenate([values, bands.ravel()])
    heights = heights[~np.isnan(heights)] if np.isfinite(heights).any() else np.array([0.0, 1.0])
    pad = max(0.06 * float(np.ptp(heights)), 0.02)
    return max(float(heights.min()) - pad, -0.01), min(float(heights.max()) + pad, 1.01)


def _draw_line(panel: Axes, rows: pd.DataFrame, colour: str, marker: str) -> tuple[float, float, str] | None:
    """Line, band and markers of one name; its last point and colour, or None if no position was tested enough."""
    rows = rows[rows["tested"] >= FEWEST].sort_values("position")
    if rows.empty:
        return None
    x, y = rows["position"].to_numpy(), rows["conditional_acceptance"].to_numpy()
    low, high = rows["conditional_acceptance_low"].to_numpy(), rows["conditional_acceptance_high"].to_numpy()
    panel.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
    panel.plot(x, y, color=colour)
    few = rows["tested"].to_numpy() < FEW
    panel.plot(x[~few], y[~few], marker, color=colour, markeredgecolor="white", markeredgewidth=0.8)
    panel.plot(x[few], y[few], marker, markerfacecolor="white", markeredgecolor=colour, markeredgewidth=1.2)
    return float(x[-1]), float(y[-1]), colour


PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # behind a label that a line may cross


def length_histogram(rounds: pd.DataFrame) -> Figure:
    """Share of rounds by committed tokens (bonus included), one panel a temperature, the mean marked."""
    temperatures = sorted(rounds["temperature"].unique())
    longest = int(rounds["proposed"].max()) + 1
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(temperatures), width=5.0, height=3.6)
        for panel, temperature in zip(axes, temperatures, strict=True):
            committed = rounds.loc[rounds["temperature"] == temperature, "committed"].to_numpy()
            share = np.bincount(committed, minlength=longest + 1)[1 : longest + 1] / len(committed)
            bars = panel.bar(range(1, longest + 1), share, width=0.78, color=BLUE, alpha=0.88)
            labels = [f"{value:.0%}" if value >= 0.005 else "" for value in share]
            panel.bar_label(bars, labels=labels, padding=2, fontsize=9, color=MUTED, zorder=4, bbox=PLATE)
            panel.axvline(committed.mean(), color=INK, linewidth=1.1, linestyle=(0, (4, 3)))
            panel.annotate(
                f"mean τ = {committed.mean():.2f}",
                (committed.mean(), 0.94),
                xycoords=("data", "axes fraction"),
                xytext=(6, 0),
                textcoords="offset points",
                fontweight="bold",
                va="center",
            )
            panel.set_title(temperature_title(temperature))
            panel.set_xticks(range(1, longest + 1))
            panel.set_xlabel("tokens committed in a round")
            panel.grid(axis="x", visible=False)
            panel.margins(y=0.16)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[0].set_ylabel("share of rounds")
        return figure


def reliability(table: pd.DataFrame) -> Figure:
    """Reliability from :func:`~draftlab.report.reliability.reliability_table`: dot area shows the share of slots."""
    temperatures = sorted(table["temperature"].unique())
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(temperatures), width=4.3, height=4.2)
        for panel, temperature in zip(axes, temperatures, strict=True):
            bins = table[table["temperature"] == temperature]
            panel.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
            panel.plot(bins["confidence"], bins["accepted"], color=BLUE, linewidth=1.4)
            area = 700.0 * bins["count"] / bins["count"].sum() + 12.0
            panel.scatter(
                bins["confidence"], bins["accepted"], s=area, color=BLUE, edgecolor="white", linewidth=0.8, zorder=3
            )
            error = calibration_error(bins)
            panel.text(0.03, 0.95, f"ECE {error:.1%}", fontweight="bold", va="center", transform=panel.transAxes)
            panel.text(0.03, 0.885, "dashed: perfect", color=MUTED, fontsize=9, va="center", transform=panel.transAxes)
            panel.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="confidence", title=temperature_title(temperature))
            panel.set_aspect("equal")
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[0].set_ylabel("accepted")
        return figure


def training_curves(metrics: pd.DataFrame) -> Figure | None:
    """Loss and expected accepted length by step from metrics.csv; None where neither was logged."""
    wanted = (("loss", "loss"), ("accepted_length", "expected accepted length (with bonus)"))
    shown = [(key, title) for key, title in wanted if {f"train/{key}", f"val/{key}"} & set(metrics.columns)]
    if not shown:
        return None
    last = int(metrics["step"].max())
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(shown), width=5.4, height=3.6, share_y=False)
        for panel, (key, title) in zip(axes, shown, strict=True):
            _draw_curve(panel, metrics, key)
            panel.set(title=title, xlabel="optimizer step")
            ticks = MaxNLocator(nbins=6, integer=True).tick_values(0, last)
            panel.set_xticks([tick for tick in ticks if 0 <= tick <= last])
            panel.grid(axis="x", visible=False)
        return figure


def _draw_curve(panel: Axes, metrics: pd.DataFrame, key: str) -> None:
    """Training values faint, their moving mean strong, validation as dots."""
    colour = {"train": BLUE, "val": colours(["code"])["code"]}
    ends, drawn = [], []
    for stage in ("train", "val"):
        column = f"{stage}/{key}"
        if column not in metrics.columns:
            continue
        rows = metrics.dropna(subset=[column])
        if rows.empty:
            continue
        x, y = rows["step"].to_numpy(), rows[column].to_numpy(dtype=float)
        smooth = pd.Series(y).rolling(max(len(y) // 25, 1), min_periods=1).mean().to_numpy() if stage == "train" else y
        if stage == "train":
            panel.plot(x, y, color=colour[stage], linewidth=0.9, alpha=0.28)
        panel.plot(x, smooth, color=colour[stage], marker="o" if stage == "val" else None, markeredgecolor="white")
        drawn.append(y)
        ends.append(({"train": "training", "val": "held-out"}[stage], float(x[-1]), float(smooth[-1]), colour[stage]))
    low, high = (np.nanquantile(np.concatenate(drawn), share) for share in (0.005, 0.995)) if drawn else (0.0, 1.0)
    pad = max(0.08 * (high - low), 1e-3)
    panel.set_ylim(low - pad, high + pad)
    label_ends(panel, ends, room=0.26)


def temperature_title(temperature: float) -> str:
    """Panel title of a temperature."""
    return f"T = {temperature:g} (greedy)" if temperature == 0 else f"T = {temperature:g}"
