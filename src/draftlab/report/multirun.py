"""Hydra callback: when a multirun is over, compare its runs and print the table.

    hydra:
      callbacks:
        compare: {_target_: draftlab.report.multirun.CompareRuns}

It is given to Hydra by experiments that train several drafters alike; it knows nothing of what was trained.
"""

from __future__ import annotations

from pathlib import Path

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from draftlab.report.compare import compare_runs


class CompareRuns(Callback):
    """Compares the evaluated runs among the sub-folders of a multirun, into the multirun's own folder.

    Args:
        order: beginnings of the names of sub-folders in the order of the table, the baseline last; others follow by name.
    """

    def __init__(self, order: list[str] | None = None) -> None:
        self.order = list(order or [])

    def on_multirun_end(self, config: DictConfig, **kwargs) -> None:
        """Compare, if at least two runs got as far as an evaluation."""
        folder = Path(config.hydra.sweep.dir)
        found = sorted(path.parent.name for path in folder.glob("*/evaluation.json"))
        places = {name: self._place(name) for name in found}
        names = sorted(found, key=lambda name: (places[name], name))
        if len(names) < 2:
            print(f"{folder}: {len(names)} evaluated runs, nothing to compare")
            return
        compare_runs([folder / name for name in names], folder)

    def _place(self, name: str) -> int:
        """Place of the longest beginning of ``name`` in the order; behind all of them without one."""
        fitting = [begin for begin in self.order if name.startswith(begin)]
        return self.order.index(max(fitting, key=len)) if fitting else len(self.order)
