"""The replayed threshold is the scheduler's, counts what a shorter verification would have given, and misses no token."""

import numpy as np
import pandas as pd
import pytest

from draftlab.calibration.rounds import round_arrays
from draftlab.calibration.sts import calibrated
from draftlab.report.threshold import THRESHOLDS, falls, sweep_table, verified
from draftlab.scheduling import Threshold
from made_rounds import made_rounds


@pytest.fixture(scope="module")
def case():
    arrays = round_arrays(made_rounds(prompts=8, gamma=4), 1.0, 4)
    return calibrated(arrays.logits, np.full(4, 2.0)), arrays


def test_what_is_verified_is_what_the_threshold_scheduler_sends(case):
    conditional, _ = case
    for value in (0.0, 0.35, 0.8, 1.0):
        assert verified(conditional, value).tolist() == Threshold(value)(conditional).tolist()


def test_every_count_is_that_of_the_rounds_one_by_one(case):
    conditional, arrays = case
    table = sweep_table(conditional, arrays, (0.0, 0.6)).set_index(["domain", "threshold"])
    for domain in ("math", "chat"):
        sent = accepted = rejected = steps = 0
        for row in np.flatnonzero(arrays.domain == domain):
            length = next((k for k in range(4) if conditional[row, k] < 0.6), 4)
            passed = min(length, int(arrays.accepted[row]))
            sent, accepted, rejected, steps = sent + length, accepted + passed, rejected + length - passed, steps + 1
        found = table.loc[(domain, 0.6)]
        assert (found["rounds"], found["verified"]) == (steps, sent)
        assert found["accepted"] == pytest.approx(accepted / steps)
        assert found["rejected"] == pytest.approx(rejected / steps)
        assert found["acceptance_rate"] == pytest.approx(accepted / sent)
        assert found["acceptance_rate_low"] < found["acceptance_rate"] < found["acceptance_rate_high"]


def test_a_higher_threshold_sends_fewer_tokens_of_which_more_are_accepted(case):
    """Case 18, and the shape of Figure 5: at 0 every slot is sent, then fewer, rejected ones first."""
    table = sweep_table(*case)
    for _, rows in table.groupby("domain"):
        assert rows["verified"].iloc[0] == 4 * rows["rounds"].iloc[0]
        assert (np.diff(rows["verified"]) <= 0).all() and (np.diff(rows["rejected"]) <= 1e-12).all()
        ends = rows.set_index("threshold")["acceptance_rate"]
        assert ends[0.8] > ends[0.0] + 0.2
    assert all(clear == 0 for _, clear in falls(table).values())
    assert THRESHOLDS[0] == 0.0 and THRESHOLDS[-1] >= 0.8


def test_a_slot_that_was_not_proposed_is_never_sent_and_no_token_is_no_rate(case):
    conditional, arrays = case
    assert verified(np.array([[0.9, np.nan]]), 0.0).tolist() == [1]
    last = sweep_table(np.zeros_like(conditional), arrays, (0.5,))
    assert last["acceptance_rate"].isna().all() and (last["accepted"] == 0).all()


def test_a_fall_beyond_the_intervals_is_counted_apart_from_noise():
    rates = pd.DataFrame(
        {"domain": "math", "threshold": [0.0, 0.1, 0.2, 0.3], "acceptance_rate": [0.5, 0.48, 0.3, np.nan]}
    )
    rates = rates.assign(
        acceptance_rate_low=rates["acceptance_rate"] - 0.05, acceptance_rate_high=rates["acceptance_rate"] + 0.05
    )
    assert falls(rates) == {"math": (2, 1)}
