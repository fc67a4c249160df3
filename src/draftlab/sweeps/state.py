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
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from draftlab.data.files import read_json, write_json
from draftlab.sweeps.plan import Job, Plan

STATES = WAITING, RUNNING, FINISHED, FAILED, STOPPED = "waiting", "running", "finished", "failed", "stopped"
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
        earlier = read_states(self.path) if self.path.exists() else {}
        self.cells = {job.cell.name: _found(job, earlier.pop(job.cell.name, None)) for job in plan.jobs}
        self.others = {name: asdict(state) for name, state in earlier.items()}

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


def _found(job: Job, earlier: CellState | None) -> CellState:
    """What an earlier runner left of a cell: its marker, or ``earlier`` of the sweep's file."""
    marker = job.folder / MARKER
    if marker.exists():
        state = read_marker(marker)
        _check_same(job, state.arguments, "finished")
        return replace(state, name=job.cell.name, values=dict(job.cell.values))
    fresh = CellState(job.cell.name, dict(job.cell.values), list(job.arguments))
    if not job.folder.exists() or earlier is None:
        return fresh
    if earlier.state != WAITING:  # it may have checkpoints, which only the same run can go on from
        _check_same(job, earlier.arguments, "started")
    return replace(fresh, seconds=earlier.seconds)


def read_states(path: Path) -> dict[str, CellState]:
    """The cells of a ``sweep.json`` by name.

    Raises:
        ValueError: it is not what a runner writes.
    """
    content = read_json(path)
    try:
        cells = content.get("cells") if isinstance(content, dict) else None
        if not isinstance(cells, dict):
            raise ValueError("expected an object whose cells are an object")
        return {name: _checked_state(f"cell {name}", found) for name, found in cells.items()}
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {error}; give another --folder, or remove that file to go on with the same arguments: what "
            f"has finished is known from each cell's {MARKER}"
        ) from None


def read_marker(path: Path) -> CellState:
    """The state in a ``finished.json``.

    Raises:
        ValueError: it is not what a runner writes.
    """
    found = read_json(path)
    try:
        state = _checked_state("it", found)
        if state.state != FINISHED:
            raise ValueError(f"its state is {state.state}, not {FINISHED}")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; remove that file to run the cell again") from None
    return state


def _checked_state(what: str, found: Any) -> CellState:
    """``found`` of a JSON file as a state; every field is checked, since a runner counts with them."""
    keys = [known.name for known in fields(CellState)]
    if not isinstance(found, dict) or set(found) != set(keys):
        got = ", ".join(found) or "none" if isinstance(found, dict) else repr(found)
        raise ValueError(f"{what} must have the keys {', '.join(keys)}, got {got}")
    arguments, state, seconds = found["arguments"], found["state"], found["seconds"]
    expected = {
        "values": (isinstance(found["values"], dict), "an object"),
        "arguments": (
            isinstance(arguments, list) and all(isinstance(word, str) for word in arguments),
            "a list of words",
        ),
        "state": (state in STATES, f"one of {', '.join(STATES)}"),
        "exit_code": (found["exit_code"] is None or _is_number(found["exit_code"]), "a number or null"),
        "seconds": (_is_number(seconds) and seconds >= 0, "a number from 0 on"),
        "metric": (found["metric"] is None or _is_number(found["metric"]), "a number or null"),
    }
    for key, (right, kind) in expected.items():
        if not right:
            raise ValueError(f"{key} of {what} must be {kind}, got {found[key]!r}")
    return CellState(**found)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


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
