"""Serving experiments: cells of one comparison, measured in turns, each turn kept as soon as it is over.

    for turn in 0 … turns-1:  for cell in the cells, rotated by turn:  serve for ``seconds``

A machine that slows down slows all cells, and no cell always comes first. In a turn all cells get the same prompts in the same
order. The first ``warm_up`` seconds of a turn, while the places fill up, do not count. The module knows nothing of how a cell
is set up.

    steps, requests = run_cells(cells, settings, folder, identity)      # frames with a column ``cell``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from draftlab.data.files import claim, digest, replacing, seal
from draftlab.data.progress import Progress
from draftlab.serving.engine import Engine
from draftlab.serving.load import ClosedLoop
from draftlab.serving.records import Served, Step, frame

STEPS, REQUESTS = "steps.parquet", "requests.parquet"
PARTIAL = "partial"


@dataclass(frozen=True)
class ServeSettings:
    """How long cells are measured.

    Args:
        turns: times that each cell has its turn. seconds: of a turn. warm_up: of its seconds, that do not count.

    Raises:
        ValueError: no turn, or a warm-up that leaves nothing.
    """

    turns: int
    seconds: float
    warm_up: float

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"serve.turns must be at least 1, got {self.turns}")
        if not 0 <= self.warm_up < self.seconds:
            raise ValueError(
                f"serve.warm_up must lie in 0..serve.seconds ({self.seconds:g} s) and leave something, got {self.warm_up:g}"
            )


@dataclass(frozen=True)
class Cell:
    """One point of a comparison: an engine under ``concurrency`` users; ``identity`` says in plain types what it is."""

    name: str
    drafter: str
    scheduler: str
    concurrency: int
    engine: Callable[[int], Engine]  # of a turn's seed
    identity: dict[str, Any]


def run_cells(
    cells: Sequence[Cell],
    prompts: Sequence[tuple[str, Sequence[int]]],
    settings: ServeSettings,
    folder: Path,
    identity: dict[str, Any],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure what is missing of ``cells`` into ``folder``; rows of steps and of requests, with cell and turn.

    Raises:
        ValueError: two cells of one name and concurrency, or a folder that holds an experiment with other settings.
    """
    names = [(cell.name, cell.concurrency) for cell in cells]
    if not cells or len(set(names)) < len(names):
        raise ValueError(f"cells must be one or more with different names and concurrencies, got {names}")
    claim(folder, {**identity, "settings": asdict(settings)}, "a serving experiment", "serve.folder")
    plan = [(turn, cells[(place + turn) % len(cells)]) for turn in range(settings.turns) for place in range(len(cells))]
    paths = {(turn, cell.name, cell.concurrency): _path(folder, cell, turn) for turn, cell in plan}
    done = sum(path.is_file() for path in paths.values())
    with Progress("serve", len(plan), done, unit="tokens") as progress:
        for turn, cell in plan:
            path = paths[turn, cell.name, cell.concurrency]
            if not path.is_file():
                steps, served = _turn(cell, _rotated(prompts, turn), settings, turn)
                _keep(path, cell, turn, steps, served)
                progress.advance(1, sum(step.committed for step in steps))
    tables = [pq.read_table(path).to_pandas() for path in paths.values()]
    rows = pd.concat(tables, ignore_index=True)
    parts = []
    for kind, name, record in (("step", STEPS, Step), ("request", REQUESTS, Served)):
        columns = ["cell", "drafter", "scheduler", "concurrency", "turn", *(field.name for field in fields(record))]
        part = rows.loc[rows["kind"] == kind].reindex(columns=columns).reset_index(drop=True)
        with replacing(folder / name) as file:
            pq.write_table(pa.Table.from_pandas(part, preserve_index=False), file)
        parts.append(part)
    if not (folder / "manifest.json").exists():
        seal(folder, {"identity": {**identity, "settings": asdict(settings)}})
    return parts[0], parts[1]


def _turn(cell: Cell, prompts: Sequence, settings: ServeSettings, turn: int) -> tuple[list[Step], list[Served]]:
    """What counts of one turn, its clock set to 0 at the end of the warm-up."""
    steps, served = cell.engine(turn).run(ClosedLoop(prompts, cell.concurrency), settings.seconds)
    kept = [step for step in steps if step.start >= settings.warm_up]
    return kept, [request for request in served if request.finished >= settings.warm_up]


def _rotated(prompts: Sequence, turn: int) -> list:
    """The prompts of ``turn``: another beginning each time, the same for all cells."""
    begin = (turn * 7) % len(prompts)
    return [*prompts[begin:], *prompts[:begin]]


def _path(folder: Path, cell: Cell, turn: int) -> Path:
    return folder / PARTIAL / f"{cell.name}-c{cell.concurrency}-{digest(cell.identity)}-{turn}.parquet"


def _keep(path: Path, cell: Cell, turn: int, steps: Sequence[Step], served: Sequence[Served]) -> None:
    """One file for a turn, whole or not at all."""
    parts = [frame(steps).assign(kind="step"), frame(served).assign(kind="request")]
    rows = pd.concat([part for part in parts if len(part) > 0], ignore_index=True)
    facts = {"cell": cell.name, "drafter": cell.drafter, "scheduler": cell.scheduler, "turn": turn}
    with replacing(path) as file:
        pq.write_table(
            pa.Table.from_pandas(rows.assign(**facts, concurrency=cell.concurrency), preserve_index=False), file
        )
