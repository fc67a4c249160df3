"""Gains read off frontiers by hand, pictures that hold what they should, and the pages of serving experiments."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from draftlab.report import serving_figures
from draftlab.report.serving import About, write_bursts, write_serving
from draftlab.report.serving_tables import (
    find_reference,
    frontier,
    speed_at,
    speed_gains,
    throughput_at,
    throughput_gains,
    with_lines,
)

ABOUT = About("simulated", "A staircase.", {"table": "staircase", "seeds": [0, 1]}, "python src/schedule.py")


def cells(**changes):
    points = {
        ("none", "fixed"): [(1, 50, 50), (10, 480, 48), (100, 500, 5)],
        ("mtp1", "fixed"): [(1, 80, 80), (10, 600, 60), (100, 400, 4)],
        ("dspark", "early_stop"): [(1, 100, 100), (10, 900, 90), (100, 1000, 10)],
    }
    rows = [
        {
            "drafter": drafter,
            "scheduler": scheduler,
            "users": users,
            "concurrency": float(users),
            "throughput": float(rate),
            "user_speed_mean": float(speed),
            "user_speed_p5": 0.8 * speed,
            "budget": 6.0 / np.sqrt(users),
            "accepted_length": 2.5,
            "wasted": 0.25,
            "scheduling_share": 0.001,
            **changes,
        }
        for (drafter, scheduler), line in points.items()
        for users, rate, speed in line
    ]
    return pd.DataFrame(rows)


def test_a_frontier_leaves_out_cells_that_another_one_beats_in_both():
    rows = cells()[cells()["drafter"] == "mtp1"]
    speeds, rates = frontier(rows)
    assert speeds.tolist() == [60, 80] and rates.tolist() == [600, 80]


def test_throughput_and_speed_are_read_off_the_frontier():
    rows = cells()[cells()["drafter"] == "dspark"]
    assert throughput_at(rows, 95.0) == pytest.approx(500.0) and throughput_at(rows, 50.0) == pytest.approx(950.0)
    assert throughput_at(rows, 1.0) == 1000.0, "whoever asks for less speed gets the most throughput"
    assert np.isnan(throughput_at(rows, 101.0))
    assert speed_at(rows, 500.0) == pytest.approx(95.0) and speed_at(rows, 1.0) == 100.0
    assert np.isnan(speed_at(rows, 1001.0))


def test_gains_are_over_the_reference_and_what_is_not_reached_is_no_number():
    table = with_lines(cells())
    gains = throughput_gains(table, "mtp1 fixed", [70.0]).set_index("line")
    assert gains.loc["dspark early stop", "gain"] == pytest.approx(925.0 / 340.0 - 1)
    assert gains.loc["mtp1 fixed", "gain"] == 0.0 and np.isnan(gains.loc["no drafting", "throughput"])
    speeds = speed_gains(table, "no drafting", [490.0]).set_index("line")
    assert speeds.loc["mtp1 fixed", "gain"] == pytest.approx(
        speed_at(table[table["line"] == "mtp1 fixed"], 490.0) / 26.5 - 1
    )


def test_the_reference_is_mtp1_or_no_drafting_or_what_was_asked_for():
    table = with_lines(cells())
    assert find_reference(table, None) == "mtp1 fixed"
    assert find_reference(table[table["drafter"] != "mtp1"], None) == "no drafting"
    assert find_reference(table[table["drafter"] == "dspark"], None) == "dspark early stop"
    with pytest.raises(ValueError, match="reference must be one of the lines no drafting, mtp1 fixed"):
        find_reference(table, "mtp3 fixed")


def test_a_table_without_rows_or_columns_is_refused_by_name():
    with pytest.raises(ValueError, match="budget is missing"):
        with_lines(cells().drop(columns="budget"))
    with pytest.raises(ValueError, match="a row is missing"):
        with_lines(cells().iloc[:0])


def test_the_pictures_have_a_line_a_drafter_and_scheduler_and_a_mark_a_load():
    table = with_lines(cells())
    figure = serving_figures.pareto(table, [40.0])
    drawn = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert set(table["line"]) <= set(drawn)
    assert drawn["dspark early stop"].get_xydata().tolist() == [[100, 100], [90, 900], [10, 1000]]
    left, right = serving_figures.load(table).axes
    assert left.get_xscale() == "log" and len(right.get_lines()) == 3 and right.get_ylim()[0] == 0


def test_intervals_are_drawn_where_there_are_some():
    table = with_lines(cells())
    lows = table.assign(throughput_low=table["throughput"] * 0.9, throughput_high=table["throughput"] * 1.1)
    assert len(serving_figures.pareto(table).axes[0].collections) == 0
    assert len(serving_figures.pareto(lows).axes[0].collections) == 3


def test_the_page_has_both_figures_the_gains_and_the_papers_numbers(tmp_path):
    page = write_serving(cells(), tmp_path, ABOUT).read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2 and "http" not in re.sub(r"base64,[^\"]*", "", page)
    for text in (
        "+60 to +85 %",
        "+51 % at 80 tokens/s",
        "gain over mtp1 fixed",
        "dspark early stop",
        "simulated",
        "25.0%",
    ):
        assert text in page, text
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert {"figures/pareto.png", "figures/load.png", "tables/cells.csv", "tables/throughput_gain.csv"} <= names


def test_anchors_and_reference_can_be_asked_for(tmp_path):
    page = write_serving(cells(), tmp_path, ABOUT, "no drafting", [45.0]).read_text(encoding="utf-8")
    assert "at 45 tokens/s a user" in page and "gain over no drafting" in page
    table = pd.read_csv(tmp_path / "tables" / "throughput_gain.csv")
    assert table["speed"].unique().tolist() == [45.0]


def regrets():
    rows = [
        {"burstiness": level, "scheduler": name, "lag": lag, "user_speed_mean": 50.0, "concurrency": 9.0}
        for level in (1.0, 10.0)
        for name, lag in (("early_stop", np.nan), ("lag_1", 1.0), ("lag_8", 8.0))
    ]
    table = pd.DataFrame(rows)
    for name in ("speed_regret", "choice_regret"):
        table[name] = 0.001 * table["burstiness"] * table["lag"].fillna(3.0)
        table[f"{name}_low"], table[f"{name}_high"] = table[name] - 0.001, table[name] + 0.001
    return table


def test_the_heat_maps_hold_every_regret_in_words_too(tmp_path):
    page = write_bursts(regrets(), ["Keep it short."], tmp_path, ABOUT).read_text(encoding="utf-8")
    assert "Keep it short." in page and "early stop" in page and "8.0% [7.9%, 8.1%]" in page
    figure = serving_figures.regret(regrets(), [("speed_regret", "speed"), ("choice_regret", "choice")])
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["0.1%", "0.8%", "1.0%", "8.0%"], "burstiness upwards, lag to the right"
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["speed", "choice"]
