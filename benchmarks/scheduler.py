"""What a scheduler takes to choose how much of every block to verify, against a loop over candidates as the paper writes it.

    python benchmarks/scheduler.py                           512 requests with 16 drafted tokens each
    python benchmarks/scheduler.py requests=64 gamma=7

The last line is JSON: milliseconds of each scheduler (``ms_512x16`` is early_stop's at the default size), and how many times as
long the loop takes.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np
from common import arguments
from rich.console import Console
from rich.table import Table

from draftlab.cli import entry
from draftlab.scheduling import Asynchronous, EarlyStop, GlobalSearch, Throughput

DEFAULTS = {"requests": 512, "gamma": 16, "repeats": 200, "seed": 0}


def early_stop_loop(confidence: np.ndarray, table: Throughput) -> list[int]:
    """Algorithm 1, one candidate at a time."""
    rows, gamma = confidence.shape
    candidates = []
    for row in range(rows):
        survival = 1.0
        for token in range(gamma):
            survival *= confidence[row, token]
            candidates.append((-survival, row, token))
    lengths, tokens, committed = [0] * rows, rows, float(rows)
    best = committed * float(table(tokens))
    for negative, row, _ in sorted(candidates):
        tokens, committed = tokens + 1, committed - negative
        throughput = committed * float(table(tokens))
        if throughput <= best:
            break
        best = throughput
        lengths[row] += 1
    return lengths


def milliseconds(function, repeats: int) -> float:
    """Median over ``repeats`` calls."""
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        spent.append(1000.0 * (time.perf_counter() - start))
    return statistics.median(spent)


@entry
def main() -> None:
    """Measure and print."""
    cfg = arguments(DEFAULTS)
    confidence = np.random.default_rng(cfg.seed).uniform(0.5, 1.0, (cfg.requests, cfg.gamma))
    tokens = np.arange(1, cfg.requests * (cfg.gamma + 1) + 2)
    table = Throughput(tokens, 1.0 / (1.0 + tokens / (4.0 * cfg.requests)))  # a pass costs more the more it holds
    if EarlyStop()(confidence, table).tolist() != early_stop_loop(confidence, table):
        raise AssertionError("the loop chooses other lengths")
    figures = {}
    size = f"{cfg.requests}x{cfg.gamma}"
    for name, scheduler in (("early_stop", EarlyStop()), ("global", GlobalSearch()), ("asynchronous", Asynchronous())):
        figures[name] = milliseconds(lambda chosen=scheduler: chosen(confidence, table), cfg.repeats)
    loop = milliseconds(lambda: early_stop_loop(confidence, table), max(1, cfg.repeats // 20))
    shown = Table(title=f"milliseconds for {size}", title_justify="left")
    for heading in (*figures, "early_stop as a loop"):
        shown.add_column(heading, justify="right")
    shown.add_row(*(f"{value:.3f}" for value in (*figures.values(), loop)))
    Console().print(shown)
    result = {f"ms_{size}": figures["early_stop"], **{f"ms_{name}": value for name, value in figures.items()}}
    print(
        json.dumps(
            {name: round(value, 3) for name, value in result.items()}
            | {"loop_over_early_stop": round(loop / figures["early_stop"], 1)}
        )
    )


if __name__ == "__main__":
    main()
