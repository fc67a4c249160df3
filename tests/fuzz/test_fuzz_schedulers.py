"""Any confidences and any SPS table: what a scheduler sends is a prefix of every block, what the loop twin sends, and, where the
scheduler says that it is lossless, independent of everything that knows a token which was not sent."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from draftlab.scheduling import Asynchronous, Bypass, EarlyStop, Fixed, GlobalSearch, Threshold, Throughput

chances = st.sampled_from([0.0, 0.1, 0.5, 0.5, 0.9, 0.99, 1.0]) | st.floats(0, 1)


few, some = st.integers(0, 5), st.integers(1, 5)


@st.composite
def confidences(draw, rows=few, gamma=some):
    """Conditional confidences [R, G]."""
    shape = draw(rows), draw(gamma)
    values = draw(st.lists(chances, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    return np.array(values, dtype=np.float64).reshape(shape)


@st.composite
def tables(draw):
    """A measured table: any sizes, any speeds, bumps included, shorter or longer than what is asked of it."""
    tokens = sorted(draw(st.sets(st.integers(1, 40), min_size=2, max_size=7)))
    speeds = draw(st.lists(st.floats(0.01, 100), min_size=len(tokens), max_size=len(tokens)))
    table = Throughput(tokens, speeds, draw(st.sampled_from(["floor", "linear"])))
    return table.plus(draw(st.sampled_from([0.0, 0.0, 0.3, 10.0])))


STATELESS = [
    *(Fixed(), Fixed(1), Threshold(0.0), Threshold(0.5), Threshold(1.0)),
    *(EarlyStop(), EarlyStop(smooth=True), GlobalSearch()),
]


def label(scheduler) -> str:
    return f"{type(scheduler).__name__}-{getattr(scheduler, 'smooth', '')}{getattr(scheduler, 'value', '')}"


def admitted(confidence, count):
    """Prefix lengths that admitting the ``count`` best candidates one by one gives: at each step the best next token of a row."""
    rows, gamma = confidence.shape
    lengths, survived = [0] * rows, [1.0] * rows
    for _ in range(count):
        nexts = [(survived[r] * confidence[r, lengths[r]], -r) for r in range(rows) if lengths[r] < gamma]
        value, row = max(nexts)
        lengths[-row] += 1
        survived[-row] = value
    return lengths


def expected_throughput(confidence, lengths, table) -> float:
    """Θ of ``lengths``, request by request."""
    committed = 0.0
    for row, length in enumerate(lengths):
        committed += 1.0 + sum(float(np.prod(confidence[row, : j + 1])) for j in range(length))
    return committed * float(table(len(lengths) + sum(lengths)))


def curve(confidence, table):
    """Θ of the first 0, 1, … admitted tokens, and their prefix lengths."""
    steps = [admitted(confidence, count) for count in range(confidence.size + 1)]
    return [expected_throughput(confidence, lengths, table) for lengths in steps], steps


@pytest.mark.parametrize("scheduler", STATELESS, ids=label)
@given(confidence=confidences(), table=tables())
def test_lengths_are_whole_numbers_from_0_to_gamma_one_a_request(scheduler, confidence, table):
    lengths = scheduler(confidence, table)
    assert lengths.dtype == np.int64 and lengths.shape == confidence.shape[:1]
    assert ((lengths >= 0) & (lengths <= confidence.shape[1])).all()
    again = scheduler(confidence, table)
    assert (lengths == again).all(), "a scheduler without memory decides alike each time"


@given(confidence=confidences(), value=st.floats(0, 1))
def test_a_threshold_sends_each_block_up_to_its_first_doubt(confidence, value):
    expected = [next((j for j, c in enumerate(row) if c < value), len(row)) for row in confidence]
    assert Threshold(value)(confidence).tolist() == expected


@given(confidence=confidences(rows=some), table=tables())
def test_early_stop_is_algorithm_1(confidence, table):
    """Up to rounding: the twin adds up in another order, so a step that neither gains nor loses may be taken or not."""
    chosen = EarlyStop()(confidence, table).tolist()
    values, steps = curve(confidence, table)
    stop = steps.index(chosen)
    near = 1e-9 * max(values)
    assert all(values[k + 1] > values[k] - near for k in range(stop)), "every admitted token paid"
    assert stop == confidence.size or values[stop + 1] <= values[stop] + near, "and the next one would not have"


@given(confidence=confidences(rows=some), table=tables())
def test_global_search_and_early_stop_over_the_convex_table_reach_the_largest_throughput(confidence, table):
    values, steps = curve(confidence, table)
    chosen = GlobalSearch()(confidence, table).tolist()
    assert chosen in steps and expected_throughput(confidence, chosen, table) == pytest.approx(max(values))
    convex = table.convex()
    smooth = EarlyStop(smooth=True)(confidence, table).tolist()
    if table.batch_tokens[-1] >= len(confidence) + confidence.size:  # behind the last entry more tokens cost nothing
        assert expected_throughput(confidence, smooth, convex) == pytest.approx(max(curve(confidence, convex)[0]))


@given(table=tables(), tokens=st.integers(0, 60))
def test_the_convex_table_is_convex_and_never_slower_to_reach_than_the_measured_one(table, tokens):
    convex = table.convex()
    sizes = np.arange(1, table.batch_tokens[-1] + 1)
    seconds = 1.0 / convex.passes(sizes)
    assert (np.diff(seconds, 2) >= -1e-9 * seconds.max()).all()
    measured = sizes if table.look_up == "floor" else table.batch_tokens
    assert (1.0 / convex.passes(measured) <= 1.0 / table.passes(measured) * (1 + 1e-9)).all()
    assert table(tokens) == pytest.approx(float(table.upto(tokens)[tokens]))


@given(
    steps=st.lists(confidences(rows=st.integers(0, 4), gamma=st.just(3)), min_size=1, max_size=8),
    table=tables(),
    lag=st.integers(1, 3),
    first=st.none() | st.integers(0, 5),
)
def test_the_asynchronous_budget_is_what_was_best_lag_steps_ago_and_its_order_is_todays(steps, table, lag, first):
    scheduler, remembered = Asynchronous(lag, first), deque(maxlen=lag)
    for confidence in steps:
        rows = len(confidence)
        per_request = remembered[0] if len(remembered) == lag else (3 if first is None else first)
        lengths = scheduler(confidence, table)
        assert lengths.tolist() == admitted(confidence, min(round(per_request * rows), confidence.size))
        if rows:
            remembered.append(GlobalSearch()(confidence, table).sum() / rows)


LOSSLESS = [scheduler for scheduler in STATELESS if scheduler.is_lossless]


def informed_by_unsent(scheduler, confidence, table, others) -> bool:
    """Whether lengths change with confidences that know a token which they do not send: c_j (from 0) knows tokens below j."""
    lengths = scheduler(confidence, table)
    changed = confidence.copy()
    for row, length in enumerate(lengths):
        changed[row, length + 1 :] = others[row, length + 1 :]
    return scheduler(changed, table).tolist() != lengths.tolist()


@st.composite
def worlds(draw):
    """Confidences, and what they might have been had the unsent tokens been others."""
    confidence = draw(confidences(rows=st.integers(1, 4)))
    rows, gamma = confidence.shape
    return confidence, draw(tables()), draw(confidences(rows=st.just(rows), gamma=st.just(gamma)))


@pytest.mark.parametrize("scheduler", LOSSLESS, ids=label)
@given(worlds())
def test_a_lossless_scheduler_does_not_know_the_tokens_that_it_does_not_send(scheduler, world):
    assert not informed_by_unsent(scheduler, world[0], world[1], world[2])


@given(worlds(), st.integers(1, 2))
def test_nor_does_the_asynchronous_one(world, lag):
    confidence, table, others = world

    def decide(today, table):
        scheduler = Asynchronous(lag)
        for _ in range(lag):
            scheduler(others, table)
        return scheduler(today, table)

    assert not informed_by_unsent(decide, confidence, table, others)


def test_global_search_does_know_them():
    """The property above tells lossless from lossy: it finds the counterexample of method 5."""
    staircase, blocks = Throughput([1, 2, 3], [1.0, 0.5, 0.45]), confidences(rows=st.just(1), gamma=st.just(2))
    found = find(
        st.tuples(blocks, blocks),
        lambda pair: informed_by_unsent(GlobalSearch(), pair[0], staircase, pair[1]),
        settings=settings(max_examples=5000, derandomize=True, phases=[Phase.generate]),
    )
    assert found and not GlobalSearch.is_lossless


@given(
    steps=st.lists(confidences(rows=st.integers(0, 3), gamma=st.just(2)), min_size=1, max_size=12),
    table=tables(),
    patience=st.integers(1, 3),
    rest=st.integers(1, 3),
)
def test_a_bypass_hands_its_inner_lengths_on_and_its_rests_are_as_long_as_told(steps, table, patience, rest):
    """Whether it drafts is known before anything of the step is, which makes it as lossless as what it is around."""
    scheduler, resting = Bypass(EarlyStop(), patience=patience, rest=rest), 0
    for confidence in steps:
        length = scheduler.draft_length(2)
        if length < 2:
            resting += 1
            assert resting <= rest
        else:
            assert resting in (0, rest), "a rest ends when it was told to"
            resting = 0
        if length:
            drafted = confidence[:, :length]
            assert scheduler(drafted, table).tolist() == EarlyStop()(drafted, table).tolist()


@given(
    confidence=confidences(rows=st.integers(1, 3)),
    bad=st.sampled_from([float("nan"), -0.1, 1.1, float("inf")]),
    at=st.integers(0, 99),
)
def test_confidences_that_are_none_are_refused(confidence, bad, at):
    confidence.flat[at % confidence.size] = bad
    for scheduler in (Threshold(0.5), EarlyStop(), GlobalSearch(), Asynchronous(), Bypass(EarlyStop())):
        with pytest.raises(ValueError, match=r"finite and lie in \[0, 1\]"):
            scheduler(confidence, Throughput([1, 2], [2.0, 1.0]))
