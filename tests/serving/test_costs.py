"""Cost tables: generated ones against their formula, measured ones against the steps they come from."""

from __future__ import annotations

import numpy as np
import pytest

from draftlab.scheduling import Throughput
from draftlab.serving.costs import Costs, measured_costs, measured_table, staircase
from draftlab.serving.records import Served, Step


def test_a_staircase_is_its_formula_at_every_size():
    table = staircase(1000, base=0.02, saturation=256, tile=64, jag=0.1)
    for tokens in (1, 63, 64, 65, 256, 257, 321, 700, 1000):
        tiles = -(-tokens // 64)
        expected = 0.02 * max(1.0, tiles * 64 / 256) * (1 + 0.1 * (tiles % 2))
        assert 1.0 / float(table(tokens)) == pytest.approx(expected), tokens
    assert table.bumps and not staircase(1000, 0.02, 256).bumps


@pytest.mark.parametrize(
    "settings",
    [
        {"base": 0.0},
        {"saturation": 0},
        {"tile": 0},
        {"tile": 100},
        {"jag": 1.0},
    ],
)
def test_a_staircase_that_cannot_be_is_refused(settings):
    with pytest.raises(ValueError, match="a staircase needs"):
        staircase(**{"limit": 100, "base": 0.02, "saturation": 50, "tile": 10, **settings})


@pytest.mark.parametrize(
    ("tokens", "values", "message"),
    [
        ([4], [10.0], "at least two points"),
        ([4, 2], [10.0, 9.0], "increasing"),
        ([1, 2], [10.0, -9.0], "positive"),
    ],
)
def test_an_sps_table_of_one_point_unsorted_or_negative_is_refused(tokens, values, message):
    with pytest.raises(ValueError, match=message):
        Throughput(tokens, values)


def test_drafting_is_interpolated_over_requests_and_costs_nothing_without_any():
    seconds = Costs([1, 5], [0.1, 0.5]).draft_upto(7)
    assert seconds.tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5])


def test_part_of_a_block_takes_the_share_of_drafting_that_goes_with_tokens():
    assert Costs(draft_slots=0.5).of_part(1, 5) == pytest.approx(0.6) and Costs(draft_slots=1.0).of_part(2, 5) == 0.4
    assert Costs().of_part(1, 5) == 1.0 and Costs().of_part(0, 5) == 0.0


@pytest.mark.parametrize(
    "settings",
    [
        {"draft_requests": [], "draft_seconds": []},
        {"draft_requests": [2, 1], "draft_seconds": [0.1, 0.2]},
        {"draft_requests": [1, 2], "draft_seconds": [0.1]},
        {"draft_seconds": [-0.1]},
        {"prefill": -1.0},
        {"schedule": float("nan")},
        {"between": -1.0},
        {"draft_slots": 1.5},
    ],
)
def test_costs_that_cannot_be_are_refused(settings):
    with pytest.raises(ValueError, match="got"):
        Costs(**settings)


def step(requests, verified, draft, verify, prefill=0.0, schedule=0.0, drafted=None, start=0.0):
    drafted = 3 * requests if drafted is None else drafted
    return Step(start, prefill, draft, schedule, verify, requests, drafted, verified, 0, requests)


def served(count):
    return [Served(i, "chat", 0.0, 0.0, 0.1, 1.0, 5) for i in range(count)]


def test_costs_and_table_of_steps_are_their_means():
    steps = [
        step(2, 4, 0.2, 1.0, prefill=3.0, schedule=0.06),
        step(2, 4, 0.4, 2.0, schedule=0.06),
        step(4, 0, 0.0, 4.0, prefill=1.0, drafted=0),
        step(1, 2, 0.1, 0.5, schedule=0.03),
    ]
    costs = measured_costs(steps, served(4))
    assert costs.prefill == pytest.approx(1.0) and costs.schedule == pytest.approx(0.15 / 15)
    assert costs.draft_upto(2).tolist() == pytest.approx([0.0, 0.1, 0.3])
    table = measured_table(steps)
    assert (1.0 / table([3, 4, 6])).tolist() == pytest.approx([0.5, 4.0, 1.5])


def test_what_lies_between_steps_is_their_median_gap_so_that_one_wait_for_an_arrival_does_not_count():
    starts = [0.0, 1.25, 2.5, 103.0, 104.25]
    steps = [step(1, 2, 0.5, 0.5, start=start) for start in starts]
    assert measured_costs(steps, served(1)).between == pytest.approx(0.25)
    assert measured_costs(steps[:1], served(1)).between == 0.0


def test_many_sizes_are_joined_but_keep_the_total_time():
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 2000, 5000)
    steps = [step(int(size), 0, 0.0, 0.001 * int(size)) for size in sizes]
    table = measured_table(steps)
    assert len(table.batch_tokens) <= 49
    assert (1.0 / table(sizes)).sum() == pytest.approx(0.001 * sizes.sum(), rel=0.02)


def test_passes_of_one_size_make_a_flat_table_and_no_steps_none():
    table = measured_table([step(2, 4, 0.1, 0.5)] * 3)
    assert (1.0 / table([1, 6, 100])).tolist() == pytest.approx([0.5] * 3)
    with pytest.raises(ValueError, match="at least one step"):
        measured_table([])
    with pytest.raises(ValueError, match="got 0 and 1"):
        measured_costs([], served(1))
