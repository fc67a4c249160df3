"""The saving of early exits, against sums done by hand."""

import io

import numpy as np
import pandas as pd
import pytest

from draftlab.report.exits import WHOLE, saving_figure, saving_table

ROUNDS = [  # policy, prompt, depth, committed
    *((WHOLE, prompt, 4, committed) for prompt, committed in ((0, 3), (0, 1), (1, 2), (2, 4))),
    *(
        ("c < 0.5", prompt, depth, committed)
        for prompt, depth, committed in ((0, 1, 1), (0, 4, 3), (1, 1, 1), (2, 0, 1))
    ),
]


def tables():
    rounds = pd.DataFrame(ROUNDS, columns=["policy", "prompt", "depth", "committed"])
    seconds = [(WHOLE, 0.3, 3), (WHOLE, 0.1, 1), ("c < 0.5", 0.1, 2), ("c < 0.5", 0.1, 2)]
    return rounds, pd.DataFrame(seconds, columns=["policy", "draft", "passes"])


def test_layers_seconds_and_lengths_are_sums_over_sums():
    table = saving_table(*tables(), num_layers=4).set_index("policy")
    whole, early = table.loc[WHOLE], table.loc["c < 0.5"]
    assert (whole["layers_saved"], whole["time_saved"], whole["lost"]) == (0, 0, 0)
    assert (whole["lost_low"], whole["lost_high"]) == (0, 0), "the same resamples, so nothing is lost against itself"
    assert early["layers_a_round"] == 6 / 4 and early["layers_saved"] == pytest.approx(1 - 6 / 16)
    assert early["draft_ms"] == pytest.approx(50) and early["time_saved"] == pytest.approx(0.5)
    assert early["accepted_length"] == 6 / 4 and early["lost"] == 10 / 4 - 6 / 4
    assert early["sat_out"] == 1 / 4 and early["rounds"] == 4
    assert early["lost_low"] <= early["lost"] <= early["lost_high"]


def test_one_prompt_has_no_interval():
    rounds, seconds = tables()
    table = saving_table(rounds[rounds["prompt"] == 0], seconds, 4)
    assert table["accepted_length_low"].isna().all() and table["accepted_length"].notna().all()


def test_a_prompt_without_a_round_under_one_policy_adds_nothing_to_it():
    rounds, seconds = tables()
    early = saving_table(rounds.iloc[:-1], seconds, 4).set_index("policy").loc["c < 0.5"]
    assert early["accepted_length"] == 5 / 3 and early["rounds"] == 3 and early["sat_out"] == 0


def test_without_drafting_to_the_end_there_is_nothing_to_compare_with():
    rounds, seconds = tables()
    with pytest.raises(ValueError, match="expected rounds of the policy 'to the end'"):
        saving_table(rounds[rounds["policy"] != WHOLE], seconds, 4)


def test_the_figure_has_a_mark_for_every_policy():
    figure = saving_figure(saving_table(*tables(), num_layers=4))
    for panel, column in zip(figure.axes, ("layers_saved", "time_saved"), strict=True):
        table = saving_table(*tables(), num_layers=4)
        assert np.allclose(sorted(panel.lines[0].get_xdata()), sorted(table[column]))
        assert {text.get_text() for text in panel.texts} == {WHOLE, "c < 0.5"}
    figure.savefig(io.BytesIO(), format="png")
