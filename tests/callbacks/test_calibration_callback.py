"""Temperatures are fitted on one half of the held-out slice and measured on the other."""

import math
from types import SimpleNamespace

import pytest
import torch

import fitting
from draftlab.callbacks import CalibrationCallback
from draftlab.training import ValidationOutput

GAMMA = 3


def logged(outputs, has_confidence=True, callback=None):
    """What the callback logs of ``outputs``, one a batch."""
    values = {}
    drafter = SimpleNamespace(block=SimpleNamespace(block_size=GAMMA), has_confidence=has_confidence)
    module = SimpleNamespace(
        drafter=drafter, device=torch.device("cpu"), log=lambda name, value, **_: values.update({name: float(value)})
    )
    callback = callback or CalibrationCallback(2000)
    callback.on_validation_epoch_start(None, module)
    for output in outputs:
        callback.on_validation_batch_end(None, module, output, None, 0)
    callback.on_validation_epoch_end(None, module)
    return values


def outputs(temperatures, batches=10, rows=4, anchors=40, seed=0):
    """Batches whose true rates are σ(logit / T): confidences are σ(logit)."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(batches):
        logits = (0.4 + 1.5 * torch.randn(rows, anchors, GAMMA, generator=generator)) * torch.tensor(temperatures)
        rates = torch.sigmoid(logits / torch.tensor(temperatures))
        made.append(ValidationOutput(rates, torch.ones_like(rates, dtype=torch.bool), torch.sigmoid(logits), index))
    return made


def test_the_temperatures_that_made_the_confidences_are_found_and_take_the_error_away():
    values = logged(outputs([2.5, 0.4, 1.0]))
    for k, expected in enumerate([2.5, 0.4, 1.0], start=1):
        assert values[f"val/sts/temperature_{k}"] == pytest.approx(expected, rel=0.05)
        for reading in ("survival", "conditional"):
            assert values[f"val/sts/{reading}_ece_after_{k}"] < 0.01
    assert values["val/sts/survival_ece_before_1"] > 0.05 > 5 * values["val/sts/survival_ece_after"]


def test_scaling_leaves_the_order_within_a_position_and_soft_labels_bound_what_can_be_ranked():
    """The conditional ROC-AUC of c = c* equals the exact one by Bernoulli weights."""
    made = outputs([1.0, 1.0, 1.0], batches=4)
    values = logged(made)
    tested = torch.cat([o.accept_rate[(torch.arange(4) + o.batch_index) % 2 == 1] for o in made])[..., 0].flatten()
    wins = (tested.unsqueeze(1) * (1 - tested) * (tested.unsqueeze(1) > tested)).sum()
    pairs = tested.sum() * (1 - tested).sum()
    ties = 0.5 * (tested * (1 - tested)).sum()
    assert values["val/sts/conditional_roc_auc_before_1"] == pytest.approx(float((wins + ties) / pairs), abs=2e-3)
    assert values["val/sts/conditional_roc_auc_after_1"] == pytest.approx(
        values["val/sts/conditional_roc_auc_before_1"], abs=2e-3
    )


def test_what_is_fitted_on_one_half_is_measured_on_the_other():
    """Rows of batch b go to the fit where row + b is even: those alone decide the temperature."""
    made = outputs([2.0, 1.0, 1.0])
    for o in made:
        odd = (torch.arange(4) + o.batch_index) % 2 == 1
        o.accept_rate[odd] = 1 - o.accept_rate[odd]
    values = logged(made)
    assert values["val/sts/temperature_1"] == pytest.approx(2.0, rel=0.05)
    assert values["val/sts/survival_ece_after_1"] > 0.2 and values["val/sts/conditional_roc_auc_after_1"] < 0.4


def test_too_few_blocks_are_told_and_leave_nan(capsys, caplog):
    with caplog.at_level("INFO"):
        values = logged(outputs([2.0, 1.0, 1.0], batches=1, anchors=10))
    assert math.isnan(values["val/sts/survival_ece_after_1"]) and math.isnan(values["val/sts/temperature_1"])
    assert values["val/sts/survival_ece_before_1"] > 0, "what needs no fit is measured"
    assert "20 held-out blocks to fit on, but temperatures need 200" in caplog.text + capsys.readouterr().err


def test_a_position_that_is_seldom_proposed_keeps_temperature_one():
    made = outputs([2.0, 2.0, 2.0])
    for o in made:
        o.proposed[..., 2] = False
    values = logged(made)
    assert values["val/sts/temperature_3"] == 1 and math.isnan(values["val/sts/survival_ece_after_3"])
    assert values["val/sts/temperature_2"] == pytest.approx(2.0, rel=0.1)


def test_a_drafter_without_confidence_head_logs_nothing():
    rates = torch.rand(2, 3, GAMMA)
    assert logged([ValidationOutput(rates, rates > 0, None, 0)], has_confidence=False) == {}


def test_a_sample_too_small_for_a_fit_is_refused():
    with pytest.raises(ValueError, match=r"callbacks.calibration.blocks must be .* at least 200, got 10"):
        CalibrationCallback(10)


def test_a_training_logs_every_promised_key(tmp_path):
    target = fitting.fitting_target()
    data = fitting.answers_data(target, fitting.write_answers(tmp_path), val_samples=5)
    options = {"val_check_interval": 2, "check_val_every_n_epoch": None, "enable_checkpointing": False}
    trainer = fitting.silent_trainer(tmp_path, [CalibrationCallback()], max_steps=2, **options)
    trainer.fit(fitting.tiny_module(target), data)
    names = {f"val/sts/temperature_{k}" for k in (1, 2, 3)}
    for reading in ("survival", "conditional"):
        for when in ("before", "after"):
            names |= {f"val/sts/{reading}_{m}_{when}_{k}" for m in ("ece", "roc_auc") for k in (1, 2, 3)}
    assert names <= set(trainer.callback_metrics)
