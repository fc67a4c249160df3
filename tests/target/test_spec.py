"""TargetSpec: what is refused, and the paper's rule for tapped layers."""

from __future__ import annotations

import pytest

from draftlab.target import TargetSpec
from draftlab.target.spec import paper_layer_ids

SIZES = {
    "num_layers": 4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
}


def spec(**changes) -> TargetSpec:
    """A valid spec with ``changes``."""
    facts = {"name": "t", "path": "t", "target_layer_ids": [0, 2], "mask_token_id": 3, "eos_token_ids": [2]}
    return TargetSpec(**(SIZES | facts | changes))


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [(36, (1, 9, 17, 25, 33)), (40, (1, 10, 19, 28, 37)), (30, (1, 8, 15, 22, 27))],
)
def test_layer_ids_of_the_paper_come_out_of_its_rule(num_layers, expected):
    assert paper_layer_ids(num_layers) == expected


@pytest.mark.parametrize("num_layers", range(1, 60))
def test_the_rule_gives_a_valid_spec_for_every_depth(num_layers):
    ids = paper_layer_ids(num_layers)
    assert spec(num_layers=num_layers, target_layer_ids=ids).num_features == len(ids) <= 5
    assert num_layers < 6 or len(ids) >= 4


def test_lists_become_tuples_and_feature_size_is_layers_times_width():
    built = spec(target_layer_ids=[-1, 0, 2])
    assert built.target_layer_ids == (-1, 0, 2)
    assert hash(built) and (built.num_features, built.feature_size) == (3, 96)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([0, 3], "final norm"),  # the last layer, whose hidden state Hugging Face gives only normed
        ([0, 4], "-1..2"),
        ([-2, 1], "-1..2"),
        ([2, 1], "ascending"),
        ([1, 1], "each once"),
        ([], "at least one"),
    ],
)
def test_layer_ids_outside_the_model_are_refused(ids, reason):
    with pytest.raises(ValueError, match=r"target\.target_layer_ids") as error:
        spec(target_layer_ids=ids)
    assert reason in str(error.value)


@pytest.mark.parametrize("changes", [{"mask_token_id": 2}, {"pad_token_id": 3}, {"eos_token_ids": [1, 3]}])
def test_a_mask_token_that_ends_or_pads_is_refused(changes):
    """Case 15."""
    with pytest.raises(ValueError, match=r"target\.mask_token_id .* is the (end-of-turn|padding) token"):
        spec(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"mask_token_id": 64},
        {"mask_token_id": -1},
        {"mask_token_id": None},
        {"eos_token_ids": [99]},
        {"pad_token_id": 64},
        {"hidden_size": 0},
        {"vocab_size": None},
        {"num_heads": 3},
        {"rope_theta": -1.0},
        {"logit_softcap": 0.0},
        {"embedding_scale": float("nan")},
        {"dtype": "int8"},
    ],
)
def test_values_out_of_range_are_refused_by_name(changes):
    with pytest.raises(ValueError, match=r"target\."):
        spec(**changes)
