"""The simulator held against the engine: the same traffic, the engine's tables, its rounds, and the figures of both.

    ratio = simulated / engine          of throughput and of every other figure of ``summarise``

The traffic is taken from the requests that the engine served: their lengths and domains, and either their arrivals or the
number of users. The costs are those that the engine's steps had, unless a measured SPS table is given. It decides nothing.

    table = hold_against(steps, served, RecordedTrace(rounds), EarlyStop(), users=8)
    table.loc["throughput", "ratio"]
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from draftlab.scheduling import Scheduler, Throughput
from draftlab.serving.costs import measured_costs, measured_table
from draftlab.serving.records import Served, Step, summarise
from draftlab.serving.simulator import Simulation, until_last_join
from draftlab.serving.traces import Trace
from draftlab.serving.traffic import Traffic


def traffic_of(served: Sequence[Served], users: int | None = None) -> Traffic:
    """The traffic that an engine served: a closed loop of ``users``, or with the arrivals that it had.

    Raises:
        ValueError: no request.
    """
    if not served:
        raise ValueError("there is no finished request to take the traffic from; serve longer")
    served = sorted(served, key=lambda request: (request.arrival, request.request))
    arrival = None if users is not None else [request.arrival for request in served]
    domains = [request.domain for request in served]
    return Traffic([request.tokens for request in served], arrival, users, domains)


def hold_against(
    steps: Sequence[Step],
    served: Sequence[Served],
    trace: Trace,
    scheduler: Scheduler,
    users: int | None = None,
    table: Throughput | None = None,
    decides_by: Throughput | None = None,
) -> pd.DataFrame:
    """The figures of an engine's cell and of its simulation, a row a figure: engine, simulated, ratio.

    Of both, what comes after the last join is left out: an engine that was stopped has requests that never finished.

    Args:
        steps, served: what the engine left. trace: of the drafter that it ran, on the same prompts.
        scheduler: the engine's, or another one like it; it is reset. users: of a closed loop, None for an open one.
        table: measured; None: the one that the engine's own passes make. decides_by: the one that the engine's scheduler
            was shown, where that is another.

    Raises:
        ValueError: nothing to compare, or a domain that the trace does not have.
    """
    table = table or measured_table(steps)
    costs = measured_costs(steps, served)
    capacity = max(max(step.requests for step in steps), 1)
    simulated = Simulation(trace, table, costs, capacity, decides_by).run(traffic_of(served, users), scheduler, seed=0)
    engine, ours = (summarise(*until_last_join(*run)) for run in ((steps, served), simulated))
    figures = pd.DataFrame({"engine": engine, "simulated": ours})
    return figures.assign(ratio=figures["simulated"] / figures["engine"])
