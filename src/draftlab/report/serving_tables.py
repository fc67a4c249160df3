"""What a scheduler gains in serving: throughput at a speed that every user must get, and speed at a throughput.

    frontier                 the cells of a line that no other one beats in both throughput and tokens/s a user
    throughput at S          the most that a line reaches with users at S tokens/s or more, linear along its frontier
    speed at X               likewise, the speed with a throughput of X or more

What a line does not reach is NaN. The table that everything starts from has a row a cell: drafter, scheduler, and the figures
of :func:`draftlab.serving.records.summarise`, measured or simulated, with ``_low`` and ``_high`` columns or without.

    gains = throughput_gains(table, reference="mtp1 fixed", anchors=[40.0, 80.0])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

NEEDED = ("drafter", "scheduler", "concurrency", "throughput", "user_speed_mean", "budget")
NONE, PLAIN = "none", "no drafting"
REFERENCES = ("mtp1 fixed", PLAIN)  # what gains are over, the first that there is
SPEED, RATE = "user_speed_mean", "throughput"
PARTS = (0.25, 0.5, 0.75)  # of what the reference reaches, where anchors are not given


def with_lines(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with a column ``line``: drafter and scheduler in words.

    Raises:
        ValueError: no row, or a column that is missing.
    """
    missing = [name for name in NEEDED if name not in table.columns]
    if missing or table.empty:
        raise ValueError(
            f"a table of serving cells needs rows and the columns {', '.join(NEEDED)}; "
            f"{', '.join(missing) or 'a row'} is missing"
        )
    names = [
        PLAIN if drafter == NONE else f"{drafter} {str(scheduler).replace('_', ' ')}"
        for drafter, scheduler in zip(table["drafter"], table["scheduler"], strict=True)
    ]
    return table.assign(line=names)


def find_reference(table: pd.DataFrame, reference: str | None) -> str:
    """The line that gains are over: the one asked for, MTP-1, no drafting, or the first.

    Raises:
        ValueError: the one asked for is not there.
    """
    there = list(dict.fromkeys(table["line"]))
    if reference is None:
        return next((name for name in REFERENCES if name in there), there[0])
    if reference not in there:
        raise ValueError(f"reference must be one of the lines {', '.join(there)}, got {reference!r}")
    return reference


def frontier(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Speeds [n], rising, and throughputs [n], falling, of the cells that no other one beats in both."""
    rows = rows[[SPEED, RATE]].dropna().sort_values([SPEED, RATE], ascending=False)
    speed, rate = rows[SPEED].to_numpy(), rows[RATE].to_numpy()
    best = np.maximum.accumulate(np.concatenate([[-np.inf], rate[:-1]])) < rate
    return speed[best][::-1], rate[best][::-1]


def throughput_at(rows: pd.DataFrame, speed: float) -> float:
    """The most tokens/s with users at ``speed`` tokens/s or more; NaN where users never get that much."""
    speeds, rates = frontier(rows)
    return float(np.interp(speed, speeds, rates)) if len(speeds) and speed <= speeds[-1] else float("nan")


def speed_at(rows: pd.DataFrame, throughput: float) -> float:
    """The most tokens/s a user with a throughput of ``throughput`` or more; NaN where it is never reached."""
    speeds, rates = frontier(rows)
    return (
        float(np.interp(throughput, rates[::-1], speeds[::-1]))
        if len(rates) and throughput <= rates[0]
        else float("nan")
    )


def speed_anchors(table: pd.DataFrame, reference: str) -> list[float]:
    """Parts of the highest speed a user that the reference reaches, rounded to two digits."""
    return _parts(frontier(table[table["line"] == reference])[0][-1])


def throughput_anchors(table: pd.DataFrame, reference: str) -> list[float]:
    """Parts of the highest throughput that the reference reaches, rounded to two digits."""
    return _parts(frontier(table[table["line"] == reference])[1][0])


def throughput_gains(table: pd.DataFrame, reference: str, anchors: Sequence[float]) -> pd.DataFrame:
    """A row a line and anchor of speed: ``throughput`` there and ``gain`` over the reference's (0.5: half as much again)."""
    return _gains(table, reference, anchors, throughput_at, ("speed", RATE))


def speed_gains(table: pd.DataFrame, reference: str, anchors: Sequence[float]) -> pd.DataFrame:
    """A row a line and anchor of throughput: ``speed`` there and ``gain`` over the reference's."""
    return _gains(table, reference, anchors, speed_at, (RATE, "speed"))


def _gains(table: pd.DataFrame, reference: str, anchors: Sequence[float], at, names: tuple[str, str]) -> pd.DataFrame:
    base = {anchor: at(table[table["line"] == reference], anchor) for anchor in anchors}
    rows = []
    for line, part in table.groupby("line", sort=False):
        for anchor in anchors:
            value = at(part, anchor)
            rows.append({"line": line, names[0]: anchor, names[1]: value, "gain": value / base[anchor] - 1.0})
    return pd.DataFrame(rows)


def _parts(highest: float) -> list[float]:
    return [float(f"{part * highest:.2g}") for part in PARTS]
