"""Several runs beside each other: accepted length of each, ratio and difference of every pair, acceptance by position.

    ratio τ_run / τ_baseline    difference τ_run - τ_baseline    both with paired 95 % intervals over prompts

All runs must have decoded the same prompts of the same target in the same way; then one resample of prompts serves both
runs of a pair, and what makes a prompt easy for both cancels. A run that differs is named with the reason, and the rest
goes on. Runs that differ in their seed only are one line (:mod:`draftlab.report.seeds`); runs.csv has them one by one. What
sets configurations apart, and what that does, is :mod:`draftlab.report.ablation_page`'s part.

    python src/report.py runs=[outputs/dspark,outputs/dflash] out=outputs/compare
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from draftlab.report import figures
from draftlab.report.ablation import find_groups, resampled_lengths, seed_table
from draftlab.report.ablation_page import ablation_sections
from draftlab.report.bootstrap import METHOD, quantile_interval
from draftlab.report.comparable import check_out, common_temperatures, comparable_runs
from draftlab.report.cost import HEADS, cost_cells, cost_section, cost_table
from draftlab.report.html import details, fact_table, write_csv
from draftlab.report.run import Run
from draftlab.report.seeds import join_seeds, seed_lines
from draftlab.report.style import save
from draftlab.report.tables import ALL, console, length_table, position_table, with_interval
from draftlab.report.template import image, table, write_page

MOST = 5  # runs whose ratios to each other a terminal has room for


def compare_runs(run_dirs: Sequence[str | Path], out: str | Path, show: bool = True) -> Path:
    """Compare evaluated runs; write report.html, *.csv and *.png into ``out``; return the page.

    Runs that cannot be compared with the first readable one are listed with the reason. Raises ValueError if fewer than
    two are left, or ``out`` cannot be written into.
    """
    runs, refused = comparable_runs(run_dirs)
    if len(runs) < 2:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items()) or "one run was given"
        raise ValueError(f"runs: expected at least two runs to compare, got {len(runs)} ({reasons})")
    out, temperatures = check_out(out), common_temperatures(runs)
    lines = join_seeds(runs)
    lengths = _by_run(length_table, lines, temperatures)
    positions = _by_run(position_table, lines, temperatures)
    pairs, costs = pair_table(lines, temperatures), cost_table(lines, temperatures)
    runs_table = lengths if len(lines) == len(runs) else _by_run(length_table, runs, temperatures)
    for name, frame in (
        *(("runs", runs_table), ("pairs", pairs)),
        *(("conditional_acceptance", positions), ("cost", costs)),
    ):
        write_csv(frame, out / f"{name}.csv")
    overall = positions[positions["scope"] == ALL].assign(line=lambda frame: frame["run"])
    picture = image(save(figures.lines_by_position(overall), out / "conditional_acceptance.png"))
    ablation, notes = ablation_sections(runs, temperatures, out)
    page = write_page(
        out / "report.html",
        title="Comparison: " + ", ".join(run.name for run in lines),
        subtitle="The same target, the same prompts, decoded in the same way.",
        warnings=[*(f"Left out: {name}: {reason}" for name, reason in refused.items()), *notes],
        sections=[*_sections(lengths, pairs, picture), *cost_section(costs), *ablation, *_facts(lines)],
        details=[text for run in runs for text in details(run)],
    )
    if show:
        _print(
            lengths,
            pairs,
            [
                *(f"left out: {name}: {reason}" for name, reason in refused.items()),
                *notes,
                *seed_lines(seed_table(find_groups(runs)[0], temperatures)),
            ],
            costs,
            page,
        )
    return page


def _by_run(make: Callable[[pd.DataFrame], pd.DataFrame], runs: Sequence[Run], temperatures: Sequence[float]):
    """The rows that ``make`` gives for the rounds of each run, with its name as ``run``."""
    rows = pd.concat([make(run.rounds).assign(run=run.name) for run in runs], ignore_index=True)
    return rows[rows["temperature"].isin(temperatures)].sort_values("temperature", kind="stable")


def pair_table(runs: Sequence[Run], temperatures: Sequence[float]) -> pd.DataFrame:
    """One row a temperature and ordered pair (run, baseline): both lengths, their ratio and difference with intervals.

    ``separated`` says whether the interval of the difference leaves out 0.
    """
    rows = []
    for temperature in temperatures:
        values, samples = resampled_lengths(runs, temperature)
        for first, run in enumerate(runs):
            for second, baseline in enumerate(runs):
                if first == second:
                    continue
                both = np.stack(
                    [samples[:, first] / samples[:, second], samples[:, first] - samples[:, second]], axis=1
                )
                low, high = quantile_interval(both)
                rows.append(
                    {
                        "temperature": temperature,
                        "run": run.name,
                        "baseline": baseline.name,
                        "accepted_length": values[first],
                        "baseline_accepted_length": values[second],
                        "ratio": values[first] / values[second],
                        "ratio_low": low[0],
                        "ratio_high": high[0],
                        "difference": values[first] - values[second],
                        "difference_low": low[1],
                        "difference_high": high[1],
                        "separated": bool(low[1] > 0 or high[1] < 0),
                    }
                )
    return pd.DataFrame(rows)


def _sections(lengths: pd.DataFrame, pairs: pd.DataFrame, picture: str) -> list[dict]:
    overall = lengths[lengths["scope"] == ALL].sort_values(["temperature", "accepted_length"], ascending=[True, False])
    length_cells = [
        [
            f"{row['temperature']:g}",
            row["run"],
            f"{row['prompts']:,}",
            with_interval(row, "accepted_length"),
            with_interval(row, "accepted"),
            with_interval(row, "drafted_share", percent=True),
        ]
        for _, row in overall.iterrows()
    ]
    better = pairs[pairs["difference"] >= 0].sort_values(["temperature", "accepted_length"], ascending=[True, False])
    pair_cells = [
        [
            f"{row['temperature']:g}",
            row["run"],
            row["baseline"],
            with_interval(row, "ratio"),
            with_interval(row, "difference"),
            "yes" if row["separated"] else "no",
        ]
        for _, row in better.iterrows()
    ]
    domain = lengths[(lengths["scope"] != ALL) & ~lengths["repeats"]]
    domain = domain.sort_values(["temperature", "scope", "name", "run"], ascending=[True, False, True, True])
    domain_cells = [
        [f"{row['temperature']:g}", row["label"], row["run"], with_interval(row, "accepted_length")]
        for _, row in domain.iterrows()
    ]
    heads = ["T", "run", "prompts", "accepted length (with bonus)", "accepted (without bonus)", "drafted share"]
    caption = f"All prompts. Bands: {METHOD}. {figures.HOLLOW}"
    return [
        {"title": "Accepted length", "table": table(heads, length_cells, left=2), "note": f"In brackets: {METHOD}."},
        {
            "title": "Against each other",
            "table": table(["T", "run", "baseline", "ratio", "difference", "beyond the interval"], pair_cells, left=3),
            "note": "Each resample draws the same prompts for both; 'yes': the difference's interval leaves out 0.",
        },
        {"title": "Conditional acceptance by run", "image": picture, "caption": caption},
        {
            "title": "By domain and benchmark",
            "table": table(["T", "prompts of", "run", heads[3]], domain_cells, left=3),
        },
    ]


def _facts(runs: Sequence[Run]) -> list[dict]:
    return [{"title": f"What was measured: {run.name}", "table": fact_table(run)} for run in runs]


def _print(lengths: pd.DataFrame, pairs: pd.DataFrame, notes: Sequence[str], costs: pd.DataFrame, page: Path) -> None:
    terminal = console()
    grid = Table(
        title="accepted length (with bonus)",
        title_justify="left",
        caption=METHOD,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    baselines = list(dict.fromkeys(pairs["run"]))
    if len(baselines) > MOST:
        baselines, notes = [], [*notes, f"ratios of {len(baselines)} runs to each other: in the page and in pairs.csv"]
    for heading in ("T", "run", "accepted length", *(f"over {name}" for name in baselines)):
        grid.add_column(heading, justify="left" if heading == "run" else "right")
    for _, row in lengths[lengths["scope"] == ALL].iterrows():
        against = pairs[(pairs["temperature"] == row["temperature"]) & (pairs["run"] == row["run"])].set_index(
            "baseline"
        )
        cells = [with_interval(against.loc[name], "ratio") if name in against.index else "" for name in baselines]
        grid.add_row(f"{row['temperature']:g}", row["run"], with_interval(row, "accepted_length"), *cells)
    terminal.print(grid)
    if cost_section(costs):
        cost_grid = Table(title="what the drafters cost", title_justify="left", box=box.SIMPLE_HEAD)
        for heading in HEADS:
            cost_grid.add_column(heading, justify="left" if heading == "run" else "right")
        for cells in cost_cells(costs):
            cost_grid.add_row(*cells)
        terminal.print(cost_grid)
    for note in notes:
        terminal.print(note, soft_wrap=True, highlight=False, markup=False)
    terminal.print(f"comparison: {page}", soft_wrap=True, highlight=False, markup=False)
