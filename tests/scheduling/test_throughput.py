"""The SPS table: look-up as engines do it, what it looks like, and what is refused (case 21)."""

import json

import numpy as np
import pytest

from draftlab.scheduling import Throughput

TABLE = Throughput([1, 4, 8], [10.0, 6.0, 5.0])


def test_floor_takes_the_largest_measured_size_below_and_linear_what_lies_between():
    assert TABLE([0, 1, 3, 4, 7, 8, 99]).tolist() == [10.0, 10.0, 10.0, 6.0, 6.0, 5.0, 5.0]
    linear = Throughput([1, 4, 8], [10.0, 6.0, 5.0], "linear")
    assert linear([1, 2.5, 6, 99]).tolist() == [10.0, 8.0, 5.5, 5.0]


def test_all_sizes_at_once_are_the_sizes_one_by_one():
    assert TABLE.upto(9).tolist() == [float(TABLE(size)) for size in range(10)]


def test_a_flat_table_warns_that_everything_will_be_verified():
    flat = Throughput([1, 8, 64], [10.0, 9.9, 9.8])
    assert flat.is_flat and "warning" in flat.shape() and "every drafted token" in flat.shape()
    assert not TABLE.is_flat and "monotonically" in TABLE.shape()


def test_a_staircase_names_where_it_rises():
    bumpy = Throughput([1, 2, 3, 4, 5], [10.0, 6.0, 7.0, 3.0, 4.0])
    assert bumpy.bumps == [3, 5] and "rises at 3, 5 tokens" in bumpy.shape()


@pytest.mark.parametrize(
    ("tokens", "values", "message"),
    [
        ([1], [2.0], "at least two points"),
        ([1, 2], [2.0], "a value a point"),
        ([2, 1], [2.0, 1.0], "increasing"),
        ([1, 1], [2.0, 1.0], "increasing"),
        ([0, 1], [2.0, 1.0], "positive and increasing"),
        ([1, 2.5], [2.0, 1.0], "whole"),
        ([1, 2], [2.0, -1.0], "positive and finite"),
        ([1, 2], [2.0, float("nan")], "positive and finite"),
    ],
)
def test_what_is_no_table_is_refused(tokens, values, message):
    with pytest.raises(ValueError, match=message):
        Throughput(tokens, values)


def test_a_saved_table_is_the_form_of_the_engines_and_reads_back(tmp_path):
    path = tmp_path / "sps.json"
    TABLE.save(path)
    assert json.loads(path.read_text()) == {
        "sample_batch_tokens": [1, 4, 8],
        "sample_steps_per_sec": [10.0, 6.0, 5.0],
        "max_batch_tokens": 8,
    }
    again = Throughput.load(path)
    assert np.array_equal(again.batch_tokens, TABLE.batch_tokens)
    assert np.array_equal(again.steps_per_second, TABLE.steps_per_second)


@pytest.mark.parametrize("content", ["{}", "[1, 2]", "not json", '{"sample_batch_tokens": [1, 2]}'])
def test_a_file_that_is_no_table_is_refused_by_its_name(tmp_path, content):
    path = tmp_path / "sps.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"sps\.json"):
        Throughput.load(path)


@pytest.mark.parametrize("seed", range(12))
def test_the_convex_form_is_the_largest_convex_curve_below_the_seconds(seed):
    generator = np.random.default_rng(seed)
    tokens = np.unique(np.append(generator.integers(1, 40, 8), [1, 40]))
    look_up = ["floor", "linear"][seed % 2]
    table = Throughput(tokens, 1.0 / generator.uniform(0.5, 2.0, len(tokens)), look_up)
    sizes = np.arange(1, 41)
    seconds, convex = 1.0 / table(sizes), 1.0 / table.convex()(sizes)
    # Brute force: the lowest chord over every size. A linear table is linear in SPS, so its seconds sag between entries.
    if look_up == "linear":
        seconds = np.interp(sizes, tokens, 1.0 / table(tokens))
    for size in sizes:
        chords = [
            seconds[a - 1] + (seconds[b - 1] - seconds[a - 1]) * (size - a) / max(b - a, 1)
            for a in range(1, size + 1)
            for b in range(size, 41)
        ]
        assert convex[size - 1] == pytest.approx(min(chords)), size


def test_the_convex_form_counts_passes_smaller_than_the_first_entry_too():
    """They take as long as the first entry's, so a rise behind it is no reason to stop before it."""
    convex = Throughput([4, 5], [0.5, 1.0]).convex()
    assert (1.0 / convex(range(1, 6))).tolist() == pytest.approx([2.0, 1.75, 1.5, 1.25, 1.0])


@pytest.mark.parametrize(
    "tokens", [["1", "2"], [None, 2], [1, 10**30], [1.0, float("inf")], [1, 10**12], [[1], [2, 3]], "12", True]
)
def test_tokens_that_are_no_numbers_of_a_pass_are_refused(tokens):
    with pytest.raises(ValueError, match="SPS table"):
        Throughput(tokens, [2.0, 1.0])
