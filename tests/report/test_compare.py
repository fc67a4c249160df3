"""Runs are compared on the same prompts; a run that does not fit is named and the rest goes on."""

import numpy as np
import pandas as pd
import pytest

from draftlab.report import compare_runs, read_run
from draftlab.report.compare import pair_table


def test_a_better_run_is_ahead_by_more_than_the_interval(fake_run, tmp_path):
    good, bad = fake_run("good", prompts=20), fake_run("bad", prompts=20, decay=0.1, shift=-0.1, seed=1)
    page = compare_runs([bad, good], tmp_path / "out", show=False)
    assert {path.name for path in page.parent.iterdir()} == {
        "report.html",
        "runs.csv",
        "pairs.csv",
        "cost.csv",
        "conditional_acceptance.csv",
        "conditional_acceptance.png",
    }
    pairs = pd.read_csv(page.parent / "pairs.csv")
    ahead = pairs[pairs["run"] == "good"]
    assert len(ahead) == 2 and (ahead["difference_low"] > 0).all() and (ahead["ratio_low"] > 1).all()
    assert ahead["separated"].all()


def test_a_run_against_its_copy_has_ratio_one_and_no_difference(fake_run):
    runs = [read_run(fake_run(name, prompts=4)) for name in ("one", "copy")]
    pairs = pair_table(runs, [1.0])
    assert pairs[["ratio", "ratio_low", "ratio_high"]].to_numpy() == pytest.approx(1.0)
    assert pairs[["difference", "difference_low", "difference_high"]].to_numpy() == pytest.approx(0.0)
    assert not pairs["separated"].any()


def test_the_interval_of_the_difference_is_paired(fake_run):
    """What makes a prompt easy for both runs cancels: far narrower than from two independent intervals."""
    first = read_run(fake_run("first", prompts=15))
    second = read_run(fake_run("second", prompts=15))
    better = second.rounds["committed"].where(second.rounds["round"] > 0, second.rounds["committed"] + 1)
    object.__setattr__(second, "rounds", second.rounds.assign(committed=better))
    pair = pair_table([second, first], [1.0]).iloc[0]
    from draftlab.report.tables import length_table

    alone = length_table(first.rounds)
    alone = alone[(alone["temperature"] == 1.0) & (alone["scope"] == "all")].iloc[0]
    width = alone["accepted_length_high"] - alone["accepted_length_low"]
    assert pair["difference_high"] - pair["difference_low"] < 0.2 * width
    assert pair["separated"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"settings": {"thinking": True}}, "thinking is on, but off in a"),
        ({"settings": {"top_p": 0.8}}, "top_p is 0.8, but 1 in a"),
        ({"settings": {"target": "other"}}, "target is other, but tiny in a"),
        ({"temperatures": (0.7,)}, "temperatures 0.7 have none in common"),
        ({"prompts": 5}, "15 prompts, of which 12 are among the 12"),
    ],
)
def test_a_run_that_was_decoded_otherwise_is_named_and_the_rest_goes_on(fake_run, tmp_path, capsys, fields, reason):
    a, b = fake_run("a", prompts=4), fake_run("b", prompts=4, seed=1)
    odd = fake_run("odd", **({"prompts": 4} | fields))
    page = compare_runs([a, odd, b, tmp_path / "gone"], tmp_path / "out")
    shown = capsys.readouterr().out
    assert f"left out: odd: {reason}" in shown and "left out: gone: " in shown
    assert "Left out: odd" in page.read_text()
    assert set(pd.read_csv(page.parent / "runs.csv")["run"]) == {"a", "b"}


def test_a_run_that_shares_no_temperature_with_all_before_it_is_named(fake_run, tmp_path, capsys):
    folders = [fake_run(f"r{place}", prompts=2, temperatures=t) for place, t in enumerate([(0.0, 1.0), (0.0,), (1.0,)])]
    page = compare_runs(folders, tmp_path / "out")
    assert "left out: r2: temperatures 1 have none in common with 0 of r0 and the others" in capsys.readouterr().out
    assert set(pd.read_csv(page.parent / "pairs.csv")["temperature"]) == {0.0}


def test_targets_are_the_same_by_name_wherever_they_lie(fake_run, tmp_path):
    places = [
        fake_run(name, prompts=3, settings={"target": {"name": "smollm2_135m", "path": f"/{name}"}}) for name in "ab"
    ]
    assert set(pd.read_csv(compare_runs(places, tmp_path / "out", show=False).parent / "runs.csv")["run"]) == {"a", "b"}


def test_a_prompt_that_one_run_answered_without_a_round_is_no_reason_to_refuse(fake_run, tmp_path):
    a, b = fake_run("a", prompts=3), fake_run("b", prompts=3, seed=1)
    rounds = pd.read_parquet(b / "rounds.parquet")
    rounds[rounds["prompt_id"] != "chat-0"].to_parquet(b / "rounds.parquet")
    pairs = pd.read_csv(compare_runs([a, b], tmp_path / "out", show=False).parent / "pairs.csv")
    assert len(pairs) == 4 and not pairs["ratio"].isna().any()


def test_fewer_than_two_runs_are_refused_with_every_reason(fake_run, tmp_path):
    with pytest.raises(ValueError, match=r"at least two runs.*gone: "):
        compare_runs([fake_run("a", prompts=2), tmp_path / "gone"], tmp_path / "out", show=False)


def test_the_same_run_twice_is_refused_and_equal_folder_names_are_told_apart(fake_run, tmp_path):
    a, b = fake_run("x/eval", prompts=2), fake_run("y/eval", prompts=2, seed=1)
    with pytest.raises(ValueError, match="more than once"):
        compare_runs([a, a], tmp_path / "out", show=False)
    runs = pd.read_csv(compare_runs([a, b], tmp_path / "out", show=False).parent / "runs.csv")
    assert set(runs["run"]) == {"x/eval", "y/eval"}


def test_runs_of_different_block_sizes_share_one_figure(fake_run, tmp_path):
    page = compare_runs([fake_run("g4", gamma=4, prompts=3), fake_run("g7", prompts=3)], tmp_path / "out", show=False)
    positions = pd.read_csv(page.parent / "conditional_acceptance.csv")
    assert positions.groupby("run")["position"].max().to_dict() == {"g4": 4, "g7": 7}
    assert not np.isnan(positions.loc[positions["position"] == 1, "conditional_acceptance"]).any()
