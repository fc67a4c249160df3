"""What is measured during validation and shown during training."""

import math
from types import SimpleNamespace

import pytest
import torch

import fitting
from draftlab.acceptance import expected_accepted_length
from draftlab.callbacks import (
    AcceptanceCallback,
    ConfidenceCallback,
    LatestCheckpoint,
    ProgressLines,
    ThroughputCallback,
)
from draftlab.training import ValidationOutput


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short training with all callbacks: its trainer, its data, and what was printed is left to other tests."""
    folder = tmp_path_factory.mktemp("run")
    target = fitting.fitting_target()
    data = fitting.answers_data(target, fitting.write_answers(folder), val_samples=5)
    callbacks = [AcceptanceCallback(), ConfidenceCallback(), ThroughputCallback()]
    options = {"val_check_interval": 2, "check_val_every_n_epoch": None, "enable_checkpointing": False}
    trainer = fitting.silent_trainer(folder, callbacks, max_steps=4, **options)
    trainer.fit(fitting.tiny_module(target), data)
    return trainer, data


def test_every_promised_key_is_logged(trained):
    names = {f"train/{name}" for name in ("loss", "ce", "tv", "confidence", "accepted_length", "tokens_per_s")}
    names |= {f"val/{name}" for name in ("loss", "accepted_length", "roc_auc", "ece")}
    names |= {f"val/{name}_{k}" for name in ("conditional_acceptance", "roc_auc", "ece") for k in (1, 2, 3)}
    assert names <= set(trained[0].callback_metrics)


def test_validation_figures_are_those_of_all_held_out_slots(trained):
    """The mean over all slots and whole blocks, not a mean of batch means."""
    trainer, data = trained
    module = trainer.lightning_module
    numerator = weight = 0.0
    lengths = []
    with torch.no_grad():
        for index, batch in enumerate(data.val_dataloader()):
            blocks, _, report = module.compute(batch, 1, index)
            numerator, weight = numerator + report.numerator.item(), weight + report.weight.item()
            lengths += expected_accepted_length(report.accept_rate[blocks.label_mask.all(-1)]).tolist()
    metrics = trainer.callback_metrics
    assert metrics["val/loss"].item() == pytest.approx(numerator / weight, rel=1e-5)
    assert metrics["val/accepted_length"].item() == pytest.approx(sum(lengths) / len(lengths), rel=1e-5)


def logged_by(callback, outputs, has_confidence=True, block_size=2):
    values = {}
    drafter = SimpleNamespace(
        block=SimpleNamespace(block_size=block_size), has_confidence=has_confidence, exit_layers=()
    )
    module = SimpleNamespace(
        drafter=drafter, device=torch.device("cpu"), log=lambda name, value, **_: values.update({name: float(value)})
    )
    callback.on_validation_epoch_start(None, module)
    for output in outputs:
        callback.on_validation_batch_end(None, module, output, None, 0)
    callback.on_validation_epoch_end(None, module)
    return values


def output(rates, confidence=None, batch_index=0):
    return ValidationOutput(rates, torch.ones_like(rates, dtype=torch.bool), confidence, batch_index)


def test_a_confidence_equal_to_the_accept_rate_is_calibrated_and_ranks_well():
    rates = torch.rand(400, 10, 2, generator=torch.Generator().manual_seed(9))
    good = logged_by(ConfidenceCallback(), [output(rates, rates)])
    bad = logged_by(ConfidenceCallback(), [output(rates, 1 - rates)])
    assert good["val/ece"] < 0.03 and good["val/ece_2"] < 0.06 and good["val/roc_auc_1"] > 0.8
    assert bad["val/ece"] > 0.3 and bad["val/roc_auc"] < 0.2


def test_outcomes_are_drawn_anew_for_every_batch_and_alike_at_every_validation():
    rates, confidence = torch.full((30, 4, 2), 0.5), torch.rand(30, 4, 2)
    first, again, other = (
        logged_by(ConfidenceCallback(), [output(rates, confidence, index)])["val/roc_auc"] for index in (0, 0, 1)
    )
    assert first == again != other


def test_a_drafter_without_confidence_head_logs_no_confidence_figure():
    assert logged_by(ConfidenceCallback(), [output(torch.rand(2, 3, 2))], has_confidence=False) == {}


def test_a_position_that_no_block_reaches_is_nan_and_never_0():
    values = logged_by(AcceptanceCallback(), [output(torch.zeros(2, 3, 2))])
    assert values["val/conditional_acceptance_1"] == 0 and math.isnan(values["val/conditional_acceptance_2"])
    assert values["val/accepted_length"] == 1


def test_a_block_of_one_token_is_measured_like_any_other():
    rates = torch.full((4, 5, 1), 0.25)
    values = logged_by(AcceptanceCallback(), [output(rates)], block_size=1)
    values |= logged_by(ConfidenceCallback(), [output(rates, rates)], block_size=1)
    assert values["val/conditional_acceptance_1"] == 0.25 and values["val/accepted_length"] == 1.25
    assert values["val/ece_1"] == values["val/ece"] and "val/roc_auc_1" in values


def test_progress_lines_show_loss_accepted_length_and_speed(tmp_path, capsys):
    target = fitting.fitting_target()
    data = fitting.answers_data(target, fitting.write_answers(tmp_path))
    callbacks = [AcceptanceCallback(), ThroughputCallback(), ProgressLines(every_seconds=0.0)]
    options = {"val_check_interval": 2, "enable_progress_bar": True, "enable_checkpointing": False}
    fitting.silent_trainer(tmp_path, callbacks, max_steps=2, **options).fit(fitting.tiny_module(target), data)
    text = capsys.readouterr().out
    for word in ("step 2/2", "loss ", "accepted length ", "tokens/s ", "min left", "held-out at step 2"):
        assert word in text


def test_the_newest_state_replaces_the_one_before_it(tmp_path):
    target = fitting.fitting_target()
    data = fitting.answers_data(target, fitting.write_answers(tmp_path))
    latest = LatestCheckpoint(str(tmp_path / "checkpoints"), every_n_train_steps=2)
    fitting.silent_trainer(tmp_path, [latest], max_steps=5).fit(fitting.tiny_module(target), data)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-5.ckpt"]


def test_throughput_needs_a_window_of_at_least_one():
    with pytest.raises(ValueError, match="window must be at least 1"):
        ThroughputCallback(window=0)
