"""Runs that differ in their seed only are one line of a comparison."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml

from draftlab.report import compare_runs, read_run
from draftlab.report.multirun import CompareRuns
from draftlab.report.seeds import join_seeds


@pytest.fixture
def folders(trained):
    """Three seeds of one drafter and one of another, the seeds not side by side."""
    return [trained("a0"), trained("b", "dflash", seed=0), trained("a1", seed=1), trained("a2", seed=2)]


def test_a_joined_run_is_the_ratio_of_sums_over_its_seeds(folders):
    runs = [read_run(folder) for folder in folders]
    joined, other = join_seeds(runs)
    assert other is runs[1] and joined.name == "dspark-markov"
    members = [runs[0], runs[2], runs[3]]
    assert joined.rounds["committed"].sum() == sum(run.rounds["committed"].sum() for run in members)
    assert len(joined.rounds) == sum(len(run.rounds) for run in members)
    assert joined.prompts == runs[0].prompts


def test_the_speed_of_a_joined_run_sums_seconds_and_averages_ratios(trained):
    clocks = [(1.0, 4.0, 100), (2.0, 5.0, 110)]
    runs = [read_run(trained(f"s{seed}", seed=seed, clock=clock)) for seed, clock in enumerate(clocks)]
    joined = join_seeds([*runs, read_run(trained("other", "dflash"))])[0]
    row = joined.speed.iloc[0]
    assert (row["draft_seconds"], row["verify_seconds"], row["rounds"]) == (3.0, 9.0, 210)
    assert row["ratio"] == pytest.approx(np.mean([run.speed["ratio"].iloc[0] for run in runs]))


def test_a_joined_run_has_a_speed_only_at_temperatures_where_every_seed_has_one(trained):
    runs = [read_run(trained(f"s{seed}", seed=seed)) for seed in range(2)]
    row = runs[0].speed.iloc[0].to_dict()
    whole = pd.DataFrame([row | {"temperature": 0.0, "ratio": 1.5, "rounds": 10}, row | {"rounds": 10}])
    runs = [replace(runs[0], speed=whole), replace(runs[1], speed=whole.iloc[:1].assign(rounds=np.nan))]
    speed = join_seeds([*runs, read_run(trained("other", "dflash"))])[0].speed
    assert speed["temperature"].tolist() == [0.0] and speed["ratio"].tolist() == [1.5]
    assert speed["rounds"].isna().all(), "one of the two did not count its rounds"


def test_lines_have_different_names_where_a_folder_is_called_like_a_group(trained, tmp_path):
    folders = [trained("a0"), trained("a1", seed=1), trained("dspark-markov", "dflash")]
    out = compare_runs(folders, tmp_path / "out").parent
    assert set(pd.read_csv(out / "pairs.csv")["run"]) == {"dspark-markov", "dspark-markov (seeds 0, 1)"}
    assert set(pd.read_csv(out / "seeds.csv")["group"]) == {"dspark-markov (seeds 0, 1)"}


def test_groups_that_differ_in_the_fourth_key_only_are_two_lines(trained, tmp_path):
    folders = []
    for place, last in enumerate("xyy"):
        for seed in (0, 1):
            folder = trained(f"r{place}{seed}", seed=seed, depth=2 if place == 2 else 1)
            path = folder / ".hydra" / "config.yaml"
            config = yaml.safe_load(path.read_text())
            config["trainer"] = {"one": place // 2, "two": place // 2, "last": last}
            path.write_text(yaml.safe_dump(config, sort_keys=False))
            folders.append(folder)
    pairs = pd.read_csv(compare_runs(folders, tmp_path / "out").parent / "pairs.csv")
    assert pairs["run"].nunique() == 3 and not pairs[["run", "baseline"]].duplicated().any()


def test_seeds_of_one_configuration_alone_are_compared_with_each_other(trained):
    runs = [read_run(trained(f"s{seed}", seed=seed)) for seed in range(3)]
    assert join_seeds(runs) == runs


def test_a_comparison_has_a_line_a_configuration_and_keeps_every_run_in_a_table(folders, tmp_path, capsys):
    out = compare_runs(folders, tmp_path / "out").parent
    assert set(pd.read_csv(out / "runs.csv")["run"]) == {"a0", "a1", "a2", "b"}
    assert set(pd.read_csv(out / "pairs.csv")["run"]) == {"dspark-markov", "b"}
    assert set(pd.read_csv(out / "conditional_acceptance.csv")["run"]) == {"dspark-markov", "b"}
    shown = capsys.readouterr().out
    assert "T=1 dspark-markov: mean " in shown and "of seeds 0, 1, 2" in shown and "95 % over seeds [" in shown


def test_a_multirun_over_seeds_is_ordered_by_the_longest_beginning_of_its_folders_names():
    compare = CompareRuns(order=["dspark", "dspark_parallel", "dflash"])
    names = ["dflash-seed_0", "other", "dspark_parallel-seed_0", "dspark-seed_1", "dspark-seed_0"]
    assert sorted(names, key=lambda name: (compare._place(name), name)) == [
        "dspark-seed_0",
        "dspark-seed_1",
        "dspark_parallel-seed_0",
        "dflash-seed_0",
        "other",
    ]
