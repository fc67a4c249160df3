"""Checkpoints: what they hold, what they refuse, and which one is newest and whole."""

import os

import pytest
import torch

import fitting
from drafting import make_head
from draftlab.blocks import BlockSpec
from draftlab.callbacks import LatestCheckpoint
from draftlab.drafters import DSpark
from draftlab.training import best_checkpoint, load_drafter, newest_checkpoint, read_checkpoint
from draftlab.training.checkpoint import describe, require_same
from draftlab.training.run import set_vocabulary


@pytest.fixture(scope="module")
def target():
    return fitting.fitting_target()


@pytest.fixture(scope="module")
def run(target, tmp_path_factory):
    """A run folder and the module it was trained with: a reduced draft vocabulary, one checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    data = fitting.answers_data(target, fitting.write_answers(folder))
    module = fitting.tiny_module(target, draft_vocab_size=40)
    set_vocabulary(module.drafter, data)
    fitting.silent_trainer(folder, [LatestCheckpoint(str(folder / "checkpoints"), 50)], max_steps=2).fit(module, data)
    return folder, module


def fresh(target, sample_from_anchor=True, head="markov", **options):
    block = BlockSpec(3, fitting.EVERY_ANCHOR, sample_from_anchor=sample_from_anchor)
    return DSpark(target.spec, block, make_head(head), **({"num_layers": 1, "draft_vocab_size": 40} | options))


def test_the_end_of_training_is_saved_also_between_two_periodic_checkpoints(run):
    assert newest_checkpoint(run[0]).name == "step-2.ckpt"


def test_a_checkpoint_holds_the_drafters_tensors_and_nothing_of_the_target(run):
    """Case 14."""
    folder, module = run
    saved = torch.load(newest_checkpoint(folder), weights_only=True)["state_dict"]
    expected = {f"drafter.{name}": tensor for name, tensor in fitting.weights_of(module).items()}
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in expected.items())
    assert "drafter.draft_ids" in saved


def test_a_loaded_drafter_gives_the_same_logits_and_vocabulary(run, target):
    folder, module = run
    loaded = load_drafter(newest_checkpoint(folder), fresh(target)).attach(target.ends)
    hidden, previous = torch.randn(2, 3, target.spec.hidden_size), torch.randint(0, fitting.VOCAB, (2, 3))
    assert torch.equal(loaded.draft_ids, module.drafter.draft_ids) and not loaded.training
    assert torch.equal(loaded.draft_logits(hidden, previous), module.drafter.draft_logits(hidden, previous))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sample_from_anchor": False}, "sample_from_anchor: expected False, found True"),
        ({"head": "gated"}, "head: expected 'GatedHead', found 'MarkovHead'"),
        ({"confidence_head": False}, "confidence_head: expected False, found True"),
        ({"confidence_input": "unnormed"}, "confidence_input: expected 'unnormed', found 'normed'"),
        ({"draft_vocab_size": 41}, "draft_vocab_size: expected 41, found 40"),
        ({"num_layers": 2}, "layers.1"),
    ],
)
def test_a_checkpoint_of_another_layout_head_or_size_is_refused_by_name(run, target, changes, word):
    with pytest.raises(ValueError, match=word.replace(".", r"\.")):
        load_drafter(newest_checkpoint(run[0]), fresh(target, **changes))


def test_a_checkpoint_from_before_a_choice_existed_means_its_default(target):
    older = {key: value for key, value in describe(fresh(target)).items() if key != "confidence_input"}
    require_same(fresh(target), older, "an older checkpoint")
    with pytest.raises(ValueError, match="confidence_input"):
        require_same(fresh(target, confidence_input="unnormed"), older, "an older checkpoint")


def test_a_checkpoint_of_another_target_is_refused(run):
    other = fitting.tiny_target(vocab_size=fitting.VOCAB, target_layer_ids=(0, 2), spec={"name": "other"})
    with pytest.raises(ValueError, match=r"target: expected 'other'.*target_layer_ids: expected \[0, 2\]"):
        load_drafter(newest_checkpoint(run[0]), fresh(other))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_cut_checkpoint_is_passed_over_and_refused_by_name(run, tmp_path, share, capsys):
    """Case 13."""
    whole = newest_checkpoint(run[0])
    (tmp_path / "checkpoints").mkdir()
    older, newer = (tmp_path / "checkpoints" / f"step-{step}.ckpt" for step in (1, 2))
    older.write_bytes(whole.read_bytes())
    newer.write_bytes(whole.read_bytes()[: int(share * whole.stat().st_size)])
    os.utime(older, (1, 1))
    assert newest_checkpoint(tmp_path) == older
    assert "step-2.ckpt is cut short" in capsys.readouterr().out
    with pytest.raises(ValueError, match="cut short or damaged"):
        read_checkpoint(newer)
    older.unlink()
    with pytest.raises(ValueError, match="no whole checkpoint"):
        newest_checkpoint(tmp_path)


def test_a_damaged_byte_in_the_middle_is_found(run, tmp_path):
    content = bytearray(newest_checkpoint(run[0]).read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(reversed(content[middle : middle + 40]))
    damaged = tmp_path / "damaged.ckpt"
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match="cut short or damaged"):
        read_checkpoint(damaged)


def test_the_best_checkpoint_is_taken_before_a_newer_one(run, tmp_path):
    """Case 23."""
    (tmp_path / "checkpoints").mkdir()
    content = newest_checkpoint(run[0]).read_bytes()
    for age, name in enumerate(("step-9.ckpt", "best-3.ckpt")):
        path = tmp_path / "checkpoints" / name
        path.write_bytes(content)
        os.utime(path, (100 - age, 100 - age))
    assert best_checkpoint(tmp_path).name == "best-3.ckpt" and newest_checkpoint(tmp_path).name == "step-9.ckpt"


def test_a_best_checkpoint_that_was_never_measured_is_not_taken_before_a_newer_one(run, tmp_path, capsys):
    """Held-out answers shorter than a block have no accepted length; Lightning then keeps the first validation's weights."""
    (tmp_path / "checkpoints").mkdir()
    state = torch.load(newest_checkpoint(run[0]), weights_only=True)
    for age, (name, score) in enumerate((("best-3.ckpt", torch.tensor(-torch.inf)), ("step-9.ckpt", None))):
        path = tmp_path / "checkpoints" / name
        torch.save({**state, "callbacks": {"best": {"best_model_score": score}}}, path)
        os.utime(path, (100 + age, 100 + age))
    assert best_checkpoint(tmp_path).name == "step-9.ckpt"
    assert "taking step-9.ckpt" in capsys.readouterr().out


def test_a_file_that_would_run_code_is_not_loaded(tmp_path):
    path = tmp_path / "evil.ckpt"
    torch.save({"state_dict": {}, "payload": print}, path)
    with pytest.raises(ValueError, match="more than tensors"):
        read_checkpoint(path)
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ValueError, match="not one of DraftLab's"):
        load_drafter(path, None)
