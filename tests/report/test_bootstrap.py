"""Intervals over prompts, checked by resampling in a loop, by how often they hold the truth, and on single prompts."""

import numpy as np
import pytest

from draftlab.report.bootstrap import ratio, resample_counts


@pytest.fixture
def sums():
    generator = np.random.default_rng(5)
    weight = generator.integers(5, 40, size=(30, 1)).astype(float)
    return np.round(weight * generator.uniform(1.2, 3.0, size=(30, 1))), weight


def test_the_value_is_the_ratio_of_sums_and_not_the_mean_of_the_prompts_ratios(sums):
    numerator, weight = sums
    value = ratio(numerator, weight).value[0]
    assert value == pytest.approx(numerator.sum() / weight.sum())
    assert value != pytest.approx((numerator / weight).mean(), rel=1e-3)


def test_the_interval_equals_drawing_whole_prompts_in_a_loop(sums):
    numerator, weight = sums
    estimate = ratio(numerator, weight)
    generator = np.random.default_rng(11)
    draws = [generator.integers(0, len(weight), size=len(weight)) for _ in range(4000)]
    slow = np.quantile([numerator[draw].sum() / weight[draw].sum() for draw in draws], [0.025, 0.975])
    width = slow[1] - slow[0]
    assert estimate.low[0] == pytest.approx(slow[0], abs=0.1 * width)
    assert estimate.high[0] == pytest.approx(slow[1], abs=0.1 * width)


def test_rounds_of_one_prompt_count_as_one_draw():
    """Twice the rounds of the same prompts must not narrow the interval; twice the prompts must."""
    generator = np.random.default_rng(0)
    numerator = generator.normal(2.0, 0.5, size=(40, 1)) * 10
    weight = np.full((40, 1), 10.0)
    once, longer = ratio(numerator, weight), ratio(2 * numerator, 2 * weight)
    more = ratio(np.tile(numerator, (4, 1)), np.tile(weight, (4, 1)))
    width = [float(each.high[0] - each.low[0]) for each in (once, longer, more)]
    assert width[1] == pytest.approx(width[0])
    assert width[2] == pytest.approx(width[0] / 2, rel=0.15)


def test_every_resample_draws_as_many_prompts_as_there_are_and_the_seed_fixes_them():
    counts = resample_counts(17, resamples=50, seed=3)
    assert counts.shape == (50, 17)
    assert (counts.sum(axis=1) == 17).all()
    assert np.array_equal(counts, resample_counts(17, resamples=50, seed=3))
    assert not np.array_equal(counts, resample_counts(17, resamples=50, seed=4))


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        weight = generator.integers(10, 30, size=(60, 1)).astype(float)
        level = generator.normal(2.0, 0.3, size=(60, 1))
        estimate = ratio(level * weight, weight, resamples=400)
        inside += bool(estimate.low[0] <= 2.0 <= estimate.high[0])
    assert 0.88 <= inside / 200 <= 0.99


def test_one_prompt_has_a_value_but_no_interval():
    estimate = ratio(np.array([[4.0]]), np.array([[2.0]]))
    assert estimate.value[0] == 2.0
    assert np.isnan(estimate.low[0]) and np.isnan(estimate.high[0])


def test_what_was_never_counted_is_nan_and_leaves_other_columns_alone():
    estimate = ratio(np.array([[2.0, 0.0], [4.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert estimate.value[0] == 3.0 and np.isnan(estimate.value[1])
    assert not np.isnan(estimate.low[0]) and np.isnan(estimate.low[1])
