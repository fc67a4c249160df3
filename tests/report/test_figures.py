"""Pictures show what the tables hold, label every line and keep labels apart."""

import numpy as np
import pandas as pd
import pytest

from draftlab.report import figures, style
from draftlab.report.reliability import reliability_table
from draftlab.report.run import read_run
from draftlab.report.tables import position_table


def texts(figure):
    return [text.get_text().strip() for axes in figure.axes for text in axes.texts]


def test_acceptance_by_position_draws_the_tables_values_one_labelled_line_a_domain(fake_run):
    table = position_table(read_run(fake_run(prompts=20)).rounds)
    figure = figures.conditional_acceptance(table)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["T = 0 (greedy)", "T = 1"]
    assert texts(figure).count("math") == texts(figure).count("chat") == 2
    rows = table[(table["temperature"] == 1.0) & (table["name"] == "math")]
    drawn = figure.axes[1].lines[0]
    assert drawn.get_color() == style.DOMAIN_COLOURS["math"]
    assert drawn.get_ydata() == pytest.approx(rows["conditional_acceptance"].tolist()[: len(drawn.get_ydata())])


def test_positions_reached_by_few_rounds_are_hollow_or_left_out():
    table = pd.DataFrame({"temperature": 1.0, "line": "a", "position": [1, 2, 3], "tested": [90, 20, 3]})
    for name in ("conditional_acceptance", "conditional_acceptance_low", "conditional_acceptance_high"):
        table[name] = [0.8, 0.7, 0.0]
    axes = figures.lines_by_position(table).axes[0]
    line, full, hollow = axes.lines[:3]
    assert line.get_xdata().tolist() == [1, 2]
    assert full.get_xdata().tolist() == [1] and hollow.get_xdata().tolist() == [2]
    assert hollow.get_markerfacecolor() == "white"


def test_a_run_whose_only_round_is_too_short_still_makes_a_figure():
    table = pd.DataFrame({"temperature": 1.0, "line": "a", "position": [1], "tested": [1]})
    for name in ("conditional_acceptance", "conditional_acceptance_low", "conditional_acceptance_high"):
        table[name] = np.nan
    assert len(figures.lines_by_position(table).axes) == 1


def test_histogram_shares_sum_to_one_and_mark_the_mean(fake_run):
    rounds = read_run(fake_run(prompts=4)).rounds
    figure = figures.length_histogram(rounds)
    for axes, temperature in zip(figure.axes, (0.0, 1.0), strict=True):
        assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(1.0)
        mean = rounds.loc[rounds["temperature"] == temperature, "committed"].mean()
        assert axes.lines[0].get_xdata()[0] == pytest.approx(mean)


def test_training_curves_show_what_was_logged_and_nothing_is_no_figure(fake_run):
    metrics = read_run(fake_run(prompts=2)).metrics
    assert len(figures.training_curves(metrics).axes) == 2
    assert len(figures.training_curves(metrics[["step", "train/loss"]]).axes) == 1
    assert figures.training_curves(metrics[["step"]]) is None


def test_reliability_has_one_panel_a_temperature(fake_run):
    bins = reliability_table(read_run(fake_run(prompts=4)).rounds)
    assert len(figures.reliability(bins).axes) == 2


def test_labels_are_spread_to_the_gap_in_their_order():
    heights = [0.50, 0.51, 0.9, 0.505]
    placed = style.spread(heights, gap=0.1)
    assert np.argsort(placed).tolist() == np.argsort(heights).tolist()
    assert (np.diff(np.sort(placed)) >= 0.1 - 1e-9).all()
    assert style.spread([0.1, 0.5], gap=0.1) == [0.1, 0.5]


def test_domains_keep_their_colours_and_no_two_lines_share_one():
    chosen = style.colours(["run a", "math", "run b", "chat"])
    assert chosen["math"] == style.DOMAIN_COLOURS["math"] and len(set(chosen.values())) == 4
