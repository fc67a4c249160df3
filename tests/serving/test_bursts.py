"""Regret of stale budgets: counted by hand, none for the oracle, and words that follow from numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from draftlab.scheduling import Asynchronous, EarlyStop, Fixed, GlobalSearch, Throughput
from draftlab.serving.bursts import CHOICE, EARLY_STOP, ORACLE, SMOOTH, SPEED, Watched, recommendation, regret_table
from draftlab.serving.costs import Costs, staircase
from draftlab.serving.simulated import BurstStudy, Drafter, TrafficPlan, simulate_bursts
from draftlab.serving.traces import SyntheticTrace

TABLE = Throughput([1, 2, 3], [1.0, 0.8, 0.4])


def test_choice_regret_is_what_counting_by_hand_gives():
    """One request, a = (0.5, 0.25): 1 token at 1/s, 1.5 at 0.8/s, 1.75 at 0.4/s; the best rate is 1.2."""
    watched, confidence = Watched(Fixed(2)), np.array([[0.5, 0.5]])
    assert watched(confidence, TABLE).tolist() == [2] and np.isnan(Watched(Fixed()).regret)
    assert watched.regret == pytest.approx(1 - 1.75 / (1.2 / 0.4))
    watched.inner = Fixed(1)
    watched(confidence, TABLE)
    assert watched.regret == pytest.approx(1 - (1.75 + 1.5) / (1.2 / 0.4 + 1.2 / 0.8))
    watched.reset()
    assert np.isnan(watched.regret)


def test_the_oracle_regrets_nothing_and_nobody_gains_on_it():
    generator = np.random.default_rng(0)
    table = staircase(256, 0.02, 16, 8, 0.1)
    for inner, least in ((GlobalSearch(), 0.0), (EarlyStop(), 0.01), (Asynchronous(2), 0.01), (Fixed(), 0.01)):
        watched = Watched(inner)
        for _ in range(60):
            watched(generator.uniform(0.2, 0.95, (int(generator.integers(1, 40)), 5)), table)
        assert watched.regret == pytest.approx(0.0, abs=1e-12) if least == 0 else watched.regret > least


def study(tmp_path, lags=(1, 16), burstiness=(1.0, 100.0)):
    trace = SyntheticTrace([0.85, 0.8, 0.77], 0.8, 1.0)
    load = TrafficPlan("bursts", requests=700, mean_tokens=40, share=0.1, dwell=0.2, capacity=512)
    drafter = Drafter(trace, Costs([1, 512], [0.001, 0.003], 0.001))
    return simulate_bursts(
        drafter, staircase(4096, 0.02, 64, 16), load, BurstStudy(burstiness, lags, [0], 15.0), tmp_path
    )


def test_stale_budgets_lose_more_under_burstier_traffic(tmp_path):
    table = regret_table(study(tmp_path))
    grid = table[table["lag"].notna()].pivot(index="burstiness", columns="lag", values=SPEED)
    assert grid.loc[100.0, 16.0] > grid.loc[1.0, 16.0] + 0.02 and grid.loc[100.0, 16.0] > grid.loc[100.0, 1.0] + 0.02
    choice = table[table["lag"].notna()].pivot(index="burstiness", columns="lag", values=CHOICE)
    assert (choice.loc[100.0] > choice.loc[1.0] + 0.02).all() and choice.loc[100.0, 16.0] > choice.loc[100.0, 1.0]
    assert set(table["scheduler"]) == {EARLY_STOP, SMOOTH, "lag_1", "lag_16"}, (
        "the oracle is what others are held against"
    )


def test_a_regret_without_an_oracle_is_refused(tmp_path):
    rows = study(tmp_path, lags=(1,), burstiness=(2.0,))
    with pytest.raises(ValueError, match=r"no oracle .* \[\(2.0, 0\)\]"):
        regret_table(rows[rows["scheduler"] != ORACLE])


@pytest.mark.parametrize("settings", [{"lags": [0]}, {"lags": []}, {"burstiness": []}, {"seeds": []}])
def test_a_study_that_cannot_be_is_refused_before_anything_runs(settings):
    with pytest.raises(ValueError, match="lag"):
        BurstStudy(**{"burstiness": [1.0], "lags": [1], "seeds": [0], "rate": 1.0, **settings})


def table_of(grid, early=None):
    rows = [
        {"burstiness": level, "scheduler": f"lag_{lag}", "lag": float(lag), SPEED: value}
        for level, values in grid.items()
        for lag, value in values.items()
    ]
    rows += [
        {"burstiness": level, "scheduler": EARLY_STOP, "lag": float("nan"), SPEED: value}
        for level, value in (early or {}).items()
    ]
    return pd.DataFrame(rows)


def test_the_recommendation_names_the_largest_lag_that_loses_little_and_where_the_next_one_fails():
    words = " ".join(
        recommendation(
            table_of({1.0: {1: 0.0, 2: 0.004, 4: 0.008}, 50.0: {1: 0.002, 2: 0.009, 4: 0.05}}, {1.0: 0.1, 50.0: 0.2})
        )
    )
    assert "A lag of up to 2 steps stays within 1.0%" in words and "a lag of 4 loses 5.0% at worst" in words
    assert "from burstiness 50 on" in words and "keep the lag at 2 or below" in words
    assert "At a lag of 4 the regret goes from 0.8% at burstiness 1 to 5.0% at 50." in words
    assert "loses 10.0% to 20.0%, at least as much as a lag of 1 or 2 or 4 everywhere." in words


def test_the_recommendation_follows_the_numbers_where_all_or_no_lags_will_do():
    fine = recommendation(table_of({1.0: {1: 0.0, 2: 0.001}}), tolerance=0.01)[0]
    assert "Every lag up to 2 steps stays within 1.0%" in fine
    strict = recommendation(table_of({1.0: {1: 0.0}, 9.0: {1: 0.03}}), tolerance=0.01)[0]
    assert "Even a lag of 1 loses more than 1.0% of the speed from burstiness 9 on" in strict
    early = recommendation(table_of({1.0: {1: 0.02, 2: 0.03}}, {1.0: 0.01}))
    assert early[-1] == "The least regret at worst, of all that are lossless, has early stop: 1.0%."
    assert early[-2] == "Algorithm 1 (early stop) loses 1.0% to 1.0%, less than a lag of 1 or 2 everywhere."
    mixed = recommendation(table_of({1.0: {1: 0.02, 2: 0.03}}, {1.0: 0.025}))
    assert "less than a lag of 2 everywhere, at least as much as a lag of 1 everywhere" in mixed[-2]
    assert "has lag 1: 2.0%" in mixed[-1]
    with pytest.raises(ValueError, match="at least one lag"):
        recommendation(table_of({}, {1.0: 0.1}))
