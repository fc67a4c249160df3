"""Simulate serving: the schedulers on recorded or synthetic rounds, an SPS table for a clock, and traffic of any kind.

    python src/simulate.py                                                   Figures 7 and 8 on a GPU-like staircase
    python src/simulate.py run=outputs/demo table=outputs/demo/sps.json      recorded rounds, a measured table
    python src/simulate.py simulation.traffic.kind=trace.csv simulation.loads=[1,2]      arrivals of a file, and twice as fast
    python src/simulate.py simulation=bursts                                 what stale budgets lose under bursty traffic

Writes tables, figures and report.html into ``out``. Every cell is kept there; stop it at any moment, and the same command
goes on with what was not finished.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from draftlab.cli import entry
from draftlab.report.simulation import simulate


@hydra.main(config_path="../conf", config_name="simulate", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Compose, instantiate, run."""
    experiment = hydra.utils.instantiate(cfg.simulation, _convert_="all")
    settings = OmegaConf.to_container(cfg.simulation, resolve=True)
    command = shlex.join(["python", "src/simulate.py", *sys.argv[1:]])
    print(f"report: {simulate(experiment, settings, Path(cfg.out), command)}")


if __name__ == "__main__":
    main()
