"""The engine table as Markdown, and which of its cells fail.

A cell passes if the engine loads what the export says it runs (and nothing else), writes what it writes without the drafter but
for ties, and, with the target's own weights, accepts what our loop accepts. The module reads results only.

    Path("outputs/engines.md").write_text(page(results))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftlab.data.files import read_object
from draftlab.engines.compare import TOLERANCE, agrees
from draftlab.export.gguf import OUTTYPES

FOLDER = "engines"  # of a run


def read_results(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """Every result in the folders of ``runs``, in their order; of one run, by weights and length of drafts."""
    found = []
    for run in runs:
        cells = [read_object(path) for path in (run / FOLDER).glob("*.json")]
        found += sorted(cells, key=lambda cell: (cell["weights"], cell["draft_weights"], cell["drafted"]))
    return found


def faults(cell: Mapping[str, Any]) -> list[str]:
    """What is wrong with a cell; empty if it passes."""
    if not cell["loads"]:
        return (
            [] if cell["objections"] else [f"the engine does not take what the export says it runs: {cell['message']}"]
        )
    found = []
    if cell["objections"]:
        found.append(f"the engine takes what the export says it does not run ({'; '.join(cell['objections'])})")
    if cell["greedy"]["different"]:
        found.append(f"{cell['greedy']['different']} answers differ from plain decoding by more than a tie")
    ours, theirs = cell["ours"]["accepted_length"], cell["theirs"]["accepted_length"]
    if cell["weights"] in OUTTYPES and not agrees(ours, theirs):
        found.append(
            f"accepted length {_number(theirs)} of the engine, {_number(ours)} of ours: more than {TOLERANCE:.0%} apart"
        )
    return found


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The tables: what runs; and by domain, what was gained."""
    if not results:
        return "No engine was tested yet.\n"
    rows = [
        "| run | engine | weights: target, drafter | drafter | head | drafted | loads | greedy-equal | accepted length: engine, "
        "ours | tokens/s with, without | speed-up |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *map(_row, results),
    ]
    parts = ["\n".join(rows), _notes(results)]
    measured = [cell for cell in results if cell["loads"]]
    if measured:
        parts += [_domains(measured), _times(measured)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _row(cell: Mapping[str, Any]) -> str:
    name = f"{cell['engine']} {cell['version']}" if cell["loads"] else cell["engine"]
    weights = f"{cell['weights']}, {cell['draft_weights']}"
    start = f"| {cell['run']} | {name} | {weights} | {cell['family']} | {cell['head']} | {cell['drafted']} |"
    if not cell["loads"]:
        return f"{start} no: “{cell['message']}” | | | | |"
    greedy, speed = cell["greedy"], cell["tokens_per_s"]["all"]
    total = sum(greedy[name] for name in ("equal", "tie", "different"))
    equal = f"{greedy['equal']} of {total}" + "".join(
        f", {count} {words}"
        for count, words in ((greedy["tie"], "part at a tie"), (greedy["different"], "**differ**"))
        if count
    )
    lengths = f"{_number(cell['theirs']['accepted_length'])}, {_number(cell['ours']['accepted_length'])}"
    return f"{start} yes | {equal} | {lengths} | {speed['drafted']:.1f}, {speed['plain']:.1f} | {speed['ratio']:.2f} |"


def _notes(results: Sequence[Mapping[str, Any]]) -> str:
    """Arguments that a server needed, the ties, each with the lead of the better token, and the faults."""
    lines = []
    for cell in results:
        name = _name(cell)
        if cell.get("without_arguments"):
            words = " ".join(cell["server_arguments"])
            lines.append(f"- {name}: served with `{words}`; without, {cell['without_arguments']}.")
        parted = cell["greedy"]["parted"] if cell["loads"] else []
        lines += [
            f"- {name}: {each['verdict']} at token {each['position']}, where the best logit leads by {each['gap']:.2g}."
            for each in parted
        ]
        lines += [f"- {name}: **{fault}**." for fault in faults(cell)]
    return "\n".join(lines)


def _domains(results: Sequence[Mapping[str, Any]]) -> str:
    domains = list(dict.fromkeys(name for cell in results for name in cell["prompts"]))
    rows = [
        "Accepted length of the engine and of ours, and speed-up (median over prompts), by domain:",
        "",
        f"| run, weights, drafted | {' | '.join(domains)} |",
        f"|---|{'---|' * len(domains)}",
    ]
    for cell in results:
        cells = [
            f"{_number(cell['theirs']['domains'].get(name))}, {_number(cell['ours']['domains'].get(name))}, "
            f"{cell['tokens_per_s'][name]['ratio']:.2f}"
            if name in cell["prompts"]
            else ""
            for name in domains
        ]
        rows.append(f"| {_name(cell)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _times(results: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        "Where the time goes, in milliseconds (medians over prompts); drafting pays from accepted length (draft + verify) / plain:",
        "",
        "| run, weights, drafted | plain token | draft | verify | pays from | accepted length |",
        "|---|---|---|---|---|---|",
    ]
    for cell in results:
        times = [_number(cell["times_ms"][name]) for name in ("plain", "draft", "verify", "pays_from")]
        length = _number(cell["theirs"]["accepted_length"])
        rows.append(f"| {_name(cell)} | {' | '.join(times)} | {length} |")
    return "\n".join(rows)


def _name(cell: Mapping[str, Any]) -> str:
    return f"{cell['run']}, {cell['weights']}, {cell['draft_weights']}, {cell['drafted']}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
