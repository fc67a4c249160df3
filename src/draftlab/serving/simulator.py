"""The trace simulator: continuous batching as the engine does it, on a trace instead of models, with tables for a clock.

    step:  waiting requests join (prefill) | every running one drafts a block | the scheduler chooses prefix lengths K |
           one pass verifies them | min(reach, K) + 1 tokens a request are committed | finished requests leave
    seconds of a step = prefill · joined + draft(R, k) + schedule · R·k + 1 / SPS(R + ΣK), and ``between`` to the next

k ≤ G is what the scheduler has drafted; the table that it gets knows the time of it, as an engine's does.

The schedulers are those that an engine runs. What it leaves are the engine's own records. Steps follow one another, and all
requests of one are handled at once in arrays. It does not know a real clock, nor prompts that are read in pieces: a
joining request is read whole before the step goes on.

    simulation = Simulation(trace, table, costs, capacity=256)
    steps, served = simulation.run(traffic, EarlyStop(), seed=0)
    summarise(steps, served, warm_up=5.0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from draftlab.scheduling import Scheduler, Throughput
from draftlab.serving.costs import Costs
from draftlab.serving.records import Served, Step
from draftlab.serving.traces import Trace
from draftlab.serving.traffic import Traffic

Advance = Callable[[int, int], None]  # (finished requests, their tokens)


@dataclass(frozen=True)
class Simulation:
    """A drafter's ``trace`` on a machine: its SPS ``table`` and ``costs``, and requests at a time (``capacity``).

    ``decides_by`` is what schedulers are shown instead of the table that the clock goes by, where the two differ.

    Raises:
        ValueError: a capacity below 1.
    """

    trace: Trace
    table: Throughput
    costs: Costs
    capacity: int = 256
    decides_by: Throughput | None = None

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"capacity must be at least 1 request, got {self.capacity}")

    def run(
        self, traffic: Traffic, scheduler: Scheduler, seed: int, advance: Advance | None = None
    ) -> tuple[list[Step], list[Served]]:
        """Serve all of ``traffic``; steps in their order, and requests in the order in which they finished.

        Two runs with one seed give the requests the same difficulties, whatever the schedulers are.

        Raises:
            ValueError: a scheduler that verifies more than a block holds, or a domain that the trace does not have.
        """
        drawn, rounds = np.random.default_rng(seed).spawn(2)
        scheduler.reset()
        batch = _Batch(traffic, self.trace.begin(traffic.domain, drawn), self.capacity)
        clock = _Clock(self)
        steps, served = [], []
        while not batch.is_done:
            joined = batch.join(clock.now)
            if not joined and not len(batch.ids):
                clock.now = batch.next_arrival
                continue
            step, finished = self._step(clock, batch, scheduler, joined, rounds)
            steps.append(step)
            served += finished
            if advance and finished:
                advance(len(finished), sum(request.tokens for request in finished))
        return steps, served

    def _step(
        self, clock: _Clock, batch: _Batch, scheduler: Scheduler, joined: int, generator: np.random.Generator
    ) -> tuple[Step, list[Served]]:
        """One step, which moves the clock and the batch on."""
        start, prefill = clock.now, self.costs.prefill * joined
        finished = batch.first_tokens(joined, start + prefill)
        rows, gamma = len(batch.ids), self.trace.gamma
        drafted = scheduler.draft_length(gamma) if rows else 0
        lengths = accepted = np.zeros(rows, dtype=np.int64)
        if drafted:
            confidence, reach, batch.state[batch.ids] = self.trace.round(batch.state[batch.ids], generator)
            lengths = scheduler(confidence[:, :drafted], clock.shown(rows, drafted))
            if lengths.max() > drafted:
                raise ValueError(
                    f"{type(scheduler).__name__} asks for {int(lengths.max())} tokens of a block of {drafted} (gamma)"
                )
            accepted = np.minimum(reach, lengths)
        verified = int(lengths.sum())
        left = batch.left[batch.ids]
        committed = np.minimum(accepted + 1, left)
        step = Step(
            start,
            prefill,
            clock.drafting(rows, drafted),
            self.costs.schedule * rows * drafted,
            clock.verify[rows + verified] if rows else 0.0,
            rows,
            rows * drafted,
            verified,
            int(np.minimum(accepted, committed).sum()),
            int(committed.sum()),
        )
        clock.now = start + step.seconds + self.costs.between
        return step, finished + batch.commit(left - committed, clock.now)


def until_last_join(steps: Sequence[Step], served: Sequence[Served]) -> tuple[list[Step], list[Served]]:
    """Steps and finished requests up to the last request that joined: after it the load falls off.

    All of them, if nobody had finished by then.
    """
    last = max(request.joined for request in served)
    finished = [request for request in served if request.finished <= last]
    return ([step for step in steps if step.start <= last], finished) if finished else (list(steps), list(served))


class _Clock:
    """Seconds so far, and those of drafting [R] and verifying [B], looked up once; and the tables that schedulers see."""

    def __init__(self, simulation: Simulation) -> None:
        most = simulation.capacity
        self.now = 0.0
        self.costs, self.gamma = simulation.costs, simulation.trace.gamma
        self.draft = simulation.costs.draft_upto(most).tolist()
        self.verify = (1.0 / simulation.table.upto(most * (self.gamma + 1))).tolist()
        self.table, self.decides_by = simulation.table, simulation.decides_by
        self._shown: dict[tuple[int, int], Throughput] = {}

    def drafting(self, rows: int, drafted: int) -> float:
        """Seconds of drafting so many tokens a row."""
        return self.draft[rows] * self.costs.of_part(drafted, self.gamma) if drafted else 0.0

    def shown(self, rows: int, drafted: int) -> Throughput:
        """The SPS table that schedulers see in a step that drafts so many tokens a row."""
        if self.decides_by is not None:
            return self.decides_by
        if (rows, drafted) not in self._shown:
            more = self.draft[rows] * self.costs.draft_slots / self.gamma
            self._shown[rows, drafted] = self.table.plus(self.drafting(rows, drafted), more)
        return self._shown[rows, drafted]


class _Batch:
    """Requests that wait, run and finish. ``ids`` [R] are the running ones; other arrays are [n], a request each."""

    def __init__(self, traffic: Traffic, state: np.ndarray, capacity: int) -> None:
        self.state, self.tokens, self.domain = state, traffic.tokens, traffic.domain.tolist()
        self.capacity, self.closed = capacity, traffic.arrival is None
        self.arrival = np.zeros(len(traffic)) if self.closed else traffic.arrival
        self.released = min(traffic.users, len(traffic)) if self.closed else len(traffic)
        self.left = traffic.tokens.copy()  # tokens to come
        self.joined, self.first = np.zeros(len(traffic)), np.zeros(len(traffic))
        self.ids = np.zeros(0, dtype=np.int64)
        self.next = 0  # the first request that has not joined

    @property
    def is_done(self) -> bool:
        return self.next == len(self.tokens) and not len(self.ids)

    @property
    def next_arrival(self) -> float:
        """Seconds of the next arrival; of an open loop, in which nobody runs."""
        return float(self.arrival[self.next])

    def join(self, now: float) -> int:
        """Let those that have arrived join while there is room; how many did."""
        room = min(self.capacity - len(self.ids), self.released - self.next)
        if room <= 0:
            return 0
        waiting = self.arrival[self.next : self.next + room]
        joined = int(np.searchsorted(waiting, now, side="right"))
        if joined:
            new = np.arange(self.next, self.next + joined)
            self.joined[new] = now
            self.ids = np.concatenate([self.ids, new])
            self.next += joined
        return joined

    def first_tokens(self, joined: int, now: float) -> list[Served]:
        """The first token of those that just ``joined``, which reading the prompt gives; who wanted one only is served."""
        if not joined:
            return []
        new = self.ids[len(self.ids) - joined :]
        self.first[new] = now
        self.left[new] -= 1
        return self._leave(now) if not self.left[new].all() else []

    def commit(self, left: np.ndarray, now: float) -> list[Served]:
        """Note the tokens ``left`` [R] to the running ones; who has none is served."""
        self.left[self.ids] = left
        return [] if left.all() else self._leave(now)

    def _leave(self, now: float) -> list[Served]:
        done = self.left[self.ids] == 0
        gone, self.ids = self.ids[done], self.ids[~done]
        if self.closed:  # their users send the next requests at once
            following = min(self.released + len(gone), len(self.tokens))
            self.arrival[self.released : following] = now
            self.released = following
        times = np.stack([self.arrival[gone], self.joined[gone], self.first[gone]], axis=1).tolist()
        return [
            Served(int(i), self.domain[i], *seconds, now, int(self.tokens[i]))
            for i, seconds in zip(gone, times, strict=True)
        ]
