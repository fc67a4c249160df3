"""Simulated serving experiments from a configuration to a page: what ``conf/simulation/`` builds and src/schedule.py runs.

    LoadExperiment     every drafter and scheduler at every load: Figures 7 and 8 of the paper
    BurstExperiment    burstiness × lag of the budget: regret, and a recommendation that follows from it

Cells that are done are kept in the folder, so a stopped experiment goes on with the same command. Nothing is computed here.

    LoadExperiment(…).run(Path("outputs/simulated"), About("simulated", …))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlab.report.serving import About, write_bursts, write_serving
from draftlab.report.tables import console
from draftlab.scheduling import Scheduler, Throughput
from draftlab.serving.bursts import recommendation, regret_table
from draftlab.serving.simulated import BurstStudy, Drafter, TrafficPlan, make_lines, simulate_bursts, simulate_load
from draftlab.serving.study import mean_over_seeds

# Settings that say which cells there are, or how they are shown: more of them, or others, keep the cells that are done.
VARYING = {
    *("loads", "seeds", "lines", "reference", "anchors", "tolerance"),
    *("study.burstiness", "study.lags", "study.seeds"),
}


@dataclass
class LoadExperiment:
    """Lines over loads.

    Args:
        table: SPS of the target. traffic: what is served. loads: users, rates or batches, as the traffic's kind has it.
        drafters: name -> trace and costs. schedulers: by name. lines: name of a drafter -> names of its schedulers.
        reference, anchors: see :func:`draftlab.report.serving.write_serving`.

    Raises:
        ValueError: a line whose drafter or scheduler is not there, or no load or seed.
    """

    table: Throughput
    traffic: TrafficPlan
    loads: Sequence[float]
    seeds: Sequence[int]
    drafters: Mapping[str, Drafter]
    schedulers: Mapping[str, Scheduler]
    lines: Mapping[str, Sequence[str]]
    reference: str | None = None
    anchors: Sequence[float] | None = None

    def __post_init__(self) -> None:
        self._lines, self._notes = make_lines(self.drafters, self.schedulers, self.lines)
        if not self.loads or not self.seeds or not self._lines:
            raise ValueError("simulation.loads, seeds and lines need at least one entry each")

    def run(self, out: Path, about: About) -> Path:
        """Simulate what is not done yet and write the page; a folder begun with other settings (``about``) is refused."""
        say(self.table.shape(), *(f"left out: {note}" for note in self._notes))
        rows = simulate_load(self._lines, self.table, self.traffic, self.loads, self.seeds, out, identity(about))
        means = mean_over_seeds(rows, ["drafter", "scheduler", self.traffic.column])
        return write_serving(means, out, about, self.reference, self.anchors)


@dataclass
class BurstExperiment:
    """Stale budgets under bursts.

    Args:
        table: SPS of the target. traffic: what is served; its kind and burstiness are the study's.
        drafter: trace and costs. study: burstiness × lag. tolerance: regret of speed that is called small.
    """

    table: Throughput
    traffic: TrafficPlan
    drafter: Drafter
    study: BurstStudy
    tolerance: float = 0.02

    def run(self, out: Path, about: About) -> Path:
        """Simulate what is not done yet, say what follows, and write the page; other settings are refused as above."""
        say(self.table.shape())
        regrets = regret_table(
            simulate_bursts(self.drafter, self.table, self.traffic, self.study, out, identity(about))
        )
        sentences = recommendation(regrets, self.tolerance)
        say(*sentences)
        return write_bursts(regrets, sentences, out, about)


def simulate(
    experiment: LoadExperiment | BurstExperiment, settings: Mapping[str, Any], out: Path, command: str
) -> Path:
    """Run an experiment built from ``settings`` into ``out``; the page's path."""
    flat = describe(settings)
    runs = sorted({str(value) for key, value in flat.items() if key.endswith(".trace.run") and value is not None})
    table = flat.get("table.table")
    text = (
        f"The schedulers on {'recorded rounds of ' + ', '.join(runs) if runs else 'synthetic rounds'}, with "
        f"{'a GPU-like staircase' if table == 'staircase' else table} for a clock. No machine was measured."
    )
    return experiment.run(out, About("simulated", text, flat, command))


def identity(about: About) -> dict[str, Any]:
    """The settings that all cells of a folder have in common."""
    return {key: value for key, value in about.settings.items() if key not in VARYING}


def describe(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one flat table for the page, ``drafters.dspark.costs.prefill`` and so on, targets left out."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= describe(value, f"{prefix}{key}.")
        elif key != "_target_":
            flat[f"{prefix}{key}"] = value
    return flat


def say(*lines: str) -> None:
    """Print lines as they are, without marks or breaks."""
    for line in lines:
        console().print(line, soft_wrap=True, highlight=False, markup=False)
