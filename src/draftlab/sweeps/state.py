"""What is known of the cells of a sweep, in memory and on disk.

    <folder>/sweep.json              every cell: values, state, exit code, seconds, metric; rewritten whole at each change
    <folder>/<cell>/finished.json    written once, when the run has ended well: what makes a cell finished

What a cell has done counts only for the arguments that it was run with. The metric is the last value that the run logged
under its name in ``metrics.csv``, which is also what W&B shows for a run. The module knows nothing of processes.
"""

from __future__ import annotations

import csv
import math
import signal
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from draftlab.data.files import read_json, write_json
from draftlab.sweeps.plan import Job, Plan

WAITING, RUNNING, FINISHED, FAILED, STOPPED = "waiting", "running", "finished", "failed", "stopped"
FILE, MARKER, METRICS = "sweep.json", "finished.json", "metrics.csv"
LAST_LINES = 12  # of the log of a failed run
TAIL_BYTES = 16_000


@dataclass(frozen=True)
class CellState:
    """One cell: ``seconds`` of all its attempts, ``exit_code`` of the last, ``metric`` once it has finished."""

    name: str
    values: dict[str, Any]
    arguments: list[str] = field(default_factory=list)
    state: str = WAITING
    exit_code: int | None = None
    seconds: float = 0.0
    metric: float | None = None


class Ledger:
    """The states of a plan's cells, kept on disk.

    Raises:
        ValueError: a cell was started with other arguments, or a file of an earlier run cannot be read.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.path = plan.folder / FILE
        self.others: dict[str, Any] = read_json(self.path).get("cells", {}) if self.path.exists() else {}
        self.cells = {job.cell.name: self._found(job, self.others.pop(job.cell.name, {})) for job in plan.jobs}

    def of(self, job: Job) -> CellState:
        """The state of one cell."""
        return self.cells[job.cell.name]

    def states(self) -> list[CellState]:
        """All cells of the plan, in its order."""
        return [self.of(job) for job in self.plan.jobs]

    def change(self, job: Job, **changes) -> CellState:
        """Record ``changes`` of a cell, and its marker if it has finished; the new state."""
        if changes.get("state") == FINISHED and self.plan.metric is not None:
            changes["metric"] = read_metric(job.folder / METRICS, self.plan.metric.name)
        state = replace(self.of(job), **changes)
        self.cells[job.cell.name] = state
        if state.state == FINISHED:
            write_json(job.folder / MARKER, asdict(state))
        cells = self.others | {name: asdict(cell) for name, cell in self.cells.items()}
        write_json(self.path, {"sweep": self.plan.name, "cells": cells})
        return state

    def _found(self, job: Job, earlier: dict[str, Any]) -> CellState:
        """What an earlier runner left of a cell."""
        marker = job.folder / MARKER
        if marker.exists():
            state = CellState(**read_json(marker))
            _check_same(job, state.arguments, "finished")
            return state
        if not job.folder.exists() or not earlier:
            return CellState(job.cell.name, dict(job.cell.values), list(job.arguments))
        if earlier["state"] != WAITING:  # it may have checkpoints, which only the same run can go on from
            _check_same(job, earlier["arguments"], "started")
        seconds = earlier["seconds"]
        return CellState(job.cell.name, dict(job.cell.values), list(job.arguments), seconds=seconds)


def _check_same(job: Job, earlier: list[str], what: str) -> None:
    if earlier != list(job.arguments):
        changed = sorted(set(earlier) ^ set(job.arguments)) or ["their order"]
        raise ValueError(
            f"{job.folder} was {what} with other arguments ({', '.join(changed)}); give --folder for a sweep of its own, "
            "or remove that folder to run the cell again"
        )


def read_metric(path: Path, name: str) -> float | None:
    """The last value of column ``name`` in a CSV file; None if there is no such file, column or value, or if it is NaN."""
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        values = [row[name] for row in csv.DictReader(file) if row.get(name)]
    try:
        value = float(values[-1]) if values else math.nan
    except ValueError:
        return None
    return None if math.isnan(value) else value  # what was never counted is no number to compare


def failure_text(code: int, log: Path, start: int) -> str:
    """How a run failed and the last lines that it wrote, from byte ``start`` of its log on."""
    how = f"exit code {code}" if code > 0 else f"ended by {_signal_name(-code)}"
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    shown = [line for line in lines if line.strip()][-LAST_LINES:]
    return f"FAILED ({how}); the others go on. The end of {log}:\n" + "\n".join(f"    {line}" for line in shown)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
