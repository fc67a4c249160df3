"""Sweeps: read a W&B sweep file, make its cells, check them, run them here without an account."""

from draftlab.sweeps.cells import Cell, make_cells
from draftlab.sweeps.plan import Plan, make_plan
from draftlab.sweeps.run import run_plan
from draftlab.sweeps.spec import Sweep, read_sweep
from draftlab.sweeps.table import print_plan, print_table

__all__ = [
    "Cell",
    "Plan",
    "Sweep",
    "make_cells",
    "make_plan",
    "print_plan",
    "print_table",
    "read_sweep",
    "run_plan",
]
