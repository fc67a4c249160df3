"""The page of a serving experiment: Figures 7 and 8 of the paper with the gains in numbers, or bursts against lags.

    figures/*.png  tables/*.csv  report.html          in the folder of the experiment

Measured and simulated cells make the same page; what they are stands on it. It computes nothing itself.

    write_serving(rows, Path("outputs/load"), About("simulated", "…", {"table": "staircase"}))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftlab.report import serving_figures as figures
from draftlab.report.html import fact, write_csv
from draftlab.report.serving_tables import (
    find_reference,
    speed_anchors,
    speed_gains,
    throughput_anchors,
    throughput_gains,
    with_lines,
)
from draftlab.report.style import save
from draftlab.report.template import image, table, write_page

PAPER = (  # method 6: V4-Flash and V4-Pro in production, DSpark (gamma 5) with its scheduler over MTP-1
    ("tokens/s a user at equal throughput", "+60 to +85 %", "+57 to +78 %"),
    ("throughput at a speed a user must get", "+51 % at 80 tokens/s", "+52 % at 35 tokens/s"),
    ("verified tokens a request", "4 to 6 below 200 requests", "4 to 6 below 150 requests"),
)
SPEED_REGRET, CHOICE_REGRET = (
    ("speed_regret", "speed a user lost"),
    ("choice_regret", "lost by the choice of each step"),
)


@dataclass(frozen=True)
class About:
    """What a page is about: how the cells came about (``measured``, ``simulated``), a sentence on it, and its settings."""

    how: str
    text: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None


def write_serving(
    rows: pd.DataFrame,
    out: Path,
    about: About,
    reference: str | None = None,
    anchors: Sequence[float] | None = None,
) -> Path:
    """Write the page of Figures 7 and 8 from a row a cell (see :mod:`draftlab.report.serving_tables`); return its path.

    Args:
        reference: the line that gains are over; None: MTP-1, else no drafting, else the first.
        anchors: speeds that every user must get; None: parts of the reference's highest.

    Raises:
        ValueError: a missing column, or a reference that is not there.
    """
    rows = with_lines(rows)
    reference = find_reference(rows, reference)
    anchors = speed_anchors(rows, reference) if anchors is None else sorted(map(float, anchors))
    at_speed = throughput_gains(rows, reference, anchors)
    at_rate = speed_gains(rows, reference, throughput_anchors(rows, reference))
    for name, frame in (("cells", rows), ("throughput_gain", at_speed), ("speed_gain", at_rate)):
        write_csv(frame, out / "tables" / f"{name}.csv")
    pictures = {"pareto": figures.pareto(rows, anchors), "load": figures.load(rows)}
    images = {name: image(save(figure, out / "figures" / f"{name}.png")) for name, figure in pictures.items()}
    bars = " Bars: lowest and highest." if "throughput_low" in rows else ""
    sections = [
        {
            "title": f"Throughput against speed, {about.how} (Figure 7 of the paper)",
            "text": "Every mark is a load, the lightest at the right. Up and to the right is better.",
            "image": images["pareto"],
            "caption": f"Dotted: the speeds of the next table.{bars}",
        },
        _gain_section(at_speed, "speed", reference, "Throughput at a speed that every user gets on the mean"),
        _gain_section(at_rate, "throughput", reference, "Speed of a user at equal throughput"),
        {"title": "What the paper reports", **_paper()},
        {
            "title": f"Throughput and budget against load, {about.how} (Figure 8 of the paper)",
            "image": images["load"],
            "caption": f"Budget: tokens that the target scores for a request and step, the anchor included.{bars}",
        },
        {"title": "Cells", "table": _cells(rows)},
    ]
    return _page(out, f"Serving, {about.how}", about, sections, _cards(at_speed, at_rate, reference))


def write_bursts(rows: pd.DataFrame, sentences: Sequence[str], out: Path, about: About) -> Path:
    """Write the page of bursts against lags from a regret table and what follows from it in words; return its path."""
    write_csv(rows, out / "tables" / "regret.csv")
    picture = image(save(figures.regret(rows, [SPEED_REGRET, CHOICE_REGRET]), out / "figures" / "regret.png"))
    heads = ["scheduler", "lag", "burstiness", "tokens/s a user", "concurrency", SPEED_REGRET[1], CHOICE_REGRET[1]]
    cells = [
        [
            row["scheduler"].replace("_", " "),
            "–" if np.isnan(row["lag"]) else f"{row['lag']:g}",
            f"{row['burstiness']:g}",
            f"{row['user_speed_mean']:.1f}",
            f"{row['concurrency']:.1f}",
            *(
                f"{row[name]:.1%} [{row[name + '_low']:.1%}, {row[name + '_high']:.1%}]"
                for name, _ in (SPEED_REGRET, CHOICE_REGRET)
            ),
        ]
        for row in rows.sort_values(["lag", "burstiness"], na_position="first").to_dict("records")
    ]
    sections = [
        {
            "title": "What stale budgets lose under bursty traffic",
            "text": " ".join(sentences),
            "image": picture,
            "caption": "Against an oracle that takes the best number of tokens of every step by that step's own survivals "
            "(not lossless, so out of reach). Left: mean tokens/s a user, the same requests served. Right: of the tokens that "
            "the oracle would have committed in the time of the steps made, the share lost. Mean over seeds.",
        },
        {
            "title": "Numbers",
            "table": table(heads, cells),
            "note": "In brackets: lowest and highest of the seeds. Early stop is Algorithm 1 on current survivals.",
        },
    ]
    return _page(out, f"Bursts against stale budgets, {about.how}", about, sections, [])


def _page(out: Path, title: str, about: About, sections: list[dict], cards: list[dict]) -> Path:
    settings = table(["setting", "value"], [[key, fact(value)] for key, value in about.settings.items()], left=2)
    details = [{"title": "Command", "text": about.command, "open": True}] if about.command else []
    return write_page(
        out / "report.html",
        title=title,
        subtitle=about.text,
        cards=cards,
        warnings=[],
        sections=[*sections, {"title": "Settings", "table": settings}],
        details=details,
    )


def _gain_section(gains: pd.DataFrame, anchor: str, reference: str, title: str) -> dict:
    """A row a line, two columns an anchor: what it reaches there, and how much more than the reference that is."""
    value = next(name for name in ("throughput", "speed") if name != anchor)
    anchors, unit = gains[anchor].unique(), "tokens/s a user" if anchor == "speed" else "tokens/s"
    cells = []
    for line, part in gains.groupby("line", sort=False):
        by = part.set_index(anchor)
        cells.append(
            [line, *(text for at in anchors for text in (_number(by.loc[at, value]), _gain(by.loc[at, "gain"])))]
        )
    heads = ["", *(text for at in anchors for text in (f"at {at:g} {unit}", "gain"))]
    note = f"{value} in tokens/s; gain over {reference}; linear between loads; –: not reached."
    return {"title": title, "table": table(heads, cells), "note": note}


def _paper() -> dict:
    return {
        "text": "Other machines, targets and traffic than here; the signs and the shape are what can be compared.",
        "table": table(["DSpark over MTP-1", "V4-Flash", "V4-Pro"], [list(row) for row in PAPER], left=3),
    }


def _cells(rows: pd.DataFrame) -> dict:
    columns = {
        "concurrency": "{:.1f}",
        "throughput": "{:,.1f}",
        "user_speed_mean": "{:.2f}",
        "user_speed_p5": "{:.2f}",
        "budget": "{:.2f}",
        "accepted_length": "{:.2f}",
        "wasted": "{:.1%}",
        "draft_share": "{:.1%}",
        "scheduling_share": "{:.2%}",
    }
    shown = {name: form for name, form in columns.items() if name in rows}
    cells = [
        [row["line"], *("–" if pd.isna(row[name]) else form.format(row[name]) for name, form in shown.items())]
        for row in rows.to_dict("records")
    ]
    return table(["", *(name.replace("_", " ") for name in shown)], cells)


def _cards(at_speed: pd.DataFrame, at_rate: pd.DataFrame, reference: str) -> list[dict[str, str]]:
    """The largest gain at the middle anchor of each table."""
    cards = []
    for gains, anchor, what in (
        (at_speed, "speed", "throughput at {:g} tokens/s a user"),
        (at_rate, "throughput", "tokens/s a user at a throughput of {:g}"),
    ):
        anchors = gains[anchor].unique()
        middle = anchors[len(anchors) // 2]
        part = gains[(gains[anchor] == middle) & gains["gain"].notna()]
        if len(part):
            best = part.loc[part["gain"].idxmax()]
            label = f"{what.format(middle)}: {best['line']} over {reference}"
            cards.append({"value": _gain(best["gain"]), "label": label})
    return cards


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:,.1f}"


def _gain(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:+.0%}"
