"""Runs that differ in nothing but their seed, taken together: one line of a comparison.

The rounds of all seeds are put together, so a quantity of the joined run is the ratio of sums over its trainings, and
an interval over prompts draws a prompt with all its answers. How far another training may land is the t-interval over
seeds of :mod:`draftlab.report.ablation`.

    join_seeds([run_of_seed_0, run_of_seed_1, another])       # [joined, another]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from draftlab.report.ablation import Group, find_groups
from draftlab.report.run import Run

SUMS = ("rounds", "draft_seconds", "verify_seconds")  # of the speed comparison; other numbers are averaged


def join_seeds(runs: Sequence[Run]) -> list[Run]:
    """``runs`` with one in place of each group of two or more seeds, where its first stood; named as the group is.

    Seeds of one configuration alone stay apart: there is nothing else to compare them with. A run whose seed another of
    its group has already stays a line of its own.
    """
    groups, _ = find_groups(runs)
    joined = {group.runs[0].name: _join(group) for group in groups if len(group.seeds) > 1}
    gone = {run.name for group in groups if group.runs[0].name in joined for run in group.runs[1:]}
    lines = [joined.get(run.name, run) for run in runs if run.name not in gone]
    return lines if len(lines) > 1 else list(runs)


def seed_lines(rows: pd.DataFrame) -> list[str]:
    """What a terminal shows of :func:`~draftlab.report.ablation.seed_table`: a line a temperature and group."""
    whole = rows[rows["run"] == ""].to_dict("records") if len(rows) else []
    return [
        f"T={row['temperature']:g} {row['group']}: mean {row['accepted_length']:.2f} of seeds {row['seed']}, "
        f"{row['accepted_length_min']:.2f} … {row['accepted_length_max']:.2f}; "
        f"95 % over seeds [{row['seeds_low']:.2f}, {row['seeds_high']:.2f}]"
        for row in whole
    ]


def _join(group: Group) -> Run:
    rounds = pd.concat([run.rounds for run in group.runs], ignore_index=True)
    return replace(group.runs[0], name=group.label, rounds=rounds, speed=_join_speed([run.speed for run in group.runs]))


def _join_speed(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row a temperature at which every run has a speed comparison: a mean over the others is none of all.

    A number that one of them lacks there is NaN.
    """
    if any(part.empty for part in parts):
        return pd.DataFrame()
    rows = pd.concat([part.drop_duplicates("temperature") for part in parts], ignore_index=True)
    rows = rows[rows.groupby("temperature")["temperature"].transform("size") == len(parts)].select_dtypes("number")
    means = [name for name in rows.columns if name not in (*SUMS, "temperature")]
    how = {name: _sum if name in SUMS else _mean for name in (*SUMS, *means) if name in rows.columns}
    return rows.groupby("temperature", as_index=False).agg(how)


def _sum(values: pd.Series) -> float:
    return values.sum(skipna=False)


def _mean(values: pd.Series) -> float:
    return values.mean(skipna=False)
