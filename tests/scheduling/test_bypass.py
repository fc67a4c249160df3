"""Bypass: gains equal a loop over rows and lengths; it drafts what pays, rests otherwise, and looks again."""

from __future__ import annotations

import numpy as np
import pytest

from draftlab.scheduling import Bypass, EarlyStop, Fixed, Threshold, Throughput
from draftlab.scheduling.bypass import gains

LINEAR = Throughput([1, 2, 3], [1.0, 1 / 1.2, 1 / 1.4])  # a pass of 1 s, 0.2 s more a token
ONE_BLOCK = {"patience": 1, "memory": 32}


def drafted_lengths(scheduler, table, steps, per_token=0.0):
    """What is drafted in each of ``steps`` (survivals of one row); drafting a token takes ``per_token`` s, on top of the
    table's own fixed seconds."""
    drafted = []
    for confidence in steps:
        length = scheduler.draft_length(len(confidence))
        drafted.append(length)
        if length:
            shown = table.plus(per_token * length, per_token)
            scheduler(np.array([confidence[:length]]), shown)
    return drafted


def slow_gains(confidence, lengths, table):
    """The definition, one row and one token at a time."""
    rows, gamma = confidence.shape
    found = [0.0]
    for drafted in range(1, gamma + 1):
        expected, verified = float(rows), 0
        for row in range(rows):
            survival = 1.0
            for token in range(min(int(lengths[row]), drafted)):
                survival *= confidence[row, token]
                expected, verified = expected + survival, verified + 1
        seconds = 1 / float(table.passes(rows + verified)) + table.fixed_seconds
        seconds -= (gamma - drafted) * table.token_seconds
        found.append((expected - rows * float(table.passes(rows)) * seconds) / rows)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_gains_are_those_of_a_loop_over_rows_and_lengths(seed):
    generator = np.random.default_rng(seed)
    confidence = generator.random((4, 5))
    lengths = generator.integers(0, 6, 4)
    table = Throughput(np.arange(1, 30), 1.0 / (1 + 0.05 * np.arange(29)), "linear").plus(0.4, 0.05)
    assert gains(confidence, lengths, table).tolist() == pytest.approx(slow_gains(confidence, lengths, table))


def test_without_a_table_the_gain_is_what_is_expected_of_the_verified_tokens():
    found = gains(np.array([[0.5, 0.5], [0.8, 0.9]]), np.array([1, 0]), None)
    assert found.tolist() == pytest.approx([0.0, 0.25, 0.25])


def test_it_stops_drafting_when_nothing_is_verified_and_looks_again_after_a_rest():
    steep = Throughput([1, 2, 3], [1.0, 0.1, 0.1])
    scheduler = Bypass(EarlyStop(), patience=2, rest=3)
    assert drafted_lengths(scheduler, steep, [[0.5, 0.5]] * 10) == [2, 2, 0, 0, 0, 2, 0, 0, 0, 2]


def test_patience_counts_blocks_so_that_many_users_decide_at_once():
    steep, scheduler = Throughput([1, 9], [1.0, 0.1]), Bypass(EarlyStop(), patience=8, rest=3)
    assert scheduler.draft_length(2) == 2
    scheduler(np.full((8, 2), 0.1), steep)
    assert scheduler.draft_length(2) == 0


def test_it_weighs_the_time_of_drafting_over_many_steps():
    """Survival 0.8 gains (1.8 - 1.2 - d) plain steps where drafting takes d; 0.1 admits nothing and loses d."""
    mixed = [[0.8, 0.0], [0.1, 0.0], [0.1, 0.0]] * 20
    settings = {"patience": 3, "rest": 16, "longest": 256}
    cheap = drafted_lengths(Bypass(EarlyStop(), **settings), LINEAR.plus(0.15), mixed)
    dear = drafted_lengths(Bypass(EarlyStop(), **settings), LINEAR.plus(0.3), mixed)
    assert min(cheap) >= 1, "a third of the steps gains 0.45, two lose 0.15"
    assert dear.count(0) > 40, "a third gains 0.3, two lose 0.3"


def test_it_drafts_as_many_tokens_as_pay_where_each_costs():
    """First tokens survive with 0.9, second ones with 0.9 · 0.3: they pay while a token more takes less than that gain."""
    steps = [[0.9, 0.3, 0.1]] * 60
    flat = Throughput([1, 4], [1.0, 0.999], "linear")
    settings = {"patience": 4, "rest": 8, "longest": 64}
    for per_token, expected in ((0.0, 3), (0.1, 2), (0.5, 1), (1.0, 0)):
        drafted = drafted_lengths(Bypass(Fixed(), **settings), flat, steps, per_token)
        assert drafted[:4] == [3] * 4, "whole blocks at first"
        values, counts = np.unique(drafted, return_counts=True)
        assert values[counts.argmax()] == expected, per_token


def test_a_rest_with_a_few_tokens_goes_down_to_none_when_they_pay_no_more():
    flat = Throughput([1, 4], [1.0, 0.999], "linear")
    scheduler = Bypass(Fixed(), patience=2, rest=50, memory=2)
    before = drafted_lengths(scheduler, flat, [[0.9, 0.1]] * 4, 0.3)
    assert before == [2, 2, 1, 1]
    after = drafted_lengths(scheduler, flat, [[0.05, 0.0]] * 8, 0.3)
    assert after[0] == 1 and after[-1] == 0


def test_after_rests_that_grew_it_drafts_again_when_it_pays_and_rests_shortly_at_first():
    good, bad = [0.9, 0.9], [0.05, 0.0]
    bypass, table = Bypass(EarlyStop(), patience=2, rest=4, longest=64), LINEAR.plus(0.3)
    before = drafted_lengths(bypass, table, [bad] * 200)
    assert np.count_nonzero(before) <= 2 + 6, "two tries, then rests of 4, 8, 16, 32, 64, 64"
    after = drafted_lengths(bypass, table, [good] * 200)
    assert all(after[64 + 1 :]) and next(i for i, length in enumerate(after) if length) <= 64
    again = drafted_lengths(bypass, table, [bad] * 80)
    first = again.index(0)
    assert again[first : first + 6] == [0, 0, 0, 0, 2, 0], "the first rest is short again"


def test_a_shorter_inner_length_is_the_whole_block():
    scheduler = Bypass(Fixed(1), **ONE_BLOCK)
    assert scheduler.draft_length(3) == 1


def test_what_an_inner_scheduler_says_of_itself_holds():
    scheduler = Bypass(Threshold(0.5))
    assert scheduler.is_lossless and scheduler.reads_confidence and not scheduler.reads_table


def test_earlier_steps_are_forgotten_on_reset():
    steep, scheduler = Throughput([1, 2, 3], [1.0, 0.1, 0.1]), Bypass(EarlyStop(), patience=1, rest=9)
    first = drafted_lengths(scheduler, steep, [[0.5, 0.5]] * 5)
    assert scheduler.draft_length(2) == 0
    scheduler.reset()
    assert drafted_lengths(scheduler, steep, [[0.5, 0.5]] * 5) == first


@pytest.mark.parametrize("name", ["patience", "rest", "memory"])
def test_numbers_below_one_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"schedule.{name} must be at least 1"):
        Bypass(EarlyStop(), **{name: 0})


def test_a_longest_rest_below_the_first_is_refused():
    with pytest.raises(ValueError, match=r"schedule\.longest"):
        Bypass(EarlyStop(), rest=16, longest=8)
