"""Simulated experiments: what a load is, what counts of a cell, and the rows that come out."""

from __future__ import annotations

import numpy as np
import pytest

from draftlab.scheduling import Asynchronous, Fixed
from draftlab.serving.costs import Costs, staircase
from draftlab.serving.simulated import Line, TrafficPlan, at_load, simulate_load
from draftlab.serving.simulator import Simulation
from draftlab.serving.traces import NoDrafter, SyntheticTrace

TABLE = staircase(1024, 0.02, 64, 16)
LINES = [
    Line("none", "fixed", NoDrafter(), Costs(), Fixed()),
    Line("dspark", "asynchronous", SyntheticTrace([0.8, 0.7]), Costs([1], [0.001]), Asynchronous()),
]


def test_the_same_load_and_seed_serve_every_line_the_same_requests():
    load = TrafficPlan("bursts", requests=50)
    first, second, other = load.traffic(2.0, 0), load.traffic(2.0, 0), load.traffic(2.0, 1)
    assert np.array_equal(first.arrival, second.arrival) and np.array_equal(first.tokens, second.tokens)
    assert not np.array_equal(first.tokens, other.tokens)


def test_a_load_is_users_a_rate_a_batch_or_how_fast_a_trace_is_replayed(tmp_path):
    assert TrafficPlan("closed", requests=5, rounds=4).traffic(8, 0).users == 8
    assert len(TrafficPlan("closed", requests=5, rounds=4).traffic(8, 0)) == 32
    assert TrafficPlan("poisson", requests=2000).traffic(4.0, 0).arrival[-1] == pytest.approx(500, rel=0.1)
    batches = TrafficPlan("rollouts", requests=5, rounds=2, period=9.0).traffic(4, 0)
    assert batches.arrival.tolist() == [0.0] * 4 + [9.0] * 4
    path = tmp_path / "trace.csv"
    path.write_text("arrival,tokens,domain\n0,5,chat\n6,7,chat\n", encoding="utf-8")
    assert TrafficPlan(str(path)).traffic(2.0, 0).arrival.tolist() == [0.0, 3.0]
    assert [TrafficPlan(kind).column for kind in ("closed", "poisson", "rollouts", str(path))] == [
        "users",
        "rate",
        "batch",
        "speedup",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "wild"}, "traffic must be one of closed, poisson, bursts, rollouts or a .csv or .jsonl"),
        ({"requests": 0}, "requests"),
        ({"warm_up": 1.0}, "warm_up"),
        ({"capacity": 0}, "capacity"),
        ({"kind": "bursts", "burstiness": 0.1}, "burstiness"),
        ({"kind": "rollouts", "period": 0.0}, "period"),
        ({"kind": "absent.csv"}, "absent.csv"),
    ],
)
def test_a_load_that_cannot_be_is_refused_at_construction(settings, message):
    with pytest.raises(ValueError, match=message):
        TrafficPlan(**settings)


def test_what_comes_after_the_last_join_does_not_count_and_rollouts_count_to_their_end():
    load = TrafficPlan("closed", requests=60, mean_tokens=20, spread=0.3)
    run = Simulation(NoDrafter(), TABLE, Costs(), 8).run(load.traffic(8, 0), Fixed(), 0)
    steps, served, warm_up = at_load(*run, load)
    last = max(request.joined for request in run[1])
    full = [step.requests for step in steps[:-1]]
    assert set(full) == {8} and steps[-1].start <= last < run[0][-1].start
    assert len(served) == sum(request.finished <= last for request in run[1]) < 60
    assert warm_up == pytest.approx(0.1 * steps[-1].start)
    assert len(at_load(*run, TrafficPlan("rollouts"))[0]) == len(run[0])


def test_every_line_is_simulated_at_every_load(tmp_path):
    load = TrafficPlan("closed", requests=40, mean_tokens=20)
    rows = simulate_load(LINES, TABLE, load, [1, 8], [0, 1], tmp_path)
    assert len(rows) == 8 and rows[["drafter", "users", "seed"]].iloc[0].tolist() == ["none", 1, 0]
    none = rows[rows["drafter"] == "none"]
    assert none["user_speed_mean"].tolist() == pytest.approx([50.0] * 4) and none["budget"].tolist() == [1.0] * 4
    assert (rows[rows["drafter"] == "dspark"]["user_speed_mean"] > 80).all()


def test_lines_of_one_name_no_loads_and_a_load_of_nothing_are_refused(tmp_path):
    load = TrafficPlan("closed", requests=40)
    for lines, loads, seeds in ((LINES[:1] * 2, [1], [0]), (LINES, [], [0]), (LINES, [1], []), ([], [1], [0])):
        with pytest.raises(ValueError, match="a simulation needs lines"):
            simulate_load(lines, TABLE, load, loads, seeds, tmp_path)
    with pytest.raises(ValueError, match="loads must be positive"):
        simulate_load(LINES, TABLE, load, [0], [0], tmp_path)
