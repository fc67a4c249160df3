"""Warm-up and cosine decay at the steps where their values are known; settings out of range."""

import math

import pytest
import torch

from draftlab.training.optim import OptimizerSettings, lr_factor


def test_the_rate_rises_linearly_for_the_warm_up_then_falls_as_a_cosine_to_0():
    factors = [lr_factor(step, 100, 0.04) for step in range(101)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0] and factors[4] == 1.0
    assert factors[52] == pytest.approx(0.5) and factors[100] == pytest.approx(0.0)
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[28] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


@pytest.mark.parametrize(("total", "warmup"), [(1, 0.04), (3, 0.0), (2, 0.9)])
def test_short_trainings_have_positive_rates_that_never_exceed_the_peak(total, warmup):
    assert all(0 < lr_factor(step, total, warmup) <= 1 for step in range(total))


def test_the_schedule_moves_the_optimisers_rate():
    settings = OptimizerSettings(lr=2.0, warmup=0.5)
    optimizer = settings.build([torch.nn.Parameter(torch.zeros(1))])
    schedule = settings.schedule(optimizer, 4)
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([1.0, 2.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", 0.0), ("lr", float("nan")), ("warmup", 1.0), ("warmup", -0.1), ("weight_decay", -1.0), ("beta2", 1.0)],
)
def test_a_setting_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"trainer\.optimizer\.{name}"):
        OptimizerSettings(**({"lr": 1e-3} | {name: value}))
