"""The numbers of an evaluation: accepted length, drafted share and conditional acceptance, each with its interval.

    accepted_length          Σ committed / Σ rounds           bonus or corrected token included
    accepted                 Σ accepted / Σ rounds            without it
    drafted_share            Σ accepted / Σ committed         share of the written tokens that the drafter wrote
    conditional_acceptance_k rounds with 1..k accepted / rounds with 1..k-1 accepted and k proposed

Every quantity is given for all prompts, by domain and by benchmark, at each temperature. It knows nothing of pictures.

    >>> length_table(read_run("outputs/demo").rounds)   # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from draftlab.report.bootstrap import METHOD, Estimate, ratio

ALL, DOMAIN, BENCHMARK = "all", "domain", "benchmark"
PROMPT = ["benchmark", "prompt_id"]
DOMAIN_ORDER = {"math": 0, "code": 1, "chat": 2}


def domain_order(name: str) -> tuple[int, str]:
    """Sort key: math, code and chat as in the paper, then the rest by name."""
    return (DOMAIN_ORDER.get(name, len(DOMAIN_ORDER)), name)


def groups(rounds: pd.DataFrame) -> Iterator[tuple[dict[str, object], pd.DataFrame]]:
    """Yield (keys, rounds) for every temperature: all prompts, then each domain, then each benchmark.

    ``repeats`` marks a benchmark that is the whole of its domain; tables that are read by people leave it out, as the
    domain's ``label`` names it.
    """
    for temperature, part in rounds.groupby("temperature", sort=True):
        keys = {"temperature": float(temperature), "scope": ALL, "name": "all prompts", "label": "all prompts"}
        yield {**keys, "repeats": False}, part
        pairs = part[["domain", "benchmark"]].drop_duplicates()
        alone = {
            rows["benchmark"].iloc[0]: domain
            for domain, rows in pairs.groupby("domain")
            if len(rows) == 1 and (pairs["benchmark"] == rows["benchmark"].iloc[0]).sum() == 1
        }
        of_domain = {domain: benchmark for benchmark, domain in alone.items()}
        for name in sorted(part["domain"].unique(), key=domain_order):
            label = f"{name} ({of_domain[name]})" if name in of_domain else name
            keys = {**keys, "scope": DOMAIN, "name": name, "label": label}
            yield {**keys, "repeats": False}, part[part["domain"] == name]
        for name in sorted(part["benchmark"].unique()):
            keys = {**keys, "scope": BENCHMARK, "name": name, "label": f"benchmark {name}"}
            yield {**keys, "repeats": name in alone}, part[part["benchmark"] == name]


def length_sums(rounds: pd.DataFrame) -> pd.DataFrame:
    """Sums by prompt: rounds, accepted, committed; indexed by (benchmark, prompt_id)."""
    return (
        rounds.assign(rounds=1).groupby(PROMPT, sort=True)[["rounds", "accepted", "committed"]].sum().astype(np.float64)
    )


def position_sums(rounds: pd.DataFrame, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums by prompt [P, G] of rounds in which slot k was accepted, and of rounds in which it was tested at all.

    Slot k (from 1) is tested in a round if 1..k-1 were accepted and k was proposed.
    """
    slots = np.arange(1, block_size + 1)
    proposed, accepted = rounds["proposed"].to_numpy()[:, None], rounds["accepted"].to_numpy()[:, None]
    tested = (accepted >= slots - 1) & (proposed >= slots)  # [rounds, G]
    passed = tested & (accepted >= slots)
    prompt = rounds.groupby(PROMPT, sort=True).ngroup().to_numpy()
    sums = np.zeros((2, int(prompt.max()) + 1, block_size))
    np.add.at(sums[0], prompt, passed)
    np.add.at(sums[1], prompt, tested)
    return sums[0], sums[1]


def length_table(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row a group (see :func:`groups`): prompts, rounds and the three ratios, each as value, _low and _high."""
    rows = []
    for keys, part in groups(rounds):
        sums = length_sums(part)
        numerator = sums[["committed", "accepted", "accepted"]].to_numpy()
        weight = sums[["rounds", "rounds", "committed"]].to_numpy()
        row = {**keys, "prompts": len(sums), "rounds": len(part), "tokens": int(part["committed"].sum())}
        estimate = ratio(numerator, weight)
        for column, name in enumerate(("accepted_length", "accepted", "drafted_share")):
            row |= _cells(name, estimate, column)
        rows.append(row)
    return pd.DataFrame(rows)


def position_table(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row a group and slot (from 1): tested and accepted rounds, conditional_acceptance with _low and _high.

    A slot that was never tested is NaN with count 0.
    """
    rows = []
    block_size = max(int(rounds["proposed"].max()), 1)  # a schedule may have verified nothing at all
    for keys, part in groups(rounds):
        estimate = ratio(*position_sums(part, block_size))
        for column in range(block_size):
            row = {**keys, "position": column + 1, "tested": int(estimate.weight[column])}
            row |= {"accepted": int(estimate.numerator[column])} | _cells("conditional_acceptance", estimate, column)
            rows.append(row)
    return pd.DataFrame(rows)


def _cells(name: str, estimate: Estimate, column: int) -> dict[str, float]:
    return {
        name: float(estimate.value[column]),
        f"{name}_low": float(estimate.low[column]),
        f"{name}_high": float(estimate.high[column]),
    }


def with_interval(row: pd.Series, name: str, digits: int = 2, percent: bool = False) -> str:
    """'1.62 [1.55, 1.70]' from the value, _low and _high columns of a row; a missing value is a dash."""
    scale, unit, digits = (100.0, " %", digits - 1) if percent else (1.0, "", digits)
    value, low, high = (row[key] * scale for key in (name, f"{name}_low", f"{name}_high"))
    if np.isnan(value):
        return "–"
    interval = "" if np.isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value:.{digits}f}{unit}{interval}"


def console() -> Console:
    """A console that is wide enough for the tables, also where the output is a file."""
    width = Console().width
    return Console(width=max(width, 112))


def console_table(lengths: pd.DataFrame, title: str) -> Table:
    """The length table for a terminal."""
    table = Table(title=title, caption=METHOD, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    for heading, justify in (
        ("T", "right"),
        ("group", "left"),
        ("prompts", "right"),
        ("rounds", "right"),
        ("accepted length\n(with bonus)", "right"),
        ("accepted\n(without bonus)", "right"),
        ("drafted share\nof tokens", "right"),
    ):
        table.add_column(heading, justify=justify, no_wrap=True)
    for _, row in lengths[~lengths["repeats"]].iterrows():
        table.add_row(
            f"{row['temperature']:g}",
            row["label"],
            f"{row['prompts']:,}",
            f"{row['rounds']:,}",
            with_interval(row, "accepted_length"),
            with_interval(row, "accepted"),
            with_interval(row, "drafted_share", percent=True),
            style="bold" if row["scope"] == ALL else None,
        )
    return table
