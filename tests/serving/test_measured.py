"""Cells of a comparison take turns, get the same prompts, survive a kill, and their figures are ratios over all turns."""

from __future__ import annotations

import numpy as np
import pytest

from draftlab.report.measured import summary_table
from draftlab.serving.measured import Cell, ServeSettings, run_cells
from draftlab.serving.records import Served, Step

PROMPTS = [("chat", [number]) for number in range(5)]


class Scripted:
    """An engine that makes a step a second and says who asked it."""

    def __init__(self, name, calls, committed, turn):
        self.name, self.calls, self.committed, self.turn = name, calls, committed, turn

    def run(self, load, seconds):
        if self.calls and self.calls[0] == "stop" and len(self.calls) > 3:
            raise KeyboardInterrupt
        self.calls.append((self.name, self.turn, load.prompts[0][1]))
        steps = [Step(t, 0.0, 0.25, 0.05, 0.6, load.users, 4, 3, 2, self.committed) for t in range(int(seconds))]
        return steps, [Served(0, "chat", 0.0, 0.0, 1.0, 9.0, 17), Served(1, "chat", 0.0, 0.0, 0.1, 0.5, 3)]


def cells(calls):
    def make(name, committed):
        return Cell(name, "d", "s", 2, lambda turn: Scripted(name, calls, committed, turn), {"cell": name})

    return [make("a", 4), make("b", 6), make("c", 8)]


SETTINGS = ServeSettings(turns=3, seconds=12, warm_up=2)


def test_cells_rotate_so_that_none_is_always_first_and_all_get_the_same_prompts(tmp_path):
    calls = []
    run_cells(cells(calls), PROMPTS, SETTINGS, tmp_path / "x", {})
    assert [name for name, _, _ in calls] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    for turn in range(3):
        assert len({prompt for _, asked, prompt in calls if asked == turn}) == 1
    assert len({prompt for _, _, prompt in calls}) == 3


def test_figures_are_over_all_turns_without_the_warm_up(tmp_path):
    steps, requests = run_cells(cells([]), PROMPTS, SETTINGS, tmp_path / "x", {})
    assert len(steps) == 3 * 3 * 10 and (steps["start"] >= 2).all() and set(requests["tokens"]) == {17}
    summary = summary_table(steps, requests).set_index("cell")
    a = summary.loc["a"]
    assert a["throughput"] == pytest.approx(3 * 40 / (3 * 9.9)) and a["budget"] == pytest.approx((3 + 2) / 2)
    assert a["wasted"] == pytest.approx(1 / 3) and a["draft_share"] == pytest.approx(0.25 / 0.9)
    assert a["user_speed_mean"] == pytest.approx(16 / 8) and a["requests"] == 3
    assert a["throughput_low"] <= a["throughput"] * 1.001 and a["throughput"] <= a["throughput_high"] * 1.001
    assert np.all(np.diff(summary["throughput"]) > 0)


def test_a_killed_experiment_goes_on_and_another_one_is_refused(tmp_path):
    calls = ["stop"]
    with pytest.raises(KeyboardInterrupt):
        run_cells(cells(calls), PROMPTS, SETTINGS, tmp_path / "x", {})
    calls[0] = "go on"
    run_cells(cells(calls), PROMPTS, SETTINGS, tmp_path / "x", {})
    assert len(calls) == 1 + 9
    with pytest.raises(ValueError, match=r"another settings\.turns"):
        run_cells(cells(calls), PROMPTS, ServeSettings(4, 12, 2), tmp_path / "x", {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ServeSettings(0, 10, 1), r"serve\.turns"),
        (lambda: ServeSettings(1, 10, 10), r"serve\.warm_up"),
        (lambda: run_cells([], PROMPTS, SETTINGS, None, {}), "one or more"),
        (lambda: run_cells(cells([]) * 2, PROMPTS, SETTINGS, None, {}), "different names"),
    ],
)
def test_what_makes_no_experiment_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
