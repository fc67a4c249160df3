"""Seeds, Figure 3 and Figure 4 of a comparison, from run folders that differ in seed, depth, block size and drafter."""

import shutil

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from draftlab.report import ablation_figures, compare_runs, read_run
from draftlab.report.ablation import DEPTH, DRAFT_LENGTH, T_QUANTILES, find_groups, seed_table, sweep_table, t_interval
from draftlab.report.compare import pair_table
from draftlab.report.tables import length_table


def groups_of(*folders):
    runs = [read_run(folder) for folder in folders]
    groups, reasons = find_groups(runs)
    assert not reasons
    return runs, groups


def length(run):
    return run.rounds["committed"].mean()


def drawn(figure):
    """Names written in a figure."""
    return {text.get_text().strip() for axes in figure.axes for text in axes.texts}


def test_the_t_quantiles_and_the_interval_are_scipys():
    assert pytest.approx([stats.t.ppf(0.975, df) for df in range(1, 31)], abs=6e-4) == T_QUANTILES
    values = [1.6, 1.7, 1.55, 1.62]
    expected = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert t_interval(values) == pytest.approx(expected, rel=1e-3)
    assert np.isnan(t_interval([1.6])).all()


def test_seeds_are_one_group_with_an_interval_over_seeds_beside_each_runs_own_over_prompts(trained):
    runs, groups = groups_of(*(trained(f"s{seed}", seed=seed) for seed in range(3)), trained("alone", rate=0.1))
    table = seed_table(groups, [1.0])
    assert table["run"].tolist() == ["", "s0", "s1", "s2"] and table["seed"].tolist() == ["0, 1, 2", "0", "1", "2"]
    lengths = [length(run) for run in runs[:3]]
    whole = table.iloc[0]
    assert whole["accepted_length"] == pytest.approx(np.mean(lengths))
    assert (whole["accepted_length_min"], whole["accepted_length_max"]) == pytest.approx((min(lengths), max(lengths)))
    assert (whole["seeds_low"], whole["seeds_high"]) == pytest.approx(t_interval(lengths))
    alone = length_table(runs[1].rounds).iloc[0]
    own = table.iloc[2][["accepted_length", "prompts_low", "prompts_high"]]
    assert own.tolist() == pytest.approx(
        alone[["accepted_length", "accepted_length_low", "accepted_length_high"]].tolist()
    )
    assert np.isnan(table.iloc[2]["seeds_low"])


def test_the_same_seed_twice_is_no_group_of_seeds(trained):
    groups, reasons = find_groups([read_run(trained("a")), read_run(trained("again"))])
    assert len(groups) == 1 and seed_table(groups, [1.0]).empty
    assert reasons == {"again": "its configuration and its seed (0) are those of a"}


def test_a_copy_of_a_seed_does_not_narrow_the_interval_over_seeds_and_is_named(trained, tmp_path, capsys):
    folders = [*(trained(f"s{seed}", seed=seed) for seed in range(3)), trained("other", depth=1)]
    copy = shutil.copytree(folders[1], tmp_path / "copy")
    alone, _ = find_groups([read_run(folder) for folder in folders])
    both, reasons = find_groups([read_run(folder) for folder in [*folders, copy]])
    pd.testing.assert_frame_equal(seed_table(both, [1.0]), seed_table(alone, [1.0]))
    pd.testing.assert_frame_equal(sweep_table(both, [1.0], DEPTH), sweep_table(alone, [1.0], DEPTH))
    assert list(reasons) == ["copy"]
    out = compare_runs([*folders, copy], tmp_path / "out").parent
    assert "copy: its configuration and its seed (1) are those of s1" in capsys.readouterr().out
    assert set(pd.read_csv(out / "pairs.csv")["run"]) == {"dspark-markov, num_layers 2", "other", "copy"}


def test_a_line_is_a_drafter_and_a_point_holds_its_runs(trained):
    folders = [trained("one", depth=1), trained("two", depth=2), trained("flash", "dflash", depth=2)]
    folders += [trained(f"two-s{seed}", depth=2, seed=seed) for seed in (1, 2)]
    runs, groups = groups_of(*folders)
    table = sweep_table(groups, [1.0], DEPTH).set_index(["line", "value"])
    assert table.index.tolist() == [("dflash", 2), ("dspark-markov", 1), ("dspark-markov", 2)]
    assert table["runs"].tolist() == [1, 1, 3] and table["interval"].tolist() == ["prompts", "prompts", "seeds"]
    point = table.loc[("dspark-markov", 2)]
    lengths = [length(runs[place]) for place in (1, 3, 4)]
    assert point["accepted_length"] == pytest.approx(np.mean(lengths))
    assert (point["accepted_length_low"], point["accepted_length_high"]) == pytest.approx(t_interval(lengths))
    alone, single = length_table(runs[0].rounds).iloc[0], table.loc[("dspark-markov", 1)]
    assert single["accepted_length_low"] == pytest.approx(alone["accepted_length_low"])


def test_one_depth_is_no_figure(trained):
    _, groups = groups_of(trained("a"), trained("b", "dflash"))
    assert sweep_table(groups, [1.0], DEPTH).empty


