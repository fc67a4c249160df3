"""Types of a configuration: what constructors declare is what a value must be, in every conf file and for every mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from draftlab.typed import check_types, parameter_types

CONF = Path(__file__).parents[1] / "conf"
CHOICES = [
    (group, path.stem)
    for group in ("drafter", "head", "loss", "block", "target")
    for path in (CONF / group).glob("*.yaml")
]
HEAD = {"_target_": "draftlab.heads.MarkovHead", "rank": 8}
DRAFTER = {"_target_": "draftlab.drafters.DSpark", "_partial_": True, "num_layers": 2}
SPEC = {"_target_": "draftlab.target.TargetSpec", "target_layer_ids": [1, 2]}
LOSS = {"_target_": "draftlab.losses.DraftLoss", "terms": [{"_target_": "draftlab.losses.CrossEntropy", "weight": 1}]}


def node(base, **changes):
    return OmegaConf.create({"part": {**base, **changes}})


@pytest.mark.parametrize("base", [HEAD, DRAFTER, SPEC, LOSS, {"_target_": "json.dumps", "indent": "x"}, {"rank": 1.5}])
def test_values_of_the_declared_types_pass_and_other_packages_are_not_looked_at(base):
    check_types(node(base))


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (HEAD, {"rank": 1.5}, "part.rank: expected int, got 1.5"),
        (HEAD, {"rank": True}, "part.rank: expected int, got True"),
        (HEAD, {"rank": "x"}, "part.rank: expected int, got 'x'"),
        (HEAD, {"rank": None}, "part.rank: expected int, got None"),
        (DRAFTER, {"num_layers": [2]}, "part.num_layers: expected int, got [2]"),
        (DRAFTER, {"num_heads": 1.5}, "part.num_heads: expected int | None, got 1.5"),
        (SPEC, {"target_layer_ids": [1.5]}, "part.target_layer_ids: expected tuple[int, ...], got [1.5]"),
        (SPEC, {"sampling": 3}, "part.sampling: expected Sampling, got 3"),
        (SPEC, {"target_layer_ids": "${nothing}"}, None),
        (SPEC, {"target_layer_ids": "???"}, None),
        (LOSS, {"terms": [{**LOSS["terms"][0], "weight": True}]}, "part.terms[0].weight: expected float, got True"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name_and_what_is_missing_is_left_to_omegaconf(base, changes, message):
    tree = node(base, **changes)
    if message is None:
        check_types(tree)
    else:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            check_types(tree)


def test_a_name_that_is_not_there_is_left_to_hydra_and_unannotated_parameters_are_free():
    assert parameter_types("draftlab.heads.Nothing") == {} == parameter_types(None)
    check_types(OmegaConf.create({"part": {"_target_": "draftlab.heads.Nothing", "rank": "x"}}))


@pytest.mark.parametrize(("group", "name"), sorted(CHOICES), ids="=".join)
def test_every_choice_is_of_the_types_that_its_constructor_declares(group, name):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", [f"{group}={name}"])
    for part in ("drafter", "head", "loss", "block", "target"):
        check_types(cfg[part], part)


def test_what_a_constructor_hands_on_is_of_the_type_that_its_base_declares():
    base = {"_target_": "draftlab.drafters.DFlash", "_partial_": True}
    check_types(node(base, train_head=False))
    with pytest.raises(ValueError, match=r"part\.train_head: expected bool, got 3"):
        check_types(node(base, train_head=3))


def test_a_value_that_no_parameter_takes_is_refused_with_those_that_there_are():
    """Also of a part that is made later, when Hydra's own words would come too late."""
    with pytest.raises(
        ValueError, match=r"part\.size: draftlab\.heads\.MarkovHead takes nothing of that name; it takes .*rank"
    ):
        check_types(node({"_target_": "draftlab.heads.MarkovHead", "_partial_": True}, size=3))
