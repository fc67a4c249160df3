"""The part of a comparison that speaks of configurations: its files, its sections of the page, and what had to be left out.

    differences.csv                    keys that differ × run
    seeds.csv                          groups of runs that differ in nothing but the seed
    depth.csv, depth.png               Figure 3 of the paper, where two depths occur
    draft_length.csv, draft_length.png Figure 4 of the paper, where two draft lengths occur

What does not occur is not written, and removed if an earlier comparison left it. It computes nothing itself.

    sections, notes = ablation_sections(runs, [0.0, 1.0], Path("outputs/compare"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from draftlab.report import ablation_figures
from draftlab.report.ablation import (
    BASELINE,
    DEPTH,
    DRAFT_LENGTH,
    ENOUGH,
    Group,
    Sweep,
    find_groups,
    flat_configs,
    seed_table,
    sweep_table,
)
from draftlab.report.bootstrap import METHOD
from draftlab.report.differences import Config, difference_table
from draftlab.report.html import write_csv
from draftlab.report.run import Run
from draftlab.report.style import save
from draftlab.report.tables import with_interval
from draftlab.report.template import image, table

FILES = ("differences.csv", "seeds.csv", "depth.csv", "depth.png", "draft_length.csv", "draft_length.png")
NOWHERE = "In no table of configurations, of seeds, and in no ablation figure"
POINTS = (
    f"Bars at the points: 95 % intervals, over seeds (t) where a point is the mean of {ENOUGH} or more, else over prompts "
    f"({METHOD})."
)


def ablation_sections(runs: Sequence[Run], temperatures: Sequence[float], out: Path) -> tuple[list[dict], list[str]]:
    """Write the files above into ``out``; return sections of the page, and a note on every run or panel left out."""
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    configs, unread = flat_configs(runs)
    notes = [f"{NOWHERE}: {name}: {reason}" for name, reason in unread.items()]
    groups, reasons = find_groups([run for run in runs if run.name in configs])
    notes += [f"In no table of seeds and in no ablation figure: {name}: {reason}" for name, reason in reasons.items()]
    sections = _difference_section(configs, out) + _seed_section(groups, temperatures, out)
    for sweep, stem, draw, number in (
        (DEPTH, "depth", ablation_figures.depth, 3),
        (DRAFT_LENGTH, "draft_length", ablation_figures.draft_length, 4),
    ):
        rows = sweep_table(groups, temperatures, sweep)
        if rows.empty:
            continue
        write_csv(rows, out / f"{stem}.csv")
        picture = image(save(draw(rows), out / f"{stem}.png"))
        title = f"Accepted length by {sweep.name} (Figure {number} of the paper)"
        sections.append(
            {"title": title, "image": picture, "caption": _caption(rows, sweep), **_sweep_cells(rows, sweep)}
        )
        notes += [
            f"Not in the figure by {sweep.name}: {run.name}: expected a whole number at {' or '.join(sweep.keys)}"
            for group in groups
            if group.value(sweep) is None
            for run in group.runs
        ]
    return sections, notes


def _difference_section(configs: Mapping[str, Config], out: Path) -> list[dict]:
    rows = difference_table(configs)
    if rows.empty:
        return []
    write_csv(rows, out / "differences.csv")
    cells = [["–" if value is None else value for value in row] for row in rows.to_numpy().tolist()]
    note = (
        "Only keys of the recorded configurations that differ; –: the run has no such key. Names, places, loggers and "
        "the settings of the evaluation are left out."
    )
    return [{"title": "Configuration differences", "table": table(list(rows.columns), cells), "note": note}]


def _seed_section(groups: Sequence[Group], temperatures: Sequence[float], out: Path) -> list[dict]:
    rows = seed_table(groups, temperatures)
    if rows.empty:
        return []
    write_csv(rows, out / "seeds.csv")
    cells, strong = [], []
    for row in rows.to_dict("records"):
        if not row["run"]:
            strong.append(len(cells))
        cells.append(
            [
                f"{row['temperature']:g}",
                row["run"] or f"mean of {row['group']}",
                row["seed"],
                f"{row['accepted_length']:.2f}",
                _span(row, "accepted_length_min", "accepted_length_max", "{} … {}"),
                _span(row, "seeds_low", "seeds_high"),
                _span(row, "prompts_low", "prompts_high"),
            ]
        )
    heads = ["T", "run", "seed", "accepted length", "least … most", "95 % over seeds", "95 % over prompts"]
    note = (
        "Runs of a group differ in nothing but their seed. Over seeds: t-interval of the mean, for how far another "
        f"training may land. Over prompts: {METHOD}, for how far other prompts may move these very runs."
    )
    section = {"title": "Seeds", "table": table(heads, cells, left=2, strong=tuple(strong)), "note": note}
    return [section]


def _sweep_cells(rows: pd.DataFrame, sweep: Sweep) -> dict:
    """The numbers under a figure; columns that hold nothing are left out."""
    columns = {
        "T": lambda row: f"{row['temperature']:g}",
        "drafter": lambda row: row["line"],
        sweep.name: lambda row: str(row["value"]),
        "runs": lambda row: str(row["runs"]),
        "accepted length (with bonus)": lambda row: with_interval(row, "accepted_length"),
        "interval over": lambda row: row["interval"],
    }
    if sweep is DRAFT_LENGTH and rows["gain"].notna().any():
        columns[f"gain over {BASELINE}"] = lambda row: with_interval(row, "gain")
    if sweep is DRAFT_LENGTH and rows["verify_ms"].notna().any():
        columns["draft ms a round"] = lambda row: _number(row["draft_ms"])
        columns["verify ms a round"] = lambda row: _number(row["verify_ms"])
    cells = [[text(row) for text in columns.values()] for _, row in rows.iterrows()]
    return {"table": table(list(columns), cells, left=2)}


def _caption(rows: pd.DataFrame, sweep: Sweep) -> str:
    parts = [POINTS]
    if sweep is DRAFT_LENGTH:
        if rows["gain"].notna().any():
            parts.append(
                f"Gain: τ minus τ of {BASELINE} with the same block; its intervals are over prompts, the same for both in "
                "each resample."
            )
        else:
            parts.append(
                f"No gain over {BASELINE}: it is not among the runs with the same block size as another drafter."
            )
        timed = rows["verify_ms"].notna()
        if timed.any():
            parts.append("Milliseconds: drafting and verifying, of each run's own speed measurement at its batch size.")
        if not timed.all():
            parts.append("Latency is left out where an evaluation did not record the rounds of its speed measurement.")
    return " ".join(parts)


def _span(row: Mapping, low: str, high: str, form: str = "[{}, {}]") -> str:
    return "–" if np.isnan(row[low]) else form.format(f"{row[low]:.2f}", f"{row[high]:.2f}")


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.1f}"
