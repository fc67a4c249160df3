"""Cells: the same as W&B's own engine would run, under names that are folders."""

import itertools
import math
import statistics
from random import Random

import pytest

from draftlab.sweeps import make_cells, read_sweep
from draftlab.sweeps.cells import cell_name
from draftlab.sweeps.distributions import read_parameter


def cells(bench, parameters, count=None, seed=0, **content):
    return make_cells(read_sweep(bench.write(parameters, **content)), count, seed)


def test_a_grid_is_every_combination_with_the_first_parameter_slowest(bench):
    made = cells(bench, {"b": {"values": ["x", "y"]}, "a.n": {"min": 1, "max": 3}, "c": {"value": 7}})
    expected = [{"b": b, "a.n": n, "c": 7} for b, n in itertools.product(["x", "y"], [1, 2, 3])]
    assert [cell.values for cell in made] == expected
    assert made[0].name == "b_x-n_1" and made[0].arguments == ["b=x", "a.n=1", "c=7"]


def test_a_count_takes_the_first_cells_of_a_grid(bench):
    assert [cell.name for cell in cells(bench, {"a": {"values": [1, 2, 3]}}, count=2)] == ["a_1", "a_2"]


def test_a_seed_is_a_parameter_like_any_other(bench):
    assert [cell.arguments for cell in cells(bench, {"seed": {"values": [0, 1]}})] == [["seed=0"], ["seed=1"]]


RANDOM = {"lr": {"distribution": "log_uniform_values", "min": 1.0e-4, "max": 1.0e-2}, "head": {"values": ["a", "b"]}}


def test_random_cells_depend_on_the_seed_alone_and_a_larger_count_keeps_the_first(bench):
    five, eight = (cells(bench, RANDOM, count=count, seed=3, method="random") for count in (5, 8))
    other = cells(bench, RANDOM, count=5, seed=4, method="random")
    assert eight[:5] == five and not {cell.name for cell in five} & {cell.name for cell in other}
    assert len({cell.name for cell in eight}) == 8


def test_a_random_sweep_has_no_cell_twice_and_ends_when_there_are_no_more(bench):
    made = cells(bench, {"a": {"values": [1, 2, 3]}}, count=10, method="random")
    assert sorted(cell.values["a"] for cell in made) == [1, 2, 3]


def test_a_random_sweep_needs_a_count_of_its_own_or_of_the_file(bench):
    with pytest.raises(ValueError, match="--count N"):
        cells(bench, RANDOM, method="random")
    assert len(cells(bench, RANDOM, method="random", run_cap=4)) == 4
    with pytest.raises(ValueError, match="at least 1"):
        cells(bench, RANDOM, count=0, method="random")


@pytest.mark.parametrize(
    "settings",
    [
        {"distribution": "log_normal", "mu": 800},
        {"distribution": "q_log_normal", "mu": 800},
        {"distribution": "uniform", "min": -1.7e308, "max": 1.7e308},
    ],
    ids=str,
)
def test_a_law_that_draws_numbers_beyond_a_float_is_refused_by_name(bench, settings):
    with pytest.raises(ValueError, match=rf"try\.yaml: a: {settings['distribution']} with .* beyond those of a float"):
        cells(bench, {"a": settings}, count=1, method="random")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"a.head": "rnn", "b.size": 2}, "head_rnn-size_2"),
        ({"a.size": 1, "b.size": 2}, "a.size_1-b.size_2"),
        ({"lr": 1.0e-05}, "lr_1e-05"),
        ({}, "only"),
    ],
)
def test_a_name_says_the_values(values, name):
    assert cell_name(values, list(values)) == name


@pytest.mark.parametrize(
    "pair", [("a/b", "a_b"), ("../x", "_x"), ([0, 1], [0, 2]), ("x" * 300, "x" * 301), ("a b", "a,b")]
)
def test_values_that_are_no_folder_names_get_safe_and_different_ones(pair):
    first, second = (cell_name({"key": value}, ["key"]) for value in pair)
    assert first != second
    assert all(len(name) < 140 and not set(name) & set("/ ,=[]'") for name in (first, second))


