"""How many requests a second of this machine's time the trace simulator serves, on synthetic rounds and a staircase.

    python benchmarks/simulator.py                           100,000 requests with 64 at a time, early_stop
    python benchmarks/simulator.py requests=10000 users=256

The last line is JSON: seconds, requests and steps a second by scheduler.
"""

from __future__ import annotations

import json
import time

import numpy as np
from common import arguments
from rich.console import Console
from rich.table import Table

from draftlab.cli import entry
from draftlab.data.progress import Progress
from draftlab.scheduling import Asynchronous, EarlyStop, Fixed
from draftlab.serving.costs import Costs, staircase
from draftlab.serving.simulator import Simulation
from draftlab.serving.traces import SyntheticTrace
from draftlab.serving.traffic import Traffic, answer_lengths

DEFAULTS = {"requests": 100_000, "users": 64, "mean_tokens": 200, "seed": 0}
SCHEDULERS = {"early_stop": EarlyStop(smooth=True), "asynchronous": Asynchronous(), "fixed": Fixed()}


@entry
def main() -> None:
    """Measure and print."""
    cfg = arguments(DEFAULTS)
    trace = SyntheticTrace([0.85, 0.8, 0.77, 0.75, 0.73], request_spread=0.8, token_spread=1.0)
    table = staircase(limit=8192, base=0.02, saturation=256, tile=32, jag=0.03)
    simulation = Simulation(trace, table, Costs([1, 512], [0.001, 0.002], 0.001), capacity=cfg.users)
    lengths = answer_lengths(cfg.requests, cfg.mean_tokens, 0.8, np.random.default_rng(cfg.seed))
    shown = Table(title=f"{cfg.requests:,} requests, {cfg.users} at a time", title_justify="left")
    for heading in ("scheduler", "seconds", "requests/s", "steps/s"):
        shown.add_column(heading, justify="right")
    figures = {}
    for name, scheduler in SCHEDULERS.items():
        with Progress(name, cfg.requests, unit="tokens") as progress:
            start = time.perf_counter()
            steps, served = simulation.run(Traffic(lengths, users=cfg.users), scheduler, cfg.seed, progress.advance)
            seconds = time.perf_counter() - start
        if len(served) != cfg.requests or sum(request.tokens for request in served) != lengths.sum():
            raise AssertionError("requests or tokens were lost")
        shown.add_row(name, f"{seconds:.1f}", f"{cfg.requests / seconds:,.0f}", f"{len(steps) / seconds:,.0f}")
        figures |= {f"seconds_{name}": round(seconds, 4), f"requests_per_second_{name}": round(cfg.requests / seconds)}
    Console().print(shown)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
