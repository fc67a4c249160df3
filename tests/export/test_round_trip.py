"""Run -> export -> adopt says the same bit for bit, for every family, head, layout, vocabulary and format that can carry it."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import tiny
from draftlab.decode.trained import open_drafter
from draftlab.export.facts import facts_of
from draftlab.export.formats import FORMATS, able
from exporting import STYLE, adopt, equal, export, make_run, said

ONE_PLUS_N, SMALL_VOCABULARY = "block.sample_from_anchor=false", "drafter.draft_vocab_size=40"
GEMMA = (STYLE, "drafter.head_dim=16", "drafter.num_kv_heads=1")

# A drafter in overrides, and the formats that carry it.
KINDS = {
    "dspark-markov": (("drafter=dspark", "head.rank=4"), "deepspec speculators"),
    "dspark-gated": (("drafter=dspark", "head=gated", "head.rank=4"), "deepspec speculators"),
    "dspark-rnn": (("drafter=dspark", "head=rnn", "head.rank=4"), "deepspec speculators"),
    "dspark-none": (("drafter=dspark", "head=none"), "deepspec speculators"),
    "dspark-domino": (("drafter=dspark", "head=domino", "head.rank=4"), ""),
    "dspark-no-confidence": (
        ("drafter=dspark", "loss=no_confidence", "head.rank=4", "drafter.confidence_head=false"),
        "deepspec speculators",
    ),
    "dspark-unnormed": (("drafter=dspark", "head.rank=4", "drafter.confidence_input=unnormed"), ""),
    "dspark-1+N": (("drafter=dspark", "head.rank=4", ONE_PLUS_N), "speculators"),
    "dspark-small-vocabulary": (("drafter=dspark", "head.rank=4", SMALL_VOCABULARY), "deepspec speculators"),
    "dspark-own-head": (("drafter=dspark", "head.rank=4", "drafter.train_head=true"), "deepspec speculators"),
    "dspark-own-small-head": (
        ("drafter=dspark", "head.rank=4", "drafter.train_head=true", SMALL_VOCABULARY),
        "deepspec speculators",
    ),
    "dspark-other-sizes": (
        (
            "drafter=dspark",
            "head.rank=4",
            "drafter.num_heads=8",
            "drafter.num_kv_heads=4",
            "drafter.intermediate_size=20",
        ),
        "deepspec speculators",
    ),
    "dspark-early-exit": (("drafter=dspark", "head.rank=4", "drafter.exits=[1]"), "deepspec speculators"),
    "dflash": (("drafter=dflash",), "deepspec speculators"),
    "dflash-1+N": (("drafter=dflash", ONE_PLUS_N), "dflash speculators"),
    "dflash-1+N-small-vocabulary": (("drafter=dflash", ONE_PLUS_N, SMALL_VOCABULARY), "speculators"),
    "eagle3": (("drafter=eagle3", "drafter.num_layers=1"), "deepspec speculators"),
    "eagle3-small-vocabulary": (("drafter=eagle3", "drafter.num_layers=1", SMALL_VOCABULARY), "deepspec speculators"),
    "eagle3-qk-norm": (("drafter=eagle3", "drafter.num_layers=1", "drafter.qk_norm=true"), "deepspec"),
    "eagle3-deep": (("drafter=eagle3", "drafter.num_layers=2"), ""),
    "mtp": (("drafter=mtp", "drafter.num_layers=1"), ""),
    "gemma-dspark": (("drafter=dspark", "head.rank=4", *GEMMA), "deepspec"),
    "gemma-dflash": (("drafter=dflash", *GEMMA), "deepspec"),
    "gemma-eagle3": (("drafter=eagle3", "drafter.num_layers=1", "drafter.qk_norm=true", *GEMMA), "deepspec"),
    "gemma-own-values": (
        ("drafter=dspark", "head.rank=4", *GEMMA, "drafter.style.keys_as_values=false", "drafter.num_kv_heads=2"),
        "deepspec",
    ),
}
CARRIED = [(kind, name) for kind, (_, formats) in KINDS.items() for name in formats.split()]


@pytest.fixture(scope="module")
def targets(tmp_path_factory, target_folder):
    """Folders of the two targets: Llama's ends, and Gemma's with a scale and a soft cap."""
    folder = tmp_path_factory.mktemp("gemma")
    return {False: target_folder, True: tiny.save_tiny_target(folder, "gemma4_text")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, targets):
    """Run folders by kind, made when they are asked for."""
    made, root = {}, tmp_path_factory.mktemp("runs")

    def run_of(kind):
        if kind not in made:
            made[kind] = make_run(root / kind, targets[kind.startswith("gemma")], *KINDS[kind][0])
        return made[kind]

    return run_of


@pytest.mark.parametrize(("kind", "name"), CARRIED)
def test_what_comes_back_says_the_same_bit_for_bit(kind, name, runs, targets, tmp_path):
    folder = export(runs(kind), tmp_path / "out", name)
    again = adopt(folder, tmp_path / "again", targets[kind.startswith("gemma")])
    assert equal(said(runs(kind)), said(again))
    second = export(again, tmp_path / "second", name)
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, second))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert (folder / "config.json").read_text() == (second / "config.json").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_format_carries_what_is_listed_and_refuses_the_rest_naming_those_that_can(kind, runs, tmp_path):
    drafter = open_drafter(runs(kind)).drafter
    assert able(facts_of(drafter)) == KINDS[kind][1].split()
    for name in FORMATS:
        if name in KINDS[kind][1].split():
            continue
        with pytest.raises(ValueError, match=f"format={name} cannot carry this drafter: ") as refused:
            export(runs(kind), tmp_path / "out", name)
        can = KINDS[kind][1].split()
        assert str(refused.value).endswith(f"Format={' or format='.join(can)} can" if can else "No format can")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["dspark-markov", "dspark-small-vocabulary", "eagle3", "dflash-1+N", "gemma-dspark"])
def test_ends_of_the_target_that_go_along_are_recognised_and_shared_again(kind, runs, targets, tmp_path):
    name = KINDS[kind][1].split()[0]
    shared, copied = (export(runs(kind), tmp_path / ends, name, ends=ends) for ends in ("shared", "copied"))
    assert set(load_file(copied / "model.safetensors")) - set(load_file(shared / "model.safetensors")) <= {
        "embed_tokens.weight",
        "lm_head.weight",
    }
    again = adopt(copied, tmp_path / "again", targets[kind.startswith("gemma")])
    assert open_drafter(again).drafter.lm_head is None
    assert equal(said(runs(kind)), said(again))


def test_half_precision_comes_back_as_what_was_written(runs, target_folder, tmp_path):
    folder = export(runs("dspark-markov"), tmp_path / "out", "deepspec", dtype="bfloat16")
    assert {value.dtype for value in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    again = export(adopt(folder, tmp_path / "again", target_folder), tmp_path / "second", "deepspec", dtype="bfloat16")
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, again))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
