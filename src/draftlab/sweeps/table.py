"""What a sweep will do and what it has done, for a terminal. The module knows nothing of how cells are run."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from draftlab.sweeps.plan import Plan
from draftlab.sweeps.state import FAILED, FINISHED, CellState

WIDTH = 112  # at least, also where the output is a file
EVALUATED = "evaluation.json"  # in the run folder of a cell that has been decoded


def print_plan(plan: Plan) -> None:
    """Print every cell with its command, and the grid as one command for Hydra's launchers."""
    print(f"{len(plan.jobs)} cells, run folders in {plan.folder}\n")
    for job in plan.jobs:
        print(f"{job.cell.name}\n    {shlex.join(job.words)}")
    if plan.multirun is not None:
        print(f"\nThe same grid on a cluster, through a launcher of Hydra:\n    {plan.multirun}")


def print_table(plan: Plan, states: list[CellState]) -> None:
    """Print all cells with values, state, minutes and metric, the best of them, and what to do next."""
    names = list(states[0].values)
    metric = plan.metric.name if plan.metric is not None else None
    table = Table(title=str(plan.folder), title_justify="left", box=box.SIMPLE_HEAD)
    for name in names:
        table.add_column(name)
    table.add_column("state")
    table.add_column("minutes", justify="right")
    if metric:
        table.add_column(f"{metric} (last)", justify="right")
    for state in states:
        how = state.state if state.state != FAILED else f"failed (exit code {state.exit_code})"
        measured = [] if not metric else ["–" if state.metric is None else f"{state.metric:.4g}"]
        values = [str(state.values[name]) for name in names]
        table.add_row(*values, how, f"{state.seconds / 60:.1f}", *measured)
    Console(width=max(Console().width, WIDTH)).print(table)
    _print_best(plan, states)
    failed = [state.name for state in states if state.state == FAILED]
    if failed:
        print(f"{len(failed)} of {len(states)} cells failed: {', '.join(failed)}")
        print(f"Each has its log in {plan.folder}; run the same command again to try them once more.")
    runs = [str(job.folder) for job in plan.jobs if (job.folder / EVALUATED).is_file()]
    if len(runs) > 1:
        print(
            f"Compare what was decoded:\n    python src/report.py runs=[{','.join(runs)}] out={plan.folder / 'compare'}"
        )


def _print_best(plan: Plan, states: list[CellState]) -> None:
    measured = [state for state in states if state.state == FINISHED and state.metric is not None]
    if plan.metric is None or len(measured) < 2:
        return
    best = (max if plan.metric.maximize else min)(measured, key=lambda state: state.metric)
    print(f"best {plan.metric.name}: {best.metric:.4g}, {best.name} ({Path(plan.folder) / best.name})")
