"""Simulated serving experiments: every drafter and scheduler at every load (Figures 7 and 8), and bursts against lags.

    line    a drafter (its trace and costs) with a scheduler
    load    users of a closed loop; requests a second of an open one; requests at once of rollouts
    cell    a line at a load, with a seed of its traffic

The cells of one load and seed serve the same requests, of the same difficulties. It knows nothing of pictures.

    rows = simulate_load(lines, table, TrafficPlan("closed"), loads=[1, 8, 64], seeds=[0], folder=Path("outputs/load"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftlab.scheduling import Asynchronous, EarlyStop, GlobalSearch, Scheduler, Throughput
from draftlab.serving.bursts import CHOICE, EARLY_STOP, ORACLE, SMOOTH, Watched
from draftlab.serving.costs import Costs
from draftlab.serving.records import Served, Step, summarise
from draftlab.serving.simulator import Simulation, until_last_join
from draftlab.serving.study import Cell, run_cells
from draftlab.serving.traces import RecordedTrace, SyntheticTrace, Trace
from draftlab.serving.traffic import Traffic, answer_lengths, bursts, poisson, read_trace, rollouts

CLOSED, POISSON, BURSTS, ROLLOUTS = KINDS = ("closed", "poisson", "bursts", "rollouts")
COLUMN = {CLOSED: "users", POISSON: "rate", BURSTS: "rate", ROLLOUTS: "batch"}


@dataclass(frozen=True)
class Line:
    """A drafter with a scheduler; the names stand in the tables."""

    drafter: str
    scheduler: str
    trace: Trace
    costs: Costs
    policy: Scheduler


@dataclass(frozen=True)
class Drafter:
    """A drafter as the simulator knows it."""

    trace: Trace
    costs: Costs


def make_lines(
    drafters: Mapping[str, Drafter], schedulers: Mapping[str, Scheduler], chosen: Mapping[str, Sequence[str]]
) -> tuple[list[Line], list[str]]:
    """A line for every scheduler chosen for a drafter, and a note on each that was left out.

    Where a drafter has recorded rounds, those with synthetic ones are left out: they would not be of the same target.

    Raises:
        ValueError: a drafter or scheduler that is not there.
    """
    recorded = any(isinstance(drafter.trace, RecordedTrace) for drafter in drafters.values())
    lines, notes = [], []
    for name, policies in chosen.items():
        for what, wanted, known in (("drafter", [name], drafters), ("scheduler", policies, schedulers)):
            unknown = [word for word in wanted if word not in known]
            if unknown:
                raise ValueError(f"simulation.lines: no {what} {unknown[0]!r}; there are {', '.join(known)}")
        drafter = drafters[name]
        if recorded and isinstance(drafter.trace, SyntheticTrace):
            notes.append(f"{name}: no recorded rounds; name its run with simulation.drafters.{name}.trace.run=…")
            continue
        lines += [Line(name, policy, drafter.trace, drafter.costs, schedulers[policy]) for policy in policies]
    return lines, notes


@dataclass(frozen=True)
class TrafficPlan:
    """What is served at a load.

    Args:
        kind: ``closed``, ``poisson``, ``bursts`` or ``rollouts``; or the path of a trace file, whose requests are then served.
        requests: of a cell, at least; in a closed loop and of rollouts also ``rounds`` times the load.
        mean_tokens, spread: of the answers' lengths (log-normal).
        rounds: requests a user, or batches of rollouts, at least.
        burstiness, share, dwell: of bursts. period: seconds between rollouts.
        warm_up: share of the time that does not count. capacity: requests at a time.

    Raises:
        ValueError: an unknown kind, or a value outside its range.
    """

    kind: str = CLOSED
    requests: int = 1000
    mean_tokens: float = 200.0
    spread: float = 0.8
    rounds: int = 8
    burstiness: float = 10.0
    share: float = 0.1
    dwell: float = 1.0
    period: float = 60.0
    warm_up: float = 0.1
    capacity: int = 512

    def __post_init__(self) -> None:
        if self.kind not in KINDS and Path(self.kind).suffix not in (".csv", ".jsonl"):
            raise ValueError(
                f"traffic must be one of {', '.join(KINDS)} or a .csv or .jsonl trace file, got {self.kind!r}"
            )
        if self.requests < 1 or self.rounds < 1 or self.capacity < 1 or not 0 <= self.warm_up < 1:
            raise ValueError(
                "requests, rounds and capacity must be at least 1 and warm_up in [0, 1), got "
                f"{self.requests}, {self.rounds}, {self.capacity}, {self.warm_up:g}"
            )
        self.traffic(1.0, 0)  # every other value is checked by making some

    @property
    def column(self) -> str:
        """What the load is called in the tables."""
        return COLUMN.get(self.kind, "speedup")

    def traffic(self, load: float, seed: int) -> Traffic:
        """Requests at ``load``; those of a trace file arrive ``load`` times as fast as recorded."""
        if not load > 0:
            raise ValueError(f"loads must be positive, got {load:g}")
        if self.kind not in KINDS:
            recorded = read_trace(self.kind)
            return Traffic(recorded.tokens, recorded.arrival / load, domain=recorded.domain)
        times, sizes = np.random.default_rng(seed).spawn(2)
        whole = max(int(load), 1)
        many = max(self.requests, self.rounds * whole) if self.kind in (CLOSED, ROLLOUTS) else self.requests
        tokens = answer_lengths(many, self.mean_tokens, self.spread, sizes)
        if self.kind == CLOSED:
            return Traffic(tokens, users=whole)
        if self.kind == POISSON:
            return Traffic(tokens, poisson(many, load, times))
        if self.kind == BURSTS:
            return Traffic(tokens, bursts(many, load, times, self.burstiness, self.share, self.dwell))
        return Traffic(tokens, rollouts(many, whole, self.period))


def at_load(
    steps: Sequence[Step], served: Sequence[Served], load: TrafficPlan
) -> tuple[list[Step], list[Served], float]:
    """What counts of a cell, and seconds of warm-up: nothing after the last request joined, when the load falls off.

    Rollouts count to their end: that the load falls off is what they are about.
    """
    if load.kind != ROLLOUTS:
        steps, served = until_last_join(steps, served)
    first = steps[0].start
    return list(steps), list(served), first + load.warm_up * (steps[-1].start - first)


def serve(line: Line, table: Throughput, load: TrafficPlan, value: float, seed: int) -> dict[str, Any]:
    """The figures of one cell."""
    simulation = Simulation(line.trace, table, line.costs, load.capacity)
    steps, served, warm_up = at_load(*simulation.run(load.traffic(value, seed), line.policy, seed), load)
    return summarise(steps, served, warm_up)


def simulate_load(
    lines: Sequence[Line],
    table: Throughput,
    load: TrafficPlan,
    loads: Sequence[float],
    seeds: Sequence[int],
    folder: Path,
    identity: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Every line at every load with every seed, a row each: drafter, scheduler, the load, seed, and the figures.

    Raises:
        ValueError: two lines of one name, a folder of another study, or figures that a warm-up leaves nothing of.
    """
    by_name = {(line.drafter, line.scheduler): line for line in lines}
    if not lines or len(by_name) < len(lines) or not len(loads) or not len(seeds):
        raise ValueError("a simulation needs lines of different names, at least one load and at least one seed")
    cells = [
        Cell(
            f"{drafter}-{scheduler}-{load.column}_{value:g}-seed_{seed}",
            {"drafter": drafter, "scheduler": scheduler, load.column: value, "seed": seed},
        )
        for value in loads
        for drafter, scheduler in by_name
        for seed in seeds
    ]

    def work(cell: Cell) -> dict[str, Any]:
        keys = cell.keys
        return serve(by_name[keys["drafter"], keys["scheduler"]], table, load, keys[load.column], keys["seed"])

    common = _identity({line.drafter: line.trace for line in lines}, table, load, identity)
    return run_cells(cells, work, folder, common, "simulated cells")


