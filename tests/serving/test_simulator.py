"""The simulator against a loop over single requests, and the pattern that production engines show."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from draftlab.scheduling import Asynchronous, Bypass, EarlyStop, Fixed, GlobalSearch, Scheduler, Threshold, Throughput
from draftlab.serving.costs import Costs, staircase
from draftlab.serving.records import Served, Step, summarise
from draftlab.serving.simulator import Simulation
from draftlab.serving.traces import COLUMNS, NoDrafter, RecordedTrace, SyntheticTrace
from draftlab.serving.traffic import Traffic, answer_lengths, bursts, poisson

GAMMA = 3


def recorded(seed=0, prompts=9):
    generator = np.random.default_rng(seed)
    rows = []
    for prompt in range(prompts):
        for number in range(int(generator.integers(1, 6))):
            confidence = generator.uniform(0.05, 0.95, GAMMA)
            accepted = int((generator.random(GAMMA) < confidence).cumprod().sum())
            domain = ["chat", "code"][prompt % 2]
            counts = (number, GAMMA, accepted, accepted + 1)
            rows.append((1.0, "set", domain, str(prompt), *counts, confidence.tolist()))
    return RecordedTrace(pd.DataFrame(rows, columns=COLUMNS))


class Twin:
    """The same, one request at a time; ``prompts`` [n] are those that the requests replay."""

    def __init__(self, simulation, traffic, prompts):
        self.simulation, self.traffic, self.prompts = simulation, traffic, prompts
        self.closed = traffic.arrival is None
        begun = range(traffic.users) if self.closed else range(len(traffic))
        self.arrivals = {i: 0.0 if self.closed else float(traffic.arrival[i]) for i in begun}
        self.waiting, self.running, self.now, self.steps, self.served = sorted(self.arrivals), [], 0.0, [], []

    def run(self, scheduler):
        scheduler.reset()
        while self.waiting or self.running:
            room = self.simulation.capacity - len(self.running)
            joining = [i for i in self.waiting if self.arrivals[i] <= self.now][:room]
            if joining or self.running:
                self.step(scheduler, joining)
            else:
                self.now = self.arrivals[self.waiting[0]]
        return self.steps, self.served

    def step(self, scheduler, joining):
        costs, start = self.simulation.costs, self.now
        first = start + costs.prefill * len(joining)
        for i in joining:
            self.waiting.remove(i)
            left = int(self.traffic.tokens[i]) - 1
            self.running.append({"id": i, "left": left, "round": 0, "joined": start, "first": first})
        self.leave(first)
        count = len(self.running)
        tokens = scheduler.draft_length(GAMMA) if count else 0
        whole = float(np.interp(count, costs.draft_requests, costs.draft_seconds))
        draft = whole * (1 - costs.draft_slots + costs.draft_slots * tokens / GAMMA) if tokens else 0.0
        table = self.simulation.table.plus(draft, whole * costs.draft_slots / GAMMA)
        verified, accepted, committed = self.rounds(scheduler, tokens, table) if tokens else (0, 0, self.plain())
        drafted = count * tokens
        verify = 1.0 / float(self.simulation.table(count + verified)) if count else 0.0
        seconds = (first - start, draft, costs.schedule * drafted, verify)
        self.steps.append(Step(start, *seconds, count, drafted, verified, accepted, committed))
        self.now = start + sum(seconds) + costs.between
        self.leave(self.now)

    def rounds(self, scheduler, tokens, table):
        trace, totals = self.simulation.trace, np.zeros(3, dtype=int)
        rows = [trace.first[self.prompts[r["id"]]] + r["round"] for r in self.running]
        lengths = scheduler(trace.confidence[rows][:, :tokens], table)
        for r, row, length in zip(self.running, rows, lengths, strict=True):
            reached = min(int(trace.reach[row]), int(length))
            committed = min(reached + 1, r["left"])
            totals += (int(length), min(reached, committed), committed)
            r["left"] -= committed
            r["round"] = (r["round"] + 1) % trace.count[self.prompts[r["id"]]]
        return totals.tolist()

    def plain(self):
        for r in self.running:
            r["left"] -= 1
        return len(self.running)

    def leave(self, at):
        for r in [r for r in self.running if r["left"] == 0]:
            self.running.remove(r)
            i, traffic = r["id"], self.traffic
            times = (self.arrivals[i], r["joined"], r["first"], at)
            self.served.append(Served(i, str(traffic.domain[i]), *times, int(traffic.tokens[i])))
            if self.closed and len(self.arrivals) < len(traffic):
                self.arrivals[len(self.arrivals)] = at
                self.waiting.append(len(self.arrivals) - 1)


SCHEDULERS = [
    Fixed(),
    Fixed(1),
    Fixed(0),
    Threshold(0.5),
    EarlyStop(),
    GlobalSearch(),
    Asynchronous(2),
    Bypass(EarlyStop(), 1, 3),
    Bypass(Threshold(0.3), 4, 2),
]


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda scheduler: type(scheduler).__name__)
@pytest.mark.parametrize("users", [None, 5])
def test_every_step_and_request_is_that_of_a_loop_over_single_requests(scheduler, users):
    generator = np.random.default_rng(3)
    tokens = answer_lengths(60, 8.0, 1.0, generator)
    assert tokens.min() == 1, "an answer of one token comes from reading the prompt"
    arrival = None if users else bursts(60, 4.0, generator, 20.0, 0.2, 1.0)
    traffic = Traffic(tokens, arrival, users, generator.choice(["chat", "code", ""], 60))
    simulation = Simulation(
        recorded(), staircase(64, 0.05, 8, 4, 0.1), Costs([1, 4], [0.01, 0.02], 0.03, 1e-4, 2e-3, 0.6), 4
    )
    steps, served = simulation.run(traffic, scheduler, seed=7)
    prompts = simulation.trace.begin(traffic.domain, np.random.default_rng(7).spawn(2)[0])[:, 0]
    expected_steps, expected = Twin(simulation, traffic, prompts).run(scheduler)
    assert len(steps) == len(expected_steps) and len(served) == len(expected) == 60
    for ours, theirs in [*zip(steps, expected_steps, strict=True), *zip(served, expected, strict=True)]:
        for name, value in vars(theirs).items():
            got = getattr(ours, name)
            assert got == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), name


def test_a_simulation_with_one_seed_is_the_same_and_with_another_one_differs():
    simulation = Simulation(SyntheticTrace([0.7, 0.6], 1.0, 1.0), staircase(512, 0.02, 64, 16), Costs(), 32)
    traffic = Traffic(answer_lengths(200, 20.0, 0.8, np.random.default_rng(0)), users=16)
    runs = [simulation.run(traffic, EarlyStop(), seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] and runs[0] != runs[2]
    asked = []
    simulation.run(traffic, EarlyStop(), 0, lambda count, tokens: asked.append((count, tokens)))
    assert np.sum(asked, axis=0).tolist() == [200, int(traffic.tokens.sum())], "progress counts everything once"


def test_an_idle_server_waits_for_the_next_arrival_and_capacity_makes_others_wait():
    simulation = Simulation(NoDrafter(), Throughput([1, 2], [10.0, 10.0]), Costs(prefill=0.5), capacity=1)
    steps, served = simulation.run(Traffic([3, 3, 2], [1.0, 1.1, 9.0]), Fixed(), 0)
    assert [(r.joined, r.first_token, r.finished) for r in served] == [
        (1.0, 1.5, pytest.approx(1.7)),
        (pytest.approx(1.7), pytest.approx(2.2), pytest.approx(2.4)),
        (9.0, 9.5, pytest.approx(9.6)),
    ]
    assert all(step.requests == 1 for step in steps) and len(steps) == 5


class Greedy(Scheduler):
    """Asks for one token more than a block has."""

    def __call__(self, confidence, table=None):
        return np.full(len(confidence), confidence.shape[1] + 1)


@pytest.mark.parametrize(("scheduler", "name"), [(Greedy(), "Greedy asks for 4"), (Fixed(4), "schedule.length is 4")])
def test_a_scheduler_that_asks_for_more_than_gamma_is_refused(scheduler, name):
    simulation = Simulation(recorded(), staircase(64, 0.05, 8, 4), Costs())
    with pytest.raises(ValueError, match=f"{name}.*gamma"):
        simulation.run(Traffic([5], users=1), scheduler, 0)
    with pytest.raises(ValueError, match="capacity"):
        Simulation(recorded(), staircase(64, 0.05, 8, 4), Costs(), 0)


def cell(trace, costs, scheduler, users):
    """Throughput on a GPU-like staircase that is saturated from 128 tokens on."""
    table = staircase(4096, base=0.02, saturation=128, tile=16, jag=0.0)
    lengths = answer_lengths(12 * users + 40, 40.0, 0.3, np.random.default_rng(0))
    simulation = Simulation(trace, table, costs, capacity=users)
    steps, served = simulation.run(Traffic(lengths, users=users), scheduler, 0)
    return summarise(steps, served, warm_up=steps[-1].start * 0.1)


def test_the_staircase_shows_the_pattern_of_production_engines():
    """A small loss at low load, a crossing, a large gain once fixed gamma saturates, and fixed below no drafting there."""
    drafter = SyntheticTrace([0.75, 0.7, 0.65, 0.62, 0.6], request_spread=0.8, token_spread=1.0)
    free, scheduled = Costs([1, 512], [0.001, 0.003]), Costs([1, 512], [0.001, 0.003], schedule=2e-6)
    users = (1, 8, 32, 128, 512)
    fixed = [cell(drafter, free, Fixed(), count)["throughput"] for count in users]
    ours = [cell(drafter, scheduled, Asynchronous(), count) for count in users]
    plain = [cell(NoDrafter(), Costs(), Fixed(), count)["throughput"] for count in users]
    gain = np.array([row["throughput"] for row in ours]) / fixed - 1
    assert -0.03 < gain[0] < 0, "the scheduler's own time, and nothing to win where passes are free"
    assert gain[-1] > 0.30 and np.all(np.diff(gain[1:]) > 0), gain
    assert fixed[0] > 1.5 * plain[0] and fixed[-1] < 0.9 * plain[-1], "drafting pays at low load and costs at high load"
    budgets = [row["budget"] for row in ours]
    assert budgets[0] > 5.9 and np.all(np.diff(budgets) <= 0) and budgets[-1] < 2.0, budgets
    bypassed = cell(drafter, scheduled, Bypass(Asynchronous()), 512)["throughput"]
    assert bypassed > 0.95 * plain[-1], "who need not draft loses little to plain decoding"


def test_the_gain_needs_schedulers_that_choose_since_a_fixed_short_block_wins_on_one_side_only():
    drafter, costs = SyntheticTrace([0.75, 0.7, 0.65, 0.62, 0.6], 0.8, 1.0), Costs([1, 512], [0.001, 0.003])
    few, many = (
        {name: cell(drafter, costs, scheduler, users)["throughput"] for name, scheduler in choices.items()}
        for users in (4, 512)
        for choices in [{"short": Fixed(1), "long": Fixed(), "chosen": Asynchronous()}]
    )
    assert few["long"] > 1.1 * few["short"] and many["short"] > 1.1 * many["long"]
    assert few["chosen"] > 0.99 * few["long"] and many["chosen"] > 0.99 * many["short"]


def test_an_open_loop_that_is_not_full_serves_what_arrives():
    generator = np.random.default_rng(0)
    traffic = Traffic(answer_lengths(600, 30.0, 0.5, generator), poisson(600, 4.0, generator))
    simulation = Simulation(SyntheticTrace([0.8, 0.7]), staircase(2048, 0.02, 128, 16), Costs([1], [0.001], 0.005), 512)
    figures = summarise(*simulation.run(traffic, EarlyStop(), 0))
    assert figures["throughput"] == pytest.approx(4.0 * 29, rel=0.1)
