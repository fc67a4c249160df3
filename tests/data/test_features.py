"""Stored features are the target's own, survive a kill, and are never mixed up (cases 1, 12, 13)."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import tiny
from draftlab.data import features
from draftlab.data.chat import Chat
from draftlab.data.features import FeatureSettings, collate, compute_features, features_identity, plan_shards
from draftlab.data.samples import tokenise

SETTINGS = FeatureSettings(dtype="float32", compute_dtype="float32", batch_tokens=400, shard_tokens=300)
TEXT = {"tokenizer": "a", "template": "b", "max_length": 128}


@pytest.fixture(scope="module")
def samples(tokenizer):
    records = [
        {
            "id": str(i),
            "messages": [{"role": "user", "content": "Q" * (i % 5)}, {"role": "assistant", "content": "xy" * (i + 2)}],
        }
        for i in range(1, 13)
    ]
    return tokenise(records, Chat(tokenizer), 128)[0]


@pytest.fixture(scope="module")
def frozen():
    return tiny.tiny_target(vocab_size=128)


def compute(frozen, samples, folder, settings=SETTINGS, **text):
    identity = features_identity(frozen, samples, settings, TEXT | text)
    return compute_features(frozen, samples, folder, identity, settings)


class Counting:
    """A target that counts the samples it reads, and may be killed."""

    def __init__(self, frozen, kill_after: int | None = None) -> None:
        self.frozen, self.read_samples, self.left = frozen, [], kill_after

    def __getattr__(self, name):
        return getattr(self.frozen, name)

    def read(self, batch, log_normalizer):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        self.read_samples += batch.sample_ids
        return self.frozen.read(batch, log_normalizer)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stored_features_are_those_of_reading_each_sample_alone(frozen, samples, tmp_path, dtype):
    settings = dataclasses.replace(SETTINGS, dtype=dtype, compute_dtype="float32")
    store = compute(frozen, samples, tmp_path, settings)
    tolerance = {"float32": 1e-4, "bfloat16": 2e-2}[dtype]
    for index, sample in enumerate(samples):
        alone = frozen.read(collate([sample]), log_normalizer=True)
        stored = store[index]
        assert stored[0].dtype == stored[1].dtype == getattr(torch, dtype)
        teaches = torch.cat([sample.loss_mask[1:], torch.tensor([False])])
        assert stored[2][~teaches].isposinf().all()
        stored = (*stored[:2], stored[2][teaches])
        expected_normalizer = alone.log_normalizer[:, teaches]
        for got, expected in zip(stored, (alone.features, alone.last_hidden, expected_normalizer), strict=True):
            assert got.shape == expected[0].shape
            torch.testing.assert_close(got.float(), expected[0], rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize(
    ("stored", "fast", "asked", "expected"),
    [
        ("bfloat16", True, "auto", torch.bfloat16),
        ("bfloat16", False, "auto", torch.float32),
        ("float32", True, "auto", torch.float32),
        ("bfloat16", True, "float32", torch.float32),
        ("bfloat16", False, "bfloat16", torch.bfloat16),
    ],
)
def test_features_are_computed_in_bfloat16_where_it_is_fast_and_stored_in_it(
    frozen, monkeypatch, stored, fast, asked, expected
):
    monkeypatch.setattr(features, "has_fast_bfloat16", lambda device: fast)
    assert features.compute_dtype(frozen, FeatureSettings(dtype=stored, compute_dtype=asked)) == expected


def test_bfloat16_products_leave_features_close_to_exact_ones(frozen, samples, tmp_path):
    """Products are rounded, sums along the residual stream are not: the error stays that of one rounding."""
    exact, fast = (
        compute(frozen, samples, tmp_path / name, dataclasses.replace(SETTINGS, compute_dtype=name))
        for name in ("float32", "bfloat16")
    )
    for index in range(len(samples)):
        for ours, theirs in zip(fast[index][:2], exact[index][:2], strict=True):
            error = (ours - theirs).norm() / theirs.norm()
            assert 0 < error < 2 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize(("compute_dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 2e-2)])
def test_the_normalizer_belongs_to_the_stored_state(frozen, samples, tmp_path, compute_dtype, tolerance):
    """Rounded states with the normalizer of exact ones would not be a law: probabilities must sum to 1."""
    settings = dataclasses.replace(SETTINGS, dtype="bfloat16", compute_dtype=compute_dtype)
    store = compute(frozen, samples, tmp_path, settings)
    _, last_hidden, log_normalizer = store[3]
    known = log_normalizer.isfinite()
    assert known.sum() == samples[3].loss_mask.sum()
    law = (frozen.logits(last_hidden.float()) - log_normalizer.unsqueeze(-1)).exp()[known]
    torch.testing.assert_close(law.sum(-1), torch.ones(len(law)), rtol=tolerance, atol=tolerance)


def test_features_come_without_normalizer_if_none_is_asked_for(frozen, samples, tmp_path):
    store = compute(frozen, samples, tmp_path, dataclasses.replace(SETTINGS, log_normalizer=False))
    assert store[0][2] is None


def test_a_second_run_reads_nothing_again(frozen, samples, tmp_path):
    first = compute(frozen, samples, tmp_path)
    counting = Counting(frozen)
    again = compute(counting, samples, tmp_path)
    assert counting.read_samples == []
    for index in range(len(samples)):
        assert all(torch.equal(a, b) for a, b in zip(first[index], again[index], strict=True))


@pytest.mark.parametrize("kill_after", [0, 1, 2])
def test_a_killed_run_goes_on_at_the_first_missing_shard(frozen, samples, tmp_path, kill_after):
    """Cases 12 and 13: finished shards are kept, the result is the same."""
    whole = compute(frozen, samples, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        compute(Counting(frozen, kill_after), samples, tmp_path / "cut")
    assert not (tmp_path / "cut" / "manifest.json").exists()
    counting = Counting(frozen)
    resumed = compute(counting, samples, tmp_path / "cut")
    kept = sum(map(len, plan_shards(samples, SETTINGS.shard_tokens)[:kill_after]))
    assert len(counting.read_samples) == len(samples) - kept
    for index in range(len(samples)):
        assert all(torch.equal(a, b) for a, b in zip(whole[index], resumed[index], strict=True))


def test_a_shard_cut_in_half_is_computed_again(frozen, samples, tmp_path):
    """Case 13."""
    compute(frozen, samples, tmp_path)
    shard = tmp_path / "shard-000001.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    counting = Counting(frozen)
    compute(counting, samples, tmp_path)
    assert len(counting.read_samples) == len(plan_shards(samples, SETTINGS.shard_tokens)[1])
    assert shard.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"max_length": 64}, "max_length"),
        ({"tokenizer": "other"}, "tokenizer"),
        ({"template": "other"}, "template"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_another_text_identity_is_refused_by_the_differing_key(frozen, samples, tmp_path, change, key, finished):
    """Case 12."""
    if finished:
        compute(frozen, samples, tmp_path)
    else:
        with pytest.raises(KeyboardInterrupt):
            compute(Counting(frozen, 1), samples, tmp_path)
    with pytest.raises(ValueError, match=rf"features made with another {key}: .*data\.cache_dir"):
        compute(frozen, samples, tmp_path, **change)


def test_another_target_layer_list_weights_or_samples_are_refused_by_key(frozen, samples, tmp_path):
    """Case 12."""
    compute(frozen, samples, tmp_path)
    others = {
        "target_layer_ids": (tiny.tiny_target(vocab_size=128, target_layer_ids=(0, 2)), samples, SETTINGS),
        "target.weights": (tiny.tiny_target(vocab_size=128, seed=1), samples, SETTINGS),
        "samples": (frozen, samples[:-1], SETTINGS),
        "feature_dtype": (frozen, samples, dataclasses.replace(SETTINGS, dtype="bfloat16")),
        "log_normalizer": (frozen, samples, dataclasses.replace(SETTINGS, log_normalizer=False)),
        "compute_dtype": (frozen, samples, dataclasses.replace(SETTINGS, compute_dtype="bfloat16")),
    }
    for key, (other, some, settings) in others.items():
        with pytest.raises(ValueError, match=f"features made with another {key}: "):
            compute(other, some, tmp_path, settings)


def test_without_a_folder_each_identity_gets_its_own_in_the_cache(frozen, samples, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path))
    stores = [compute(frozen, some, None) for some in (samples, samples[:-1], samples)]
    assert stores[0].folder == stores[2].folder != stores[1].folder
    assert stores[0].folder.parent == tmp_path / "features"


def test_states_before_the_final_norm_are_refused_when_a_finished_folder_is_opened(
    frozen, samples, tmp_path, monkeypatch
):
    """Case 1: they look like states, and train a drafter that is a third worse."""
    read = features._read_features

    def before_the_norm(target, part, settings):
        tensors = read(target, part, settings)
        return tensors | {"last_hidden": tensors["features"][:, -target.spec.hidden_size :].contiguous()}

    with monkeypatch.context() as patched:
        patched.setattr(features, "_read_features", before_the_norm)
        with pytest.raises(ValueError, match="after the final norm"):
            compute(frozen, samples, tmp_path)


def test_shards_hold_every_sample_once_within_the_bound(samples):
    shards = plan_shards(samples, 150)
    assert sorted(index for shard in shards for index in shard) == list(range(len(samples)))
    assert all(sum(len(samples[i]) for i in shard) <= 150 for shard in shards if len(shard) > 1)
