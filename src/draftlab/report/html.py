"""The report of one run: tables as CSV, figures as PNG, and one self-contained report.html in the run folder.

The page says what the numbers mean (case 24): bonus counted or not (both are given), temperature, thinking mode,
prompts, stopped and truncated counts, interval method, target and drafter, configuration and command. It computes
nothing itself.

    python src/report.py runs=[outputs/demo]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftlab.report import figures
from draftlab.report.bootstrap import METHOD
from draftlab.report.reliability import calibration_error, reliability_table
from draftlab.report.run import Run, read_run
from draftlab.report.style import save
from draftlab.report.tables import ALL, console, console_table, length_table, position_table, with_interval
from draftlab.report.template import image, table, write_page

LABELS = {
    "target": "target",
    "drafter": "drafter",
    "head": "head",
    "gamma": "block size (gamma)",
    "temperatures": "temperatures",
    "top_k": "top-k",
    "top_p": "top-p",
    "thinking": "thinking mode",
    "max_new_tokens": "new tokens at most",
    "batch_size": "batch size",
    "seed": "seed",
}


def write_report(run_dir: str | Path, show: bool = True) -> Path:
    """Write tables/*.csv, figures/*.png and report.html into an evaluated run folder; return the page's path.

    ``show`` prints the table on the terminal as well. Raises ValueError where the folder was not evaluated.
    """
    run = read_run(run_dir)
    lengths, positions, bins = length_table(run.rounds), position_table(run.rounds), reliability_table(run.rounds)
    for name, frame in (("accepted_length", lengths), ("conditional_acceptance", positions), ("reliability", bins)):
        write_csv(frame, run.folder / "tables" / f"{name}.csv")
    pictures = {
        "conditional_acceptance": figures.conditional_acceptance(positions),
        "accepted_length": figures.length_histogram(run.rounds),
        "reliability": figures.reliability(bins) if len(bins) else None,
        "training": figures.training_curves(run.metrics) if run.metrics is not None else None,
    }
    images = {
        name: image(save(figure, run.folder / "figures" / f"{name}.png")) for name, figure in pictures.items() if figure
    }
    page = write_page(
        run.folder / "report.html",
        title=f"Speculative decoding report: {run.name}",
        subtitle="How many tokens of the target one round of drafting and verifying commits, and where drafts fail.",
        cards=_cards(run, lengths),
        warnings=_warnings(run),
        sections=[*_number_sections(run, lengths, positions), *_picture_sections(images, bins)],
        details=details(run),
    )
    if show:
        terminal = console()
        terminal.print(console_table(lengths, f"{run.name}: accepted length"))
        for row in run.speed.dropna(subset="ratio").to_dict("records") if len(run.speed) else []:
            text = f"T={row['temperature']:g}: {row['ratio']:.2f} times the tokens/s of plain decoding, in the same run"
            terminal.print(text, highlight=False)
        terminal.print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)
    return page


def write_reports(run_dirs: Iterable[str | Path]) -> list[Path]:
    """Write the report of every run that can be read, name the others with the reason, and return the pages.

    Raises ValueError with all reasons where no run can be read.
    """
    pages, reasons = [], []
    for run_dir in run_dirs:
        try:
            pages.append(write_report(run_dir))
        except ValueError as error:
            reasons.append(str(error))
    if not pages:
        raise ValueError("; ".join(reasons) or "runs: expected at least one run folder, got none")
    for reason in reasons:
        console().print(f"left out: {reason}", soft_wrap=True, highlight=False, markup=False)
    return pages


def write_csv(frame: pd.DataFrame, path: Path) -> Path:
    """Write a table, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    frame.to_csv(partial, index=False, float_format="%.6g")
    partial.replace(path)
    return path


def fact_table(run: Run) -> dict:
    """What the numbers are about: settings, interval method and how accepted length is counted."""
    known = [(label, run.settings[key]) for key, label in LABELS.items() if key in run.settings]
    others = [
        (key.replace("_", " "), value)
        for key, value in run.settings.items()
        if key not in LABELS | {"command": "", "bonus": ""}
    ]
    rows = [["bonus token", "counted in 'accepted length', not counted in 'accepted'; both are shown"]]
    rows += [[label, fact(value)] for label, value in (*known, *others)]
    rows.append(["intervals", METHOD])
    return table(["setting", "value"], rows, left=2)


def fact(value: Any) -> str:
    """A setting as text: booleans as on/off, a mapping as 'key value' pairs, lists joined."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "not set"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {fact(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(fact, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def details(run: Run) -> list[dict]:
    """Collapsible texts: the commands and the composed configuration."""
    texts = [{"title": f"Command ({run.name})", "text": "\n".join(run.commands), "open": True}] if run.commands else []
    if run.config:
        texts.append({"title": f"Configuration ({run.name})", "text": run.config, "open": False})
    return texts


def length_rows(lengths: pd.DataFrame) -> dict:
    """The length table of the page."""
    lengths = lengths[~lengths["repeats"]]
    rows = [
        [
            f"{row['temperature']:g}",
            row["label"],
            f"{row['prompts']:,}",
            f"{row['rounds']:,}",
            with_interval(row, "accepted_length"),
            with_interval(row, "accepted"),
            with_interval(row, "drafted_share", percent=True),
        ]
        for _, row in lengths.iterrows()
    ]
    headings = ["T", "prompts of", "prompts", "rounds", "accepted length (with bonus)", "accepted (without bonus)"]
    strong = tuple(np.flatnonzero(lengths["scope"] == ALL).tolist())
    return table([*headings, "drafted share of tokens"], rows, left=2, strong=strong)


def position_rows(positions: pd.DataFrame) -> dict:
    """Conditional acceptance, a column a position; under each value the rounds that it counts."""
    last = int(positions["position"].max())
    rows, strong = [], []
    shown = positions[~positions["repeats"]]
    for (temperature, scope, label), part in shown.groupby(["temperature", "scope", "label"], sort=False):
        part = part.sort_values("position")
        if scope == ALL:
            strong.append(len(rows))
        rows.append(
            [
                f"{temperature:g}",
                label,
                *(with_interval(row, "conditional_acceptance", 1, percent=True) for _, row in part.iterrows()),
            ]
        )
        rows.append(
            [
                "",
                "accepted / tested rounds",
                *(f"{a:,} / {t:,}" for a, t in zip(part["accepted"], part["tested"], strict=True)),
            ]
        )
    return table(
        ["T", "prompts of", *(f"position {k}" for k in range(1, last + 1))], rows, left=2, strong=tuple(strong)
    )


def count_rows(counts: pd.DataFrame) -> dict:
    """Prompts by outcome: ended by a stop token, or truncated at the longest answer."""
    columns = ["temperature", "benchmark", "domain", "prompts", "stopped", "truncated"]
    rows = [[fact(row.get(column, "–")) for column in columns] for row in counts.to_dict("records")]
    return table(["T", "benchmark", "domain", "prompts", "stopped", "truncated"], rows, left=3)


def _cards(run: Run, lengths: pd.DataFrame) -> list[dict[str, str]]:
    cards = []
    for _, row in lengths[lengths["scope"] == ALL].iterrows():
        interval = (
            "" if np.isnan(row["accepted_length_low"]) else with_interval(row, "accepted_length").split(" ", 1)[1]
        )
        cards.append(
            {
                "value": f"{row['accepted_length']:.2f}",
                "label": f"accepted length at T = {row['temperature']:g} {interval}",
            }
        )
    if "ratio" in run.speed.columns:
        cards += [
            {
                "value": f"{row['ratio']:.2f}×",
                "label": f"tokens/s over plain decoding at T = {row['temperature']:g}, same run",
            }
            for row in run.speed.to_dict("records")
            if not np.isnan(row["ratio"])
        ]
    return cards


def _warnings(run: Run) -> list[str]:
    warnings = []
    if {"prompts", "truncated"} <= set(run.counts.columns) and run.counts["truncated"].sum() > run.counts[
        "prompts"
    ].sum() / 2:
        limit = run.settings.get("max_new_tokens", "the limit")
        warnings.append(
            f"More than half of the answers were truncated at {limit} tokens: ends of answers are under-represented."
        )
    if run.rounds[["benchmark", "prompt_id"]].drop_duplicates().shape[0] < 30:
        warnings.append("Fewer than 30 prompts: the intervals are wide and themselves uncertain.")
    return warnings


def _number_sections(run: Run, lengths: pd.DataFrame, positions: pd.DataFrame) -> list[dict]:
    sections = [
        {
            "title": "Accepted length",
            "text": "Accepted length is the tokens committed in a round, the target's own corrected or bonus token "
            "included; 'accepted' leaves that token out. Drafted share is the part of all committed tokens that the "
            "drafter wrote.",
            "table": length_rows(lengths),
            "note": f"In brackets: {METHOD}.",
        },
        {"title": "What was measured", "table": fact_table(run)},
    ]
    if len(run.counts):
        sections.append({"title": "Prompts and how their answers ended", "table": count_rows(run.counts)})
    if len(run.speed):
        headings = [column.replace("_", " ").replace(" per ", "/") for column in run.speed.columns]
        rows = [[fact(value) for value in row] for row in run.speed.round(3).itertuples(index=False)]
        note = "Plain decoding of the same prompts, in the same run, is what the ratio compares with."
        sections.append({"title": "Wall clock", "table": table(headings, rows, left=1), "note": note})
    sections.append(
        {
            "title": "Conditional acceptance by position",
            "text": "Of the rounds in which positions 1 to k-1 were accepted and k was proposed, the share in which k "
            "was accepted too.",
            "table": position_rows(positions),
        }
    )
    return sections


def _picture_sections(images: Mapping[str, str], bins: pd.DataFrame) -> list[dict]:
    captions = {
        "conditional_acceptance": (
            "Where drafts fail",
            f"Bands: {METHOD}. {figures.HOLLOW} A line that falls to the right shows suffix decay.",
        ),
        "accepted_length": (
            "Tokens a round",
            "Bonus or corrected token included; 1 means that the whole draft was rejected.",
        ),
        "reliability": (
            "Can the confidence be trusted?",
            "Tested positions in ten bins of confidence, as the drafter gave it; the area of a dot is its share of "
            f"them. Expected calibration error: {_errors(bins)}.",
        ),
        "training": (
            "Training",
            "Faint: every logged step; strong: moving mean; dots: held-out answers at validation.",
        ),
    }
    return [
        {"title": title, "image": images[name], "caption": caption}
        for name, (title, caption) in captions.items()
        if name in images
    ]


def _errors(bins: pd.DataFrame) -> str:
    return ", ".join(f"{calibration_error(part):.1%} at T = {value:g}" for value, part in bins.groupby("temperature"))
