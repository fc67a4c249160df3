"""data.features=cache trains as memory mode does, from the same commands (cases 1, 8)."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import cached
import fitting
from draftlab.data import predict
from draftlab.data.datamodule import DraftDataModule
from draftlab.data.predict import prepare_cache

OPTIONS = {"batch_size": 3, "val_samples": 2, "compute_dtype": "float32"}


def loaded(target, path, features: str, **options) -> DraftDataModule:
    data = DraftDataModule(str(path), features=features, **(OPTIONS | options))
    return data.load(target.spec, fitting.tiny_tokenizer(fitting.VOCAB))


@pytest.fixture(scope="module")
def target():
    return fitting.fitting_target()


@pytest.fixture
def answers(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path / "kept"))
    path = fitting.write_answers(tmp_path)
    return path


@pytest.mark.parametrize(("name", "trim"), [("dspark", "teachers"), ("eagle3", "teachers"), ("mtp", "span")])
def test_training_from_a_bfloat16_cache_is_training_from_memory(target, answers, tmp_path, name, trim):
    """The same bits in another order on the disk, without what no anchor reads: the same weights, exactly."""
    weights = {}
    for features in ("memory", "cache"):
        data = loaded(target, answers, features, trim=trim)
        if features == "cache":
            prepare_cache(data, target, cached.trainer())
        data.compute_features(target, log_normalizer=True, last_hidden_context=name == "mtp")
        module = fitting.named_module(target, name)
        fitting.silent_trainer(tmp_path / features, max_steps=4).fit(module, data)
        weights[features] = fitting.weights_of(module)
    for key, tensor in weights["memory"].items():
        torch.testing.assert_close(weights["cache"][key], tensor, rtol=1e-4, atol=1e-6)


def test_batches_keep_their_order_and_shapes(target, answers):
    batches = {}
    for features in ("memory", "cache"):
        data = loaded(target, answers, features, codec="int4")
        if features == "cache":
            prepare_cache(data, target, cached.trainer())
        data.compute_features(target)
        batches[features] = [(b.sample_ids, b.features.shape, b.last_hidden.dtype) for b in data.train_dataloader()]
    assert batches["cache"] == batches["memory"]


def test_loader_processes_read_the_same(target, answers):
    data = loaded(target, answers, "cache")
    prepare_cache(data, target, cached.trainer())
    data.compute_features(target)
    alone = [batch.features for batch in data.train_dataloader()]
    data.num_workers = 1
    assert all(torch.equal(a, b.features) for a, b in zip(alone, data.train_dataloader(), strict=True))


def test_a_drafter_that_reads_last_hidden_states_refuses_a_cache_that_trimmed_them(target, answers):
    data = loaded(target, answers, "cache")
    assert fitting.named_module(target, "mtp").drafter.reads_last_hidden
    with pytest.raises(ValueError, match=r"data\.trim=teachers keeps last hidden states where they teach only"):
        data.compute_features(target, last_hidden_context=True)


def test_training_without_a_prepared_cache_says_what_to_run(target, answers):
    with pytest.raises(ValueError, match=r"no finished feature cache in .*prepare.py stage=features"):
        loaded(target, answers, "cache").compute_features(target)


def test_an_added_conversation_gets_a_cache_of_its_own(target, answers):
    """Case 12: without cache_dir the identity names the folder."""
    folder = loaded(target, answers, "cache").cache_place(target)[0]
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "more"}]
    answers.write_text(answers.read_text() + json.dumps({"id": "new", "messages": talk}) + "\n")
    data = loaded(target, answers, "cache")
    assert data.cache_place(target)[0] != folder
    data.samples = data.samples[:-1]
    assert data.cache_place(target)[0] == folder
    data.cache = dataclasses.replace(data.cache, codec="fp8")
    assert data.cache_place(target)[0] != folder


def test_a_basis_is_learned_from_the_conversations_to_train_on_alone(target, answers, monkeypatch):
    learned, learn = [], predict.learn_basis
    monkeypatch.setattr(
        predict, "learn_basis", lambda t, samples, s: (learned.extend(samples), learn(t, samples, s))[1]
    )
    data = loaded(target, answers, "cache", codec="lowrank", codec_rank=8)
    prepare_cache(data, target, cached.trainer())
    assert [sample.id for sample in learned] == [data.samples[index].id for index in data.train_indices]
    other = loaded(target, answers, "cache", codec="lowrank", codec_rank=8, val_samples=3)
    assert other.cache_place(target)[0] != data.cache_place(target)[0], "another split has another basis"
    plain = (loaded(target, answers, "cache", val_samples=count).cache_place(target)[0] for count in (2, 3))
    assert len(set(plain)) == 1


def test_a_drafter_that_reads_no_tapped_layer_stores_none_in_memory_mode(target, answers, tmp_path):
    weights, sizes = {}, {}
    for layers in (True, False):
        data = loaded(target, answers, "memory", cache_dir=str(tmp_path / str(layers)))
        module = fitting.named_module(target, "mtp")
        assert module.drafter.reads_last_hidden and not module.drafter.reads_layers
        data.compute_features(target, True, True, layers)
        fitting.silent_trainer(tmp_path / "run", max_steps=3).fit(module, data)
        weights[layers] = fitting.weights_of(module)
        sizes[layers] = sum(path.stat().st_size for path in (tmp_path / str(layers)).glob("*.safetensors"))
    assert all(torch.equal(weights[False][name], tensor) for name, tensor in weights[True].items())
    spec, tokens = target.spec, sum(map(len, data.samples))
    assert sizes[True] - sizes[False] == pytest.approx(tokens * spec.feature_size * 2, rel=0.01)
