"""Traces: replay in order, calibrated confidences that are met, and rounds that cannot be replayed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from draftlab.calibration import Calibration
from draftlab.serving.traces import NoDrafter, RecordedTrace, SyntheticTrace


def rng(seed=0):
    return np.random.default_rng(seed)


def row(prompt, number, accepted, confidence, domain="chat", proposed=3, temperature=1.0):
    return {
        "temperature": temperature,
        "benchmark": f"set-{domain}",
        "domain": domain,
        "prompt_id": prompt,
        "round": number,
        "proposed": proposed,
        "accepted": accepted,
        "committed": accepted + 1,
        "confidence": confidence,
    }


def recorded():
    return pd.DataFrame(
        [
            row("b", 1, 3, [0.9, 0.9, 0.9]),
            row("b", 0, 1, [0.8, 0.4, 0.2]),
            row("b", 2, 0, [0.3], proposed=1),
            row("a", 0, 2, [0.7, 0.7, 0.1], domain="code"),
            row("b", 0, 0, [0.5, 0.5, 0.5], temperature=0.0),
        ]
    )


def test_a_request_replays_the_rounds_of_one_prompt_in_order_and_begins_again_at_their_end():
    trace = RecordedTrace(recorded())
    state = trace.begin(np.array(["chat"]), rng())
    seen = []
    for _ in range(4):
        confidence, reach, state = trace.round(state, rng())
        seen.append((int(reach[0]), confidence[0].round(3).tolist()))
    assert seen == [(1, [0.8, 0.4, 0.2]), (3, [0.9] * 3), (0, [0.3, 0.0, 0.0]), (1, [0.8, 0.4, 0.2])]
    assert trace.gamma == 3 and sorted(trace.tokens.tolist()) == [4, 8]
    assert set(trace.lengths(50, rng())) == {4, 8}


def test_requests_take_prompts_of_their_domain_and_any_if_they_name_none():
    trace = RecordedTrace(recorded())
    assert set(trace.domain[trace.begin(np.full(50, "code"), rng())[:, 0]]) == {"code"}
    assert set(trace.domain[trace.begin(np.full(50, ""), rng())[:, 0]]) == {"code", "chat"}
    with pytest.raises(ValueError, match="no round of the domain 'law' was recorded; there are chat, code"):
        trace.begin(np.array(["law"]), rng())


def test_recorded_confidences_are_calibrated():
    plain, sharper = RecordedTrace(recorded()), RecordedTrace(recorded(), calibration=Calibration((0.5, 1.0, 2.0)))
    logit = np.log(0.8 / 0.2)
    place = int(np.flatnonzero(np.isclose(plain.confidence[:, 0], 0.8))[0])
    assert sharper.confidence[place, 0] == pytest.approx(1 / (1 + np.exp(-2 * logit)))
    assert sharper.confidence[place, 1] == pytest.approx(0.4)
    with pytest.raises(ValueError, match="2 temperatures do not fit"):
        RecordedTrace(recorded(), calibration=Calibration((1.0, 1.0)))


def test_without_confidence_head_positions_get_their_mean_conditional_acceptance():
    rounds = recorded().assign(confidence=[[]] * 5)
    trace = RecordedTrace(rounds)
    assert trace.confidence[0].tolist() == pytest.approx([3 / 4, 2 / 3, 1 / 2])


@pytest.mark.parametrize("column", ["confidence", "accepted", "prompt_id", "domain"])
def test_recorded_rounds_with_a_missing_column_are_refused_by_its_name(column):
    with pytest.raises(ValueError, match=f"{column} is missing"):
        RecordedTrace(recorded().drop(columns=column))


def test_rounds_that_were_cut_by_a_scheduler_cannot_be_replayed():
    rounds = pd.DataFrame([row("a", 0, 1, [0.5], proposed=1), row("a", 1, 3, [0.9] * 3)])
    with pytest.raises(
        ValueError, match=r"1 recorded rounds proposed fewer than 3 tokens .* record rounds with schedule=fixed"
    ):
        RecordedTrace(rounds)
    with pytest.raises(ValueError, match=r"no round was decoded at temperature 0\.7; there are 0, 1"):
        RecordedTrace(recorded(), temperature=0.7)


def draw(trace, requests=4000, rounds=6):
    state = trace.begin(np.full(requests, ""), rng(1))
    drawn = []
    generator = rng(2)
    for _ in range(rounds):
        confidence, reach, state = trace.round(state, generator)
        drawn.append((confidence, reach))
    return np.concatenate([c for c, _ in drawn]), np.concatenate([r for _, r in drawn])


def test_synthetic_confidences_are_met_in_every_bin_and_position():
    confidence, reach = draw(SyntheticTrace([0.8, 0.6, 0.5], request_spread=0.8, token_spread=1.0))
    survival = confidence.cumprod(axis=1)
    for k in range(3):
        for low in np.arange(0.0, 1.0, 0.25):
            rows = (survival[:, k] >= low) & (survival[:, k] < low + 0.25)
            if rows.sum() > 300:
                assert (reach[rows] > k).mean() == pytest.approx(survival[rows, k].mean(), abs=0.03)


def test_without_spread_acceptance_is_what_was_asked_for():
    _, reach = draw(SyntheticTrace([0.8, 0.6, 0.5]))
    passed = [(reach > k).mean() for k in range(3)]
    assert passed == pytest.approx([0.8, 0.48, 0.24], abs=0.01)


def test_difficulty_stays_with_a_request_and_sharpness_makes_confidences_wrong():
    trace = SyntheticTrace([0.5], request_spread=2.0)
    state = trace.begin(np.full(500, ""), rng())
    first, _, state = trace.round(state, rng(1))
    second, _, _ = trace.round(state, rng(2))
    assert np.array_equal(first, second) and first.std() > 0.2
    confidence, reach = draw(SyntheticTrace([0.7], sharpness=0.5))
    assert confidence.mean() - (reach > 0).mean() > 0.1, "over-confident"


def test_no_drafter_drafts_blocks_of_nothing():
    trace = NoDrafter()
    confidence, reach, _ = trace.round(trace.begin(np.full(3, ""), rng()), rng())
    assert confidence.shape == (3, 0) and reach.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SyntheticTrace([]),
        lambda: SyntheticTrace([0.5, 1.0]),
        lambda: SyntheticTrace([0.5], request_spread=-1.0),
        lambda: SyntheticTrace([0.5], sharpness=0.0),
    ],
)
def test_a_synthetic_trace_that_cannot_be_is_refused(make):
    with pytest.raises(ValueError, match="got"):
        make()
