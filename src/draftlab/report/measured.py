"""The figures of a measured serving experiment: one row a cell with 95 % intervals, a table, and the page of Figures 7 and 8.

    throughput, budget, …    ratios of sums over blocks of steps, resampled by block
    user_speed               over requests, resampled by request

Steps of one moment are alike, so blocks of ten steps are resampled, never steps. It measures nothing.

    show_serving(summary_table(steps, requests), Path("outputs/demo/serve"), about)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from draftlab.report.bootstrap import RESAMPLES, SEED, quantile_interval, ratio
from draftlab.report.serving import About, write_serving
from draftlab.report.tables import console
from draftlab.serving.records import Served, Step, summarise

KEY = ["cell", "drafter", "scheduler", "concurrency"]
BLOCK = 10  # steps that are resampled together
RATIOS = {
    "throughput": ("committed", "seconds"),
    "budget": ("sent", "requests"),
    "accepted_length": ("committed", "requests"),
    "wasted": ("rejected", "verified"),
    "draft_share": ("draft", "busy"),
    "scheduling_share": ("schedule", "busy"),
}


def summary_table(steps: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    """One row a cell and concurrency: the figures of :func:`draftlab.serving.records.summarise`, and ``_low``, ``_high``.

    A cell in which no request finished has no speed by user (NaN).
    """
    rows = []
    for key, own in steps.groupby(KEY, sort=False):
        asked = requests[(requests["cell"] == key[0]) & (requests["concurrency"] == key[3])]
        rows.append(
            _figures(own, asked) | dict(zip(KEY, key, strict=True))
        )  # the users asked for, not the mean that ran
    return pd.DataFrame(rows)


def _figures(steps: pd.DataFrame, requests: pd.DataFrame) -> dict[str, float]:
    joined = _abutting(steps)
    records = [Step(**row) for row in joined[list(Step.__dataclass_fields__)].to_dict("records")]
    served = [Served(**row) for row in requests[list(Served.__dataclass_fields__)].to_dict("records")]
    none = Served(0, "", 0.0, 0.0, 0.0, 0.0, 1)  # summarise wants a request; one without a second token has no speed
    figures = summarise(records, served or [none]) | {"requests": len(served)}
    blocks = joined.groupby(["turn", joined.groupby("turn").cumcount() // BLOCK]).sum(numeric_only=True)
    for name, (numerator, weight) in RATIOS.items():
        estimate = ratio(blocks[[numerator]].to_numpy(float), blocks[[weight]].to_numpy(float))
        figures |= {f"{name}_low": float(estimate.low[0]), f"{name}_high": float(estimate.high[0])}
    return figures | _speed_intervals(requests)


def _abutting(steps: pd.DataFrame) -> pd.DataFrame:
    """Steps of all turns on one clock, one turn behind the other, with what the ratios sum."""
    parts, end = [], 0.0
    for _, turn in steps.sort_values(["turn", "start"]).groupby("turn"):
        busy = turn[["prefill", "draft", "schedule", "verify"]].sum(axis=1)
        start = turn["start"] - turn["start"].iloc[0]
        seconds = (start.shift(-1) - start).fillna(busy)
        parts.append(turn.assign(start=start + end, busy=busy, seconds=seconds))
        end += float(start.iloc[-1] + busy.iloc[-1])
    joined = pd.concat(parts, ignore_index=True)
    return joined.assign(
        sent=joined["verified"] + joined["requests"], rejected=joined["verified"] - joined["accepted"]
    ).astype(dict.fromkeys(("requests", "drafted", "verified", "accepted", "committed"), int))


def _speed_intervals(requests: pd.DataFrame) -> dict[str, float]:
    names = ("user_speed_mean", "user_speed_p5")
    timed = requests[requests["finished"] > requests["first_token"]]
    speeds = ((timed["tokens"] - 1) / (timed["finished"] - timed["first_token"])).to_numpy(float)
    if len(speeds) < 2:
        return {f"{name}_{end}": float("nan") for name in names for end in ("low", "high")}
    drawn = np.random.default_rng(SEED).choice(speeds, (RESAMPLES, len(speeds)))
    low, high = quantile_interval(np.column_stack([drawn.mean(axis=1), np.percentile(drawn, 5, axis=1)]))
    return {
        f"{name}_{end}": float(value[i])
        for i, name in enumerate(names)
        for end, value in (("low", low), ("high", high))
    }


def show_serving(summary: pd.DataFrame, folder: Path, about: About) -> None:
    """Print the table; write summary.csv and the page of :func:`draftlab.report.serving.write_serving` into ``folder``."""
    summary.to_csv(folder / "summary.csv", index=False)
    terminal = console()
    grid = Table(title="serving", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("users", "cell", "scheduler"):
        grid.add_column(heading, no_wrap=True)
    heads = ("tokens/s", "tokens/s/user", "p5", "tokens sent", "accepted length", "wasted", "drafting", "scheduling")
    for heading in heads:
        grid.add_column(heading, justify="right")
    for row in summary.sort_values("concurrency", kind="stable").to_dict("records"):
        numbers = [f"{row['throughput']:.1f} [{row['throughput_low']:.1f}, {row['throughput_high']:.1f}]"]
        numbers += [f"{row['user_speed_mean']:.1f}", f"{row['user_speed_p5']:.1f}", f"{row['budget']:.2f}"]
        numbers += [f"{row['accepted_length']:.2f}"]
        numbers += [f"{100 * row[name]:.1f} %" for name in ("wasted", "draft_share", "scheduling_share")]
        grid.add_row(str(row["concurrency"]), row["cell"], row["scheduler"], *numbers)
    terminal.print(grid)
    terminal.print(
        "tokens sent: to the target, a request and step, anchor included. In brackets: 95 % bootstrap over blocks of "
        f"{BLOCK} steps.",
        highlight=False,
    )
    terminal.print(f"report: {write_serving(summary, folder, about)}", highlight=False)