def test_two_runs_of_a_drafter_at_one_depth_are_two_lines_named_by_what_they_differ_in(trained):
    _, groups = groups_of(trained("a", depth=1), trained("b", depth=1, rate=0.1), trained("c", depth=2, rate=0.1))
    table = sweep_table(groups, [1.0], DEPTH)
    assert table["line"].tolist() == ["dspark-markov, lr 0.002", *["dspark-markov, lr 0.1"] * 2]


def test_the_gain_is_the_paired_difference_to_dflash_of_the_same_draft_length(trained):
    folders = [trained("s4", gamma=4), trained("f4", "dflash", gamma=4), trained("s9", gamma=9)]
    runs, groups = groups_of(*folders)
    table = sweep_table(groups, [1.0], DRAFT_LENGTH).set_index(["line", "value"])
    pair = pair_table(runs[:2], [1.0]).iloc[0]
    found = table.loc[("dspark-markov", 4)][["gain", "gain_low", "gain_high"]].tolist()
    assert found == pytest.approx(pair[["difference", "difference_low", "difference_high"]].tolist())
    assert table.loc[[("dspark-markov", 9), ("dflash", 4)], ["gain", "gain_low"]].isna().all(axis=None)


def test_a_round_costs_drafting_and_verifying_over_its_rounds_and_is_unknown_where_they_were_not_counted(trained):
    _, groups = groups_of(trained("a", gamma=4, clock=(0.5, 2.0, 100)), trained("b", gamma=8))
    table = sweep_table(groups, [1.0], DRAFT_LENGTH)
    assert table["draft_ms"].tolist() == pytest.approx([5.0, np.nan], nan_ok=True)
    assert table["verify_ms"].tolist() == pytest.approx([20.0, np.nan], nan_ok=True)
    assert len(ablation_figures.draft_length(table).axes) == 2
    unknown = table.assign(draft_ms=np.nan, verify_ms=np.nan)
    assert len(ablation_figures.draft_length(unknown).axes) == 1


def test_figure_4_draws_the_tables_values_and_names_every_line(trained):
    _, groups = groups_of(*(trained(f"{name}{g}", name, gamma=g) for name in ("dspark", "dflash") for g in (4, 8)))
    table = sweep_table(groups, [1.0], DRAFT_LENGTH)
    figure = ablation_figures.draft_length(table)
    assert drawn(figure) == {"dspark-markov", "dflash"} and len(figure.axes) == 2
    assert figure.axes[0].get_title(loc="left") == "T = 1"
    heights = [line.get_ydata().tolist() for axes in figure.axes for line in axes.lines if line.get_marker() in "os"]
    rows = table.sort_values(["line", "value"])
    for name, column in (
        ("dflash", "accepted_length"),
        ("dspark-markov", "accepted_length"),
        ("dspark-markov", "gain"),
    ):
        assert pytest.approx(rows.loc[rows["line"] == name, column].tolist()) in heights


def test_a_comparison_of_a_sweep_writes_differences_seeds_and_both_figures(trained, tmp_path, capsys):
    folders = [trained("s4", gamma=4), trained("s4b", gamma=4, seed=1), trained("s8", gamma=8, depth=1)]
    bare = trained("bare")
    (bare / ".hydra" / "config.yaml").unlink()
    page = compare_runs([*folders, bare, tmp_path / "gone"], tmp_path / "out")
    out, text = page.parent, page.read_text()
    keys = pd.read_csv(out / "differences.csv")
    assert keys["key"].tolist() == ["block.block_size", "drafter.num_layers", "seed"]
    assert keys.columns.tolist() == ["key", "s4", "s4b", "s8"]
    assert len(pd.read_csv(out / "seeds.csv")) == 3
    assert (out / "depth.png").is_file() and (out / "draft_length.png").is_file()
    for part in ("Configuration differences", "Seeds", "Figure 3 of the paper", "Figure 4 of the paper"):
        assert part in text
    shown = capsys.readouterr().out
    assert "bare: its .hydra/config.yaml is missing" in shown and "bare: its .hydra/config.yaml is missing" in text
    assert "left out: gone: " in shown and set(pd.read_csv(out / "runs.csv")["run"]) == {"s4", "s4b", "s8", "bare"}
    compare_runs([folders[0], bare], out, show=False)
    assert not list(out.glob("d*.csv")) and not list(out.glob("d*.png")) and not (out / "seeds.csv").exists()


def test_a_run_without_a_whole_number_of_layers_is_named(trained, tmp_path):
    odd = trained("odd", "dflash")
    config = odd / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace("num_layers: 2", "num_layers: null"))
    text = compare_runs([trained("a", depth=1), trained("b", depth=2), odd], tmp_path / "out", show=False).read_text()
    assert "Not in the figure by drafter depth: odd: expected a whole number at drafter.num_layers" in text


def test_the_terminal_shows_ratios_of_few_runs_only(fake_run, tmp_path, capsys):
    folders = [fake_run(f"r{place}", prompts=2, temperatures=(1.0,), seed=place) for place in range(6)]
    compare_runs(folders, tmp_path / "out")
    shown = capsys.readouterr().out
    assert "ratios of 6 runs to each other" in shown and "over r0" not in shown
    compare_runs(folders[:5], tmp_path / "out")
    shown = capsys.readouterr().out
    assert "ratios of" not in shown and "over r0" in shown
