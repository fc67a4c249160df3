"""Accepted length, drafted share and conditional acceptance by hand-counted rounds and by a loop."""

import numpy as np
import pandas as pd
import pytest

from draftlab.report.reliability import calibration_error, reliability_table
from draftlab.report.run import read_run
from draftlab.report.tables import length_table, position_table, with_interval


def rounds_of(*rows, temperature=1.0):
    columns = ("prompt_id", "domain", "proposed", "accepted", "committed")
    frame = pd.DataFrame([dict(zip(columns, row, strict=True)) for row in rows])
    return frame.assign(temperature=temperature, benchmark="set", round=range(len(frame)))


HAND = rounds_of(
    ("a", "math", 3, 3, 4),
    ("a", "math", 3, 1, 2),
    ("b", "chat", 3, 0, 1),
    ("b", "chat", 2, 2, 2),  # ended by a stop token at the second drafted token: no bonus, the third never tested
)


def pick(table, **keys):
    for key, value in keys.items():
        table = table[table[key] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_accepted_length_is_given_with_the_bonus_token_and_without():
    row = pick(length_table(HAND), scope="all")
    assert row["accepted_length"] == pytest.approx(9 / 4)
    assert row["accepted"] == pytest.approx(6 / 4)
    assert row["drafted_share"] == pytest.approx(6 / 9)
    assert (row["prompts"], row["rounds"], row["tokens"]) == (2, 4, 9)


def test_a_position_counts_only_rounds_that_reached_it_and_proposed_it():
    table = position_table(HAND)
    rows = [pick(table, scope="all", position=k) for k in (1, 2, 3)]
    assert [(row["accepted"], row["tested"]) for row in rows] == [(3, 4), (2, 3), (1, 1)]
    assert [row["conditional_acceptance"] for row in rows] == pytest.approx([3 / 4, 2 / 3, 1.0])


def test_a_position_that_no_round_reached_is_nan_with_count_zero():
    table = position_table(rounds_of(("a", "math", 3, 0, 1), ("b", "math", 3, 1, 2)))
    row = pick(table, scope="all", position=3)
    assert row["tested"] == 0 and np.isnan(row["conditional_acceptance"])
    assert with_interval(row, "conditional_acceptance") == "–"


def test_domains_benchmarks_and_temperatures_have_rows_of_their_own():
    table = length_table(pd.concat([HAND, HAND.assign(temperature=0.0)]))
    assert table["temperature"].tolist() == [0.0] * 4 + [1.0] * 4
    assert table["name"].tolist()[:4] == ["all prompts", "math", "chat", "set"]
    assert pick(table, temperature=1.0, name="math")["accepted_length"] == pytest.approx(6 / 2)
    assert pick(table, temperature=1.0, name="chat")["accepted_length"] == pytest.approx(3 / 2)


def test_a_benchmark_that_is_all_of_its_domain_is_named_beside_it_and_not_shown_twice():
    table = length_table(HAND.assign(benchmark=HAND["domain"].map({"math": "gsm8k", "chat": "mt-bench"})))
    assert table["label"].tolist()[:3] == ["all prompts", "math (gsm8k)", "chat (mt-bench)"]
    assert table["repeats"].tolist() == [False, False, False, True, True]
    shared = length_table(HAND)
    assert shared["label"].tolist() == ["all prompts", "math", "chat", "benchmark set"]
    assert not shared["repeats"].any()


def test_prompts_of_the_same_id_in_two_benchmarks_are_two_prompts():
    other = HAND.assign(benchmark="other")
    assert pick(length_table(pd.concat([HAND, other])), scope="all")["prompts"] == 4


def test_conditional_acceptance_equals_a_loop_over_rounds(fake_run):
    rounds = read_run(fake_run(gamma=4, prompts=5)).rounds
    table = position_table(rounds)
    for domain in ("math", "chat"):
        for k in range(1, 5):
            tested = passed = 0
            for row in rounds[(rounds["domain"] == domain) & (rounds["temperature"] == 1.0)].itertuples():
                if row.accepted >= k - 1 and row.proposed >= k:
                    tested += 1
                    passed += row.accepted >= k
            found = pick(table, temperature=1.0, name=domain, position=k)
            assert (found["tested"], found["accepted"]) == (tested, passed)


def test_intervals_hold_the_value_and_one_prompt_has_none(fake_run):
    table = length_table(read_run(fake_run(prompts=8)).rounds)
    assert (table["accepted_length_low"] < table["accepted_length"]).all()
    assert (table["accepted_length"] < table["accepted_length_high"]).all()
    single = pick(length_table(HAND[HAND["prompt_id"] == "a"]), scope="all")
    assert with_interval(single, "accepted_length") == "3.00"


def test_reliability_counts_tested_positions_only_and_its_error_is_weighted_by_them():
    rounds = rounds_of(("a", "math", 2, 0, 1), ("a", "math", 2, 2, 3)).assign(
        confidence=[[0.25, 0.95], [0.75, 0.75]]  # 0.95 stands behind a rejection: never tested
    )
    table = reliability_table(rounds)
    assert table["count"].tolist() == [1, 2]
    assert table["confidence"].tolist() == pytest.approx([0.25, 0.75])
    assert table["accepted"].tolist() == [0.0, 1.0]
    assert calibration_error(table) == pytest.approx((1 * 0.25 + 2 * 0.25) / 3)


def test_reliability_is_empty_without_confidences(fake_run):
    assert reliability_table(HAND).empty
    assert reliability_table(read_run(fake_run(confidence=False, prompts=2)).rounds).empty


def test_calibration_error_equals_torchmetrics(fake_run):
    import torch
    from torchmetrics.functional.classification import binary_calibration_error

    from draftlab.report.reliability import tested_slots

    rounds = read_run(fake_run(temperatures=(1.0,))).rounds
    slots = tested_slots(rounds)
    expected = binary_calibration_error(
        torch.tensor(slots["confidence"].to_numpy()), torch.tensor(slots["accepted"].to_numpy().astype(int)), n_bins=10
    )
    assert calibration_error(reliability_table(rounds)) == pytest.approx(float(expected), abs=1e-6)
