"""A progress bar with a rate on a terminal, and a plain line now and then where there is none (a log file, CI).

The module knows nothing of what is counted.

    with Progress("answers", total=100, unit="tokens") as progress:
        progress.advance(16, 2400)
"""

from __future__ import annotations

import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

LINE_SECONDS = 30.0


class Progress:
    """Counts items of ``total`` (``done`` of them before this run) and a rate of ``unit`` per second."""

    def __init__(self, label: str, total: int, done: int = 0, unit: str = "tokens") -> None:
        self.label, self.total, self.done, self.unit = label, total, done, unit
        self.amount = self.new = 0
        self.console = Console()
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> Progress:
        self._began = self._said = time.monotonic()
        if self.done:
            print(f"{self.label}: going on at {self.done:,} of {self.total:,}", flush=True)
        self._bar.start()
        self._task = self._bar.add_task(self.label, total=self.total, completed=self.done, rate="")
        return self

    def __exit__(self, *exception) -> None:
        self._bar.stop()
        if not self.console.is_terminal:
            self._say()

    def advance(self, items: int, amount: int = 0) -> None:
        """Count ``items`` more items that together made ``amount`` units."""
        self.done += items
        self.new += items
        self.amount += amount
        self._bar.update(self._task, completed=self.done, rate=self._rate())
        if not self.console.is_terminal and time.monotonic() - self._said > LINE_SECONDS:
            self._said = time.monotonic()
            self._say()

    def _rate(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        return f"{self.amount / seconds:,.0f} {self.unit}/s" if self.amount else ""

    def _say(self) -> None:
        print(
            "  ".join(filter(None, (f"{self.label}: {self.done}/{self.total}", self._rate(), self._left()))), flush=True
        )

    def _left(self) -> str:
        if not self.new or self.done >= self.total:
            return ""
        seconds = (time.monotonic() - self._began) * (self.total - self.done) / self.new
        return f"{timedelta(seconds=round(seconds))} left"