@dataclass(frozen=True)
class BurstStudy:
    """Burstiness × lag: levels of burstiness, lags in steps, seeds, and the mean rate in requests a second."""

    burstiness: Sequence[float]
    lags: Sequence[int]
    seeds: Sequence[int]
    rate: float

    def __post_init__(self) -> None:
        if not len(self.burstiness) or not len(self.lags) or not len(self.seeds):
            raise ValueError("a study of bursts needs levels of burstiness, lags and seeds, at least one of each")
        for lag in self.lags:
            Asynchronous(lag)

    def policies(self) -> dict[str, tuple[float | None, Scheduler]]:
        """Name -> (lag, scheduler): the oracle, both forms of early stop, and a lag each."""
        return {
            ORACLE: (None, GlobalSearch()),
            EARLY_STOP: (None, EarlyStop()),
            SMOOTH: (None, EarlyStop(smooth=True)),
            **{f"lag_{lag}": (lag, Asynchronous(lag)) for lag in self.lags},
        }


def simulate_bursts(
    drafter: Drafter,
    table: Throughput,
    load: TrafficPlan,
    study: BurstStudy,
    folder: Path,
    identity: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Rows for :func:`draftlab.serving.bursts.regret_table`, a cell each; the burstiness of ``load`` is the study's.

    Raises:
        ValueError: as :func:`simulate_load`.
    """
    policies = study.policies()
    cells = [
        Cell(
            f"{name}-burstiness_{level:g}-seed_{seed}",
            {"burstiness": level, "scheduler": name, "lag": policies[name][0], "seed": seed},
        )
        for level in study.burstiness
        for name in policies
        for seed in study.seeds
    ]

    def work(cell: Cell) -> dict[str, Any]:
        keys = cell.keys
        watched = Watched(policies[keys["scheduler"]][1])
        line = Line("", keys["scheduler"], drafter.trace, drafter.costs, watched)
        wild = TrafficPlan(**{**asdict(load), "kind": BURSTS, "burstiness": keys["burstiness"]})
        return {**serve(line, table, wild, study.rate, keys["seed"]), CHOICE: watched.regret}

    common = _identity({"": drafter.trace}, table, load, {"rate": study.rate, **(identity or {})})
    return run_cells(cells, work, folder, common, "cells of bursts and lags").astype({"lag": float})


def _identity(
    traces: Mapping[str, Trace], table: Throughput, load: TrafficPlan, more: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What cells of one folder have in common; their own values stand in their names."""
    steps = {"tokens": table.batch_tokens.tolist(), "steps_per_second": [round(v, 9) for v in table.steps_per_second]}
    rounds = {name: trace.digest for name, trace in traces.items() if isinstance(trace, RecordedTrace)}
    return {"table": {**steps, "look_up": table.look_up}, "load": asdict(load), "rounds": rounds, **(more or {})}
