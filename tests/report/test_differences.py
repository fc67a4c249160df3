"""Recorded configurations: what counts as a difference, which runs differ in the seed alone, and what a drafter is called."""

import pytest

from draftlab.report.differences import difference_table, drafter_name, flat_config, labels, seed_groups

CONFIG = """
run_name: a
seed: 0
resume: true
drafter: {_target_: draftlab.drafters.DSpark, _partial_: true, num_layers: 2}
head: {_target_: draftlab.heads.MarkovHead, _partial_: true, rank: 256}
block: {block_size: 7, decay_gamma: '${block.block_size}'}
data: {path: "project:data/demo", cache_dir: null, seed: '${seed}'}
trainer: {optimizer: {lr: 0.002, warmup: 1}, settings: {max_steps: null}}
callbacks: {latest: {dirpath: '${hydra:runtime.output_dir}/checkpoints', every_n_train_steps: 50}}
logger: {csv: {folder: a}}
evaluation: {limit: 20}
target: {name: tiny, path: /somewhere, target_layer_ids: [1, 8]}
"""


def changed(*pairs):
    text = CONFIG
    for old, new in pairs:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return flat_config(text)


def test_a_changed_value_is_one_row_and_references_to_it_are_none():
    table = difference_table({"a": flat_config(CONFIG), "b": changed(("block_size: 7", "block_size: 16"))})
    assert table.to_dict("records") == [{"key": "block.block_size", "a": "7", "b": "16"}]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("run_name: a", "run_name: b"),
        ("resume: true", "resume: false"),
        ("/checkpoints", "/elsewhere"),
        ("folder: a", "folder: b"),
        ("cache_dir: null", "cache_dir: /scratch"),
        ("path: /somewhere", "path: /else"),
        ("limit: 20", "limit: 5"),
        ("warmup: 1", "warmup: 1.0"),
    ],
)
def test_names_places_and_the_evaluation_are_no_difference(old, new):
    assert difference_table({"a": flat_config(CONFIG), "b": changed((old, new))}).empty


@pytest.mark.parametrize(
    ("old", "new", "row"),
    [
        ("project:data/demo", "outputs/more", ["data.path", "project:data/demo", "outputs/more"]),
        ("max_steps: null", "max_steps: 5", ["trainer.settings.max_steps", "null", "5"]),
        ("rank: 256}", "rank: 256, gate: false}", ["head.gate", None, "false"]),
        ("[1, 8]", "[1, 9]", ["target.target_layer_ids", "[1, 8]", "[1, 9]"]),
        ("every_n_train_steps: 50", "every_n_train_steps: 9", ["callbacks.latest.every_n_train_steps", "50", "9"]),
    ],
)
def test_what_is_trained_is_a_difference(old, new, row):
    assert difference_table({"a": flat_config(CONFIG), "b": changed((old, new))}).values.tolist() == [row]


def test_a_key_that_differs_in_the_third_run_only_is_shown_for_all():
    first = flat_config(CONFIG)
    table = difference_table({"a": first, "b": first, "c": changed(("lr: 0.002", "lr: 0.001"))})
    assert table.values.tolist() == [["trainer.optimizer.lr", "0.002", "0.002", "0.001"]]


def test_a_run_called_key_has_a_column_of_its_own():
    table = difference_table({"key": flat_config(CONFIG), "b": changed(("lr: 0.002", "lr: 0.001"))})
    assert table.values.tolist() == [["trainer.optimizer.lr", "0.002", "0.001"]]


def test_runs_that_differ_in_the_seed_alone_are_a_group():
    configs = {
        "a": flat_config(CONFIG),
        "other": changed(("lr: 0.002", "lr: 0.001")),
        "b": changed(("run_name: a\nseed: 0", "run_name: b\nseed: 1")),
        "both": changed(("run_name: a\nseed: 0", "run_name: b\nseed: 1"), ("rank: 256", "rank: 8")),
    }
    assert seed_groups(configs) == [["a", "b"], ["other"], ["both"]]


@pytest.mark.parametrize(
    ("drafter", "head", "name"),
    [
        ("DSpark", "MarkovHead", "dspark-markov"),
        ("DSpark", "RNNHead", "dspark-rnn"),
        ("DSpark", "NoHead", "dspark-none"),
        ("DFlash", "NoHead", "dflash"),
        ("Eagle3", "NoHead", "eagle3"),
    ],
)
def test_a_drafter_is_called_by_family_and_head(drafter, head, name):
    assert drafter_name(changed(("drafters.DSpark", f"drafters.{drafter}"), ("MarkovHead", head))) == name


def test_labels_tell_apart_what_the_drafters_name_does_not():
    flash = changed(("drafters.DSpark", "drafters.DFlash"), ("MarkovHead", "NoHead"))
    slow = changed(("lr: 0.002", "lr: 0.001"))
    assert labels([flat_config(CONFIG), slow, flash]) == [
        "dspark-markov, lr 0.002",
        "dspark-markov, lr 0.001",
        "dflash",
    ]
    without_rank = {key: value for key, value in slow.items() if key != "head.rank"}
    assert labels([slow, without_rank]) == ["dspark-markov, rank 256", "dspark-markov, no rank"]


def test_labels_name_as_many_keys_as_tell_all_configurations_apart_and_no_more():
    keys = [f"trainer.key{place}" for place in range(6)]
    first = {"drafter._target_": "draftlab.drafters.DFlash"} | dict.fromkeys(keys, "1")
    three = first | dict.fromkeys(keys[:3], "2") | {keys[5]: "2"}
    last = three | {keys[4]: "2"}
    found = labels([first, three, last, dict(last)])
    assert found[0] == "dflash, key0 1, key1 1, key2 1, key4 1, …"
    assert found[1] == "dflash, key0 2, key1 2, key2 2, key4 1, …"
    assert found[2] == found[3] == "dflash, key0 2, key1 2, key2 2, key4 2, …"


def test_classes_of_one_name_are_told_apart_by_a_number():
    one, other = ({"drafter._target_": "DFlash", "loss._target_": f"{package}.Loss"} for package in ("mine", "yours"))
    assert labels([one, other]) == ["dflash, loss Loss", "dflash, loss Loss (2)"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "config.yaml is missing"), ("- a\n- b", "holds no keys"), ("", "holds no keys"), ("a: [", "no YAML")],
)
def test_a_configuration_that_cannot_be_read_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        flat_config(text)


def test_a_configuration_without_a_drafter_has_no_name():
    with pytest.raises(ValueError, match=r"names no drafter"):
        drafter_name(flat_config("seed: 1"))
