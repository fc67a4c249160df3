"""Figures of a serving cell against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from draftlab.serving.records import Served, Step, frame, summarise


def step(start, seconds=1.0, requests=2, verified=6, accepted=3):
    quarter = seconds / 4
    committed = accepted + requests
    return Step(start, quarter, quarter, quarter, quarter, requests, verified, verified, accepted, committed)


def test_the_figures_of_a_cell_are_those_counted_by_hand():
    steps = [step(0.0, accepted=0), step(2.0), step(3.0, requests=1, verified=2, accepted=2)]
    requests = [Served(0, "code", 0.0, 0.0, 1.0, 2.0, 9), Served(1, "chat", 2.0, 2.0, 2.5, 4.5, 5)]
    figures = summarise(steps, requests, warm_up=1.0)
    assert figures["steps"] == 2 and figures["requests"] == 1 and figures["seconds"] == 2.0
    assert figures["throughput"] == pytest.approx((5 + 3) / 2.0)
    assert figures["user_speed_mean"] == figures["user_speed_p5"] == pytest.approx(4 / 2.0)
    assert figures["budget"] == pytest.approx((8 + 3) / 3) and figures["accepted_length"] == pytest.approx(8 / 3)
    assert figures["wasted"] == pytest.approx(1 - 5 / 8) and figures["scheduling_share"] == pytest.approx(0.25)


def test_nothing_verified_wastes_nothing_and_a_request_of_one_token_has_no_speed():
    figures = summarise([step(0.0, verified=0, accepted=0)], [Served(0, "chat", 0.0, 0.0, 1.0, 1.0, 1)])
    assert figures["wasted"] == 0.0 and np.isnan(figures["user_speed_mean"])


def test_a_warm_up_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="0 steps and 0 finished requests are left; serve longer or warm up less"):
        summarise([step(0.0)], [Served(0, "chat", 0.0, 0.0, 1.0, 2.0, 9)], warm_up=5.0)


def test_rows_become_a_table_with_a_column_a_field():
    assert list(frame([step(0.0)]).columns)[:5] == ["start", "prefill", "draft", "schedule", "verify"]
