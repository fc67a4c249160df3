"""Stages of a run: device, precision and the draft vocabulary."""

import pytest
import torch

import fitting
from draftlab.training.run import (
    check_settings,
    pick_device,
    pick_precision,
    prepare_target,
    set_vocabulary,
)


@pytest.mark.parametrize(
    ("accelerator", "available", "rank", "device"),
    [
        ("auto", False, None, "cpu"),
        ("cpu", True, None, "cpu"),
        ("auto", True, None, "cuda:0"),
        ("gpu", True, "1", "cuda:1"),
        ("cuda", True, "3", "cuda:3"),
    ],
)
def test_every_rank_holds_the_target_on_its_own_device(monkeypatch, accelerator, available, rank, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert pick_device(accelerator) == device


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="accelerator=gpu needs a GPU"):
        pick_device("gpu")


@pytest.mark.parametrize("name", ["accumulate_grad_batches", "val_check_interval"])
@pytest.mark.parametrize("value", [0, -1, "often"])
def test_trainer_settings_that_would_fail_after_loading_are_refused_by_name(name, value):
    for fine in ({name: 1}, {name: None}, {}):
        check_settings(fine)
    with pytest.raises(ValueError, match=f"trainer.settings.{name}"):
        check_settings({name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("max_epochs", None), ("max_steps", "x"), ("max_steps", -2), ("num_nodes", 0)]
)
def test_lengths_and_machines_that_are_no_numbers_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"trainer.settings.{name} must be whole"):
        check_settings({name: value})


def test_a_training_without_an_end_is_refused():
    check_settings({"max_steps": -1, "max_epochs": 2})
    check_settings({"max_steps": 5, "max_epochs": -1})
    with pytest.raises(ValueError, match="max_steps or max_epochs"):
        check_settings({"max_steps": -1, "max_epochs": -1})


def test_precision_auto_is_float32_on_the_cpu_and_mixed_bfloat16_on_cuda():
    assert pick_precision("auto", "cpu") == "32-true" and pick_precision("auto", "cuda:1") == "bf16-mixed"
    assert pick_precision("16-mixed", "cpu") == "16-mixed"


@pytest.mark.parametrize("fast", [True, False])
def test_precision_fast_is_mixed_bfloat16_where_the_device_has_instructions_for_it(monkeypatch, fast):
    monkeypatch.setattr("draftlab.training.run.has_fast_bfloat16", lambda device: fast)
    assert pick_precision("fast", "cpu") == ("bf16-mixed" if fast else "32-true")


def test_the_draft_vocabulary_is_chosen_by_coverage_and_printed(tmp_path, capsys):
    target = fitting.fitting_target()
    data = fitting.answers_data(target, fitting.write_answers(tmp_path))
    module = fitting.tiny_module(target, draft_vocab_size=20)
    set_vocabulary(module.drafter, data)
    counts = data.token_counts()
    kept = counts[module.drafter.draft_ids]
    left_out = counts.clone()
    left_out[module.drafter.draft_ids] = 0
    assert kept.min() >= left_out.max()
    assert f"20 of 128 tokens cover {kept.sum() / counts.sum():.2%}" in capsys.readouterr().out


def test_a_whole_vocabulary_is_left_alone(tmp_path):
    module = fitting.tiny_module(fitting.fitting_target())
    set_vocabulary(module.drafter, None)
    assert module.drafter.draft_ids is None


@pytest.mark.parametrize("features", ["online", "memory"])
def test_the_target_is_kept_for_online_features_only(tmp_path, monkeypatch, features):
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path / "cache"))
    target = fitting.fitting_target()
    monkeypatch.setattr("draftlab.training.run.load_target", lambda spec, device: target)
    data = fitting.answers_data(target, fitting.write_answers(tmp_path), features=features)
    drafter = fitting.tiny_module(target).drafter
    kept = prepare_target(drafter, data, "cpu")
    assert (kept is target) == (features == "online")
    assert drafter.ends is target.ends
