"""What a profile says: SPS by tokens at each context length, drafting passes by rows; a table, a picture, the shape in words.

    show_profile(frame, tables(frame, 256)[0], Path("outputs/demo"))

It measures nothing.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.ticker import ScalarFormatter
from rich import box
from rich.table import Table

from draftlab.report.style import CYCLE, MARKERS, STYLE, panels, save
from draftlab.report.tables import console
from draftlab.scheduling import Throughput

PARTS = {
    "target": ("tokens", "passes of the target"),
    "drafter": ("rows", "drafting passes"),
    "drafter_one_token": ("rows", "drafting passes, one token"),
}


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Median, fastest and slowest milliseconds of every size: a row a part, context and size."""
    grouped = frame.groupby(["part", "context", "tokens", "rows"])["seconds"]
    columns = {"median_ms": grouped.median(), "least_ms": grouped.min(), "most_ms": grouped.max()}
    table = pd.DataFrame({name: 1000.0 * values for name, values in columns.items()})
    return table.assign(repeats=grouped.size(), per_second=1000.0 / table["median_ms"]).reset_index()


def show_profile(frame: pd.DataFrame, table: Throughput, folder: Path) -> None:
    """Print the passes, write figures/throughput.png into ``folder``, say what shape the target's ``table`` has."""
    terminal = console()
    rows = summary(frame)
    for part, (size, title) in PARTS.items():
        if not (rows["part"] == part).any():
            continue
        grid = Table(title=f"{title} a second", title_justify="left", box=box.SIMPLE_HEAD)
        grid.add_column(size, justify="right")
        by = rows[rows["part"] == part].pivot_table(index=size, columns="context", values="per_second")
        for context in by.columns:
            grid.add_column(f"context {context}", justify="right")
        for value, line in by.iterrows():
            grid.add_row(str(value), *(f"{number:.1f}" for number in line))
        terminal.print(grid)
        if part == "target":
            terminal.print(table.shape(), highlight=False)
    terminal.print(f"figure: {draw_profile(rows, folder / 'figures' / 'throughput.png')}", highlight=False)


def draw_profile(rows: pd.DataFrame, path: Path) -> Path:
    """Passes a second against size, one line a context length; the target left, then the drafter."""
    parts = [part for part in PARTS if (rows["part"] == part).any()]
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(parts), share_y=False)
        for axis, part in zip(axes, parts, strict=True):
            size, title = PARTS[part]
            for index, (context, line) in enumerate(rows[rows["part"] == part].groupby("context")):
                colour, line = CYCLE[index % len(CYCLE)], line.sort_values(size)
                axis.plot(line[size], line["per_second"], MARKERS[index % 8] + "-", color=colour, label=f"{context}")
                axis.fill_between(
                    line[size], 1000 / line["most_ms"], 1000 / line["least_ms"], color=colour, alpha=0.15, lw=0
                )
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(ScalarFormatter())
            axis.set_ylim(bottom=0)
            axis.set(title=title, xlabel=f"{size} in a pass", ylabel="passes a second")
            axis.legend(title="context", frameon=False)
        return save(figure, path)
