"""Recorded rounds become arrays; what cannot be calibrated on is refused."""

import numpy as np
import pandas as pd
import pytest

from draftlab.calibration.rounds import DRAFT_TOP, EXPECTED, round_arrays, with_counts

ROUNDS = pd.DataFrame(
    {
        "temperature": [1.0, 1.0, 1.0, 0.0],
        "benchmark": ["b", "a", "b", "a"],
        "domain": ["math", "chat", "math", "chat"],
        "prompt_id": ["1", "1", "1", "1"],
        "proposed": [3, 2, 3, 1],
        "accepted": [1, 2, 0, 1],
        "confidence": [[0.5, 0.25, 0.75], [0.5, 0.5], [0.1, 0.2, 0.3], [0.9]],
    }
)


def test_rounds_of_one_temperature_become_arrays():
    rounds = round_arrays(ROUNDS, 1.0, gamma=3)
    assert len(rounds) == 3 and rounds.accepted.tolist() == [1, 2, 0] and rounds.proposed.tolist() == [3, 2, 3]
    assert rounds.prompt.tolist() == [1, 0, 1] and rounds.domain.tolist() == ["math", "chat", "math"]
    assert rounds.logits[0] == pytest.approx([0.0, np.log(1 / 3), np.log(3)])
    assert np.isnan(rounds.logits[1, 2]) and not np.isnan(rounds.logits[:, :2]).any()


def test_a_part_counts_its_own_prompts():
    part = round_arrays(ROUNDS, 1.0, gamma=4).of(np.array([True, False, True]))
    assert part.prompt.tolist() == [0, 0] and part.logits.shape == (2, 4)


@pytest.mark.parametrize(
    ("change", "temperature", "gamma", "message"),
    [
        ({}, 0.7, 3, "no round was decoded at temperature 0.7; there are 0, 1"),
        ({"confidence": [None, [0.5, 0.5], [0.1, 0.2, 0.3], [0.9]]}, 1.0, 3, "confidence head"),
        ({"confidence": [[0.5], [0.5, 0.5], [0.1, 0.2, 0.3], [0.9]]}, 1.0, 3, "no confidence for some"),
        ({}, 1.0, 2, "proposed 3 tokens, but the drafter has gamma 2"),
    ],
)
def test_rounds_without_what_is_needed_are_refused(change, temperature, gamma, message):
    with pytest.raises(ValueError, match=message):
        round_arrays(ROUNDS.assign(**change), temperature, gamma)


def test_another_column_is_read_in_its_place():
    table = ROUNDS.assign(draft_top=ROUNDS["confidence"].map(lambda values: [1 - value for value in values]))
    ours, theirs = round_arrays(table, 1.0, 3, DRAFT_TOP), round_arrays(table, 1.0, 3)
    assert np.nan_to_num(ours.logits) == pytest.approx(-np.nan_to_num(theirs.logits), abs=1e-5)
    with pytest.raises(ValueError, match="no expected for some proposed tokens; they are of an earlier version"):
        round_arrays(table, 1.0, 3, EXPECTED)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("accepted", value) for value in (-1, 0.5, float("nan"), "1", True, 3, 1e300)),
        *(("proposed", float("inf")), ("temperature", float("nan"))),
    ],
)
def test_counts_that_cannot_be_are_refused_by_column(column, value):
    rounds = pd.DataFrame({"temperature": [1.0, 1.0], "proposed": [2, 2], "accepted": [0, 1], "round": [0, 1]})
    assert with_counts(rounds)["accepted"].tolist() == [0, 1]
    with pytest.raises(ValueError, match=f"column {column} must hold|more accepted than proposed"):
        with_counts(rounds.astype(object).assign(**{column: [0, value]}).infer_objects())
