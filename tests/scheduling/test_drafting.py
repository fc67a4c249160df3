"""The drafting table: interpolation over rows and tokens, its file, and what is no table."""

from __future__ import annotations

import json

import numpy as np
import pytest

from draftlab.scheduling import Drafting, Throughput


def test_seconds_lie_between_blocks_of_one_token_and_whole_ones_and_between_rows():
    drafting = Drafting([1, 3], [0.7, 1.4], 7, [0.1, 0.2])
    assert drafting.seconds(1) == drafting.seconds(1, 7) == 0.7
    assert drafting.seconds(2) == pytest.approx(1.05) and drafting.seconds(9) == 1.4
    assert drafting.seconds(1, 1) == pytest.approx(0.1) and drafting.seconds(1, 4) == pytest.approx(0.4)
    assert drafting.seconds(2, 1) == pytest.approx(0.15)


def test_without_times_of_one_token_the_length_costs_nothing_and_noise_never_pays():
    assert Drafting([1], [0.7], 7).seconds(1, 2) == 0.7
    assert Drafting([1], [0.7], 7, [0.8]).token_seconds(1) == 0.0


def test_a_file_is_an_sps_table_with_two_keys_more(tmp_path):
    path = tmp_path / "draft_sps.json"
    Drafting([1, 8], [0.5, 2.0], 7, [0.25, 1.0]).save(path)
    assert Throughput.load(path)(8) == 0.5
    again = Drafting.load(path)
    assert again.block_size == 7 and again.whole.tolist() == [0.5, 2.0] and again.one.tolist() == [0.25, 1.0]
    Throughput([1, 8], [2.0, 0.5]).save(path)
    assert Drafting.load(path).one is None and Drafting.load(path).seconds(8, 1) == 2.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([2, 1], [1.0, 2.0]), "increasing"),
        (([1.5], [1.0]), "whole"),
        (([], []), "whole"),
        (([1], [1.0, 2.0]), "each of its 1"),
        (([1], [0.0]), "positive"),
        (([1], [1.0], 0), "block size"),
        (([1], [1.0], 7, [np.nan]), "positive"),
    ],
)
def test_what_is_no_table_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Drafting(*arguments)


@pytest.mark.parametrize(
    "change", [{"one_token_steps_per_sec": [1.0]}, {"block_size": "7"}, {"one_token_steps_per_sec": [0.0, 1]}]
)
def test_a_damaged_file_is_refused_by_name(tmp_path, change):
    path = tmp_path / "draft_sps.json"
    Drafting([1, 8], [0.5, 2.0], 7, [0.25, 1.0]).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"draft_sps\.json"):
        Drafting.load(path)
