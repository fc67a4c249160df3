"""Warm-up, cosine and the plateau with its linear end at the steps where their values are known; settings out of range."""

import math

import pytest
import torch

from draftlab.training.optim import SCHEDULES, OptimizerSettings


def factors_of(total, steps=None, **settings):
    optimizer = OptimizerSettings(lr=1.0, **settings)
    return [optimizer.lr_factor(step, total) for step in range(total if steps is None else steps)]


def test_the_rate_rises_linearly_for_the_warm_up_then_falls_as_a_cosine_to_0():
    factors = factors_of(100, steps=101, warmup=0.04)
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0] and factors[4] == 1.0
    assert factors[52] == pytest.approx(0.5) and factors[100] == pytest.approx(0.0)
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[28] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_wsd_holds_the_peak_from_the_warm_up_to_its_last_part_and_falls_on_a_line_to_0():
    factors = factors_of(100, steps=103, warmup=0.04, schedule="wsd", decay=0.2)
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0] and factors[4:81] == [1.0] * 77
    assert factors[80:101] == pytest.approx([(100 - step) / 20 for step in range(80, 101)])
    assert factors[99] > 0 and factors[100:] == [0.0] * 3


def test_the_plateau_of_wsd_does_not_depend_on_when_training_ends_and_the_cosine_does():
    """With the same steps of warm-up a longer run starts as the shorter one did: it can be gone on with from there."""
    short, long = (factors_of(total, steps=70, warmup=5 / total, schedule="wsd") for total in (100, 200))
    assert short == long
    short, long = (factors_of(total, steps=70, warmup=5 / total) for total in (100, 200))
    assert short != long


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("total", "warmup"), [(1, 0.04), (3, 0.0), (2, 0.8), (5, 0.5)])
def test_short_trainings_have_positive_rates_that_never_exceed_the_peak(total, warmup, schedule):
    assert all(0 < factor <= 1 for factor in factors_of(total, warmup=warmup, schedule=schedule))


def test_the_schedule_moves_the_optimisers_rate():
    settings = OptimizerSettings(lr=2.0, warmup=0.5)
    optimizer = settings.build([torch.nn.Parameter(torch.zeros(1))])
    schedule = settings.scheduler(optimizer, 4)
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([1.0, 2.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.0),
        ("lr", float("nan")),
        ("warmup", 1.0),
        ("warmup", -0.1),
        ("weight_decay", -1.0),
        ("beta2", 1.0),
        ("schedule", "linear"),
        ("decay", 0.0),
        ("decay", 1.5),
        ("decay", float("nan")),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"trainer\.optimizer\.{name}"):
        OptimizerSettings(**({"lr": 1e-3} | {name: value}))


def test_more_than_all_steps_for_the_warm_up_and_the_fall_of_wsd_are_refused():
    with pytest.raises(ValueError, match=r"decay and trainer\.optimizer\.warmup .* must not exceed 1 together"):
        OptimizerSettings(lr=1e-3, warmup=0.5, schedule="wsd", decay=0.6)
    OptimizerSettings(lr=1e-3, warmup=0.5, decay=0.6)  # the cosine has no such share
