"""The doctor's page: a table for each kind of finding, then what is missing for what, and whether the quick start will do.

sys.exit(show(examine()))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftlab.doctor.caches import caches, targets
from draftlab.doctor.finding import Finding
from draftlab.doctor.machine import devices, disk
from draftlab.doctor.packages import packages
from draftlab.doctor.tools import logins, tools

MARK = " *"  # behind what the quick start needs
Page = Mapping[str, Sequence[Finding]]


def examine() -> Page:
    """All findings by the title of their table; what cannot be looked at for want of a package is left out."""
    page = {"packages": packages()}
    if any(finding.needed and finding.is_missing for finding in page["packages"]):
        return page
    from draftlab.target.source import cache_dir

    page["machine"] = [*devices(), disk(cache_dir()), disk(Path.cwd() / "outputs")]
    return page | {"caches": caches(), "targets": targets(), "logins": logins(), "tools": tools()}


def show(page: Page, console: Console | None = None) -> int:
    """Print ``page`` and return the exit code: 1 if the quick start lacks something, else 0."""
    console = console or Console()
    for title, findings in page.items():
        if findings:
            console.print(_table(title, findings), "")
    missing = [finding for findings in page.values() for finding in findings if finding.is_missing]
    if missing:
        console.print(_missing_table(missing), "")
    if any(finding.needed for finding in missing):
        console.print("The quick start (make demo) needs what is marked with an asterisk.", highlight=False)
        return 1
    console.print("Nothing that the quick start (make demo) needs is missing.", highlight=False)
    return 0


def _table(title: str, findings: Sequence[Finding]) -> Table:
    table = _empty(title, "", "", "", show_header=False)
    for finding in findings:
        cells = map(Text, (finding.what, finding.found, finding.note))
        table.add_row(*cells, style="yellow" if finding.is_missing else None)
    return table


def _missing_table(findings: Sequence[Finding]) -> Table:
    """One row for all that is missing for the same thing and mended by the same words."""
    table = _empty("missing", "for", "missing", "what to do")
    rows: dict[tuple[str, str], list[str]] = {}
    for finding in sorted(findings, key=lambda one: not one.needed):
        rows.setdefault((finding.lacks, finding.remedy), []).append(f"{finding.what}{MARK if finding.needed else ''}")
    for (lacks, remedy), names in rows.items():
        table.add_row(*map(Text, (lacks, ", ".join(names), remedy)))
    return table


def _empty(title: str, *columns: str, **options: bool) -> Table:
    """A table whose cells are wrapped and never cut, since paths and commands are copied from it."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, **options)
    for column in columns:
        table.add_column(column, overflow="fold", header_style="italic")
    return table