def test_cells_whose_values_hold_the_names_of_others_have_folders_of_their_own():
    """Every pair of values made of one to three parts that look like the joints of a name."""
    words = ["-".join(parts) for n in (1, 2, 3) for parts in itertools.product(("1", "b_1", "a_1"), repeat=n)]
    pairs = list(itertools.product(words, words))
    assert len({cell_name({"x.a": a, "b": b}, ["x.a", "b"]) for a, b in pairs}) == len(pairs)
    assert cell_name({"a": "1-b", "b": "2-c_3"}, ["a", "b"]) == "a_1-b-b_2-c_3"  # reads one way: no digest


def test_the_name_of_a_cell_does_not_depend_on_the_cells_after_it(bench):
    parameters = {"a": {"values": ["1-b_2", "1"]}, "b": {"values": ["3", "2-b_3"]}}
    names = [cell.name for cell in cells(bench, parameters)]
    assert len(set(names)) == 4 and names[0].startswith("a_1-b_2-b_3-") and names[2] == "a_1-b_3"
    assert [cell.name for cell in cells(bench, parameters, count=1)] == names[:1]


@pytest.mark.parametrize(
    "parameters",
    [
        {"a": {"values": [1, 2]}, "b": {"values": ["x", "y", "z"]}, "c": {"value": 0}},
        {"a": {"min": 2, "max": 5}},
        {"a": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.25}},
        {"a": {"distribution": "q_uniform", "min": 1, "max": 7, "q": 2}},
    ],
)
def test_a_grid_has_the_cells_of_wandbs_own_engine(bench, parameters):
    engine = pytest.importorskip("sweeps.grid_search", reason="needs wandb[sweeps]")
    theirs = engine.grid_search_next_runs([], {"method": "grid", "parameters": parameters}, n=100)
    theirs = [{name: value["value"] for name, value in run.config.items()} for run in theirs if run is not None]
    ours = [cell.values for cell in cells(bench, parameters)]
    assert len(ours) == len(theirs) and all(values in theirs for values in ours)


@pytest.mark.parametrize(
    "settings",
    [
        {"min": 1, "max": 9},
        {"min": 1.0, "max": 5.0},
        {"distribution": "q_uniform", "min": 0, "max": 10, "q": 2},
        {"distribution": "log_uniform_values", "min": 1.0e-4, "max": 1.0},
        {"distribution": "inv_log_uniform_values", "min": 1.0e-4, "max": 1.0},
        {"distribution": "q_log_uniform_values", "min": 1, "max": 1000, "q": 5},
        {"distribution": "normal", "mu": 3, "sigma": 0.5},
        {"distribution": "q_normal", "mu": 3, "sigma": 2, "q": 1},
        {"distribution": "log_normal", "mu": 0.5, "sigma": 0.5},
        {"distribution": "q_log_normal", "mu": 2, "sigma": 0.5, "q": 1},
        {"distribution": "beta", "a": 2, "b": 5},
        {"values": [1, 2, 10], "probabilities": [0.2, 0.5, 0.3]},
        {"values": [1, 2, 10]},
    ],
    ids=str,
)
def test_draws_follow_the_law_of_wandbs_own_engine(settings):
    """Mean and mean of the logarithm, or of the square, of 4,000 draws against its quantile function."""
    params = pytest.importorskip("sweeps.params", reason="needs wandb[sweeps]")
    theirs, ours, count = params.HyperParameter("a", settings), read_parameter("a", settings), 4000
    expected = [float(theirs.ppf((i + 0.5) / count)) for i in range(count)]
    drawn = [ours.draw(Random(f"0-{i}")) for i in range(count)]
    for moment in (lambda x: x, lambda x: math.log(abs(x) + 1e-3), lambda x: x * x):
        left, right = [moment(x) for x in expected], [moment(x) for x in drawn]
        error = statistics.stdev(left) / count**0.5
        assert abs(statistics.fmean(left) - statistics.fmean(right)) < 4.5 * error


@pytest.mark.parametrize(
    "settings", [{"min": 1, "max": 9}, {"distribution": "q_uniform", "min": 0, "max": 10, "q": 2}], ids=str
)
def test_whole_numbers_stay_whole(settings):
    assert type(read_parameter("a", settings).draw(Random(1))) is int


def test_a_drawn_number_has_six_digits_and_no_rounding_noise():
    uniform = read_parameter("a", {"min": 0.0, "max": 1.0})
    quantized = read_parameter("a", {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.1})
    for seed in range(50):
        assert len(str(uniform.draw(Random(seed)))) <= 12
        assert len(str(quantized.draw(Random(seed)))) <= 3
