"""What one training run computes: global means under accumulation, repeatable anchors, frozen targets."""

import pytest
import torch
from torch import nn

import fitting
from draftlab.training import OptimizerSettings
from draftlab.training.module import TRAINING


@pytest.fixture(scope="module")
def target():
    return fitting.fitting_target()


@pytest.fixture(scope="module")
def data(target, tmp_path_factory):
    return fitting.answers_data(target, fitting.write_answers(tmp_path_factory.mktemp("answers")))


def train(target, data, folder, batches, **options):
    module = fitting.tiny_module(target)
    fitting.silent_trainer(folder, max_steps=3, **options).fit(module, fitting.GivenBatches(data, [batches]))
    return fitting.weights_of(module)


def test_micro_batches_of_unequal_size_train_exactly_as_one_batch(target, data, tmp_path):
    start = fitting.weights_of(fitting.tiny_module(target))
    whole = train(target, data, tmp_path, [[0, 1, 2, 3, 4, 5]])
    parts = train(target, data, tmp_path, [[0], [1, 2, 3], [4, 5]], accumulate_grad_batches=3)
    assert (whole["fc.weight"] - start["fc.weight"]).abs().max() > 1e-3
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-3, atol=2e-5)


def test_a_last_window_with_fewer_micro_batches_is_still_a_mean(target, data, tmp_path):
    """Three micro-batches an epoch, two a step: the second step of an epoch has one."""
    parts = train(target, data, tmp_path, [[0], [1, 2], [3, 4]], accumulate_grad_batches=2)
    whole = train(target, data, tmp_path, [[0, 1, 2], [3, 4]])
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-3, atol=2e-5)


def test_a_micro_batch_without_anchors_leaves_the_mean_of_the_others(target, data, tmp_path):
    """Case 7."""
    alone = train(target, data, tmp_path, [[0, 1]])
    padded = train(target, data, tmp_path, [[0, 1], []], accumulate_grad_batches=2)
    for name in alone:
        torch.testing.assert_close(padded[name], alone[name], rtol=1e-3, atol=2e-5)


def test_steps_without_any_anchor_move_nothing_and_the_next_one_trains(target, data, tmp_path):
    """Case 7."""
    start = fitting.weights_of(fitting.tiny_module(target))
    still = train(target, data, tmp_path, [[], [], []])
    assert all(torch.equal(still[name], start[name]) for name in start)
    moved = train(target, data, tmp_path, [[], [], [0, 1]])
    assert not torch.equal(moved["fc.weight"], start["fc.weight"])
    assert all(torch.isfinite(tensor).all() for tensor in moved.values())


def test_mixed_precision_trains_and_clips_as_float32_does(target, data, tmp_path):
    """The fused optimiser must let Lightning clip; master weights stay float32."""
    start = fitting.weights_of(fitting.tiny_module(target))
    exact, mixed = (
        train(target, data, tmp_path, [[0, 1, 2]], precision=precision, gradient_clip_val=0.1)
        for precision in ("32-true", "bf16-mixed")
    )
    for name in exact:
        assert mixed[name].dtype == exact[name].dtype
    moved = exact["fc.weight"] - start["fc.weight"]
    assert (mixed["fc.weight"] - exact["fc.weight"]).norm() < 0.2 * moved.norm()


def test_the_target_does_not_change_and_is_no_parameter(target, data, tmp_path):
    """Case 14."""
    before = {name: tensor.clone() for name, tensor in target.model.state_dict().items()}
    train(target, data, tmp_path, [[0, 1, 2]])
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.model.state_dict().items())
    module = fitting.tiny_module(target)
    trained = sum(parameter.numel() for parameter in module.parameters())
    assert trained == sum(parameter.numel() for parameter in module.drafter.parameters())


def test_anchors_depend_on_seed_stream_and_micro_batch_alone(target, data):
    module = fitting.tiny_module(target, num_anchors=2)
    batch = fitting.BatchMaker(data.samples, data.train_indices, None)(range(6))

    def anchors(stream, index):
        torch.rand(3)  # the global random state does not matter
        return module.compute(batch, stream, index)[0].anchors

    assert torch.equal(anchors(TRAINING, 4), anchors(TRAINING, 4))
    others = [anchors(TRAINING, 5), anchors(1, 4)]
    module.seed = 1
    others.append(anchors(TRAINING, 4))
    module.seed = 0
    assert not any(torch.equal(anchors(TRAINING, 4), other) for other in others)


def test_stored_and_online_features_give_the_same_loss(target, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path / "cache"))
    path, losses = fitting.write_answers(tmp_path), []
    for mode in ("online", "memory"):
        data = fitting.answers_data(target, path, features=mode, feature_dtype="float32")
        module = fitting.tiny_module(target, draft_vocab_size=40)
        module.drafter.set_draft_vocabulary(torch.arange(3, 123, 3))
        batch = next(iter(data.train_dataloader()))
        losses.append(module.compute(batch, TRAINING, 0)[2].numerator.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_batch_without_features_and_without_target_is_refused(target, data):
    module = fitting.tiny_module(target)
    object.__setattr__(module, "target", None)
    with pytest.raises(ValueError, match="no target features"):
        module.compute(next(iter(data.train_dataloader())), TRAINING, 0)


def test_weight_decay_and_learning_rate_reach_adamw():
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    optimizer = OptimizerSettings(lr=0.5, weight_decay=0.1, beta2=0.95).build(layer.parameters())
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.5, 0.1, (0.9, 0.95))
    assert len(group["params"]) == 1
