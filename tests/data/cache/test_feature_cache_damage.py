"""Damaged, foreign and unfinished feature caches are refused or made again; a full disk loses nothing (cases 1, 10, 12, 13)."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest
import torch

import tiny
from cached import SETTINGS, content, opened, write
from draftlab.cli import disk_is_full
from draftlab.data import predict, shards
from draftlab.data.cache import CODEC_NAMES, CacheSettings


def copy_of(whole, tmp_path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, data in content(whole).items():
        (folder / name).write_bytes(data)
    return folder


def test_a_shard_cut_in_half_is_refused_on_opening_and_made_again(frozen, samples, whole, tmp_path):
    """Case 13."""
    folder = copy_of(whole, tmp_path)
    path = shards.shard_path(folder, 1)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"shard-000001\.tar has \d+ bytes, its own list needs .*run prepare.py"):
        opened(frozen, samples, folder)
    write(frozen, samples, folder)
    assert content(folder) == content(whole)


@pytest.mark.parametrize("damage", [b"", b"no tar at all" * 100])
def test_a_file_that_is_no_shard_is_refused_on_opening(frozen, samples, whole, tmp_path, damage):
    folder = copy_of(whole, tmp_path)
    shards.shard_path(folder, 0).write_bytes(damage)
    with pytest.raises(ValueError, match=r"shard-000000\.tar is not a whole shard"):
        opened(frozen, samples, folder)


def test_a_changed_byte_is_found_by_its_checksum(frozen, samples, whole, tmp_path):
    folder = copy_of(whole, tmp_path)
    path, members = shards.shard_path(folder, 1), predict.plan_shards(samples, SETTINGS.shard_tokens)[1]
    data = bytearray(path.read_bytes())
    place = shards.Shard(path)._place[members[0]][0]
    data[place + 40] ^= 1
    path.write_bytes(data)
    store = opened(frozen, samples, folder)
    with pytest.raises(ValueError, match=r"shard-000001\.tar: the checksum of sample .* differs"):
        store[members[0]]


def test_a_shard_of_another_cache_is_refused_by_key(frozen, samples, whole, tmp_path):
    write(frozen, samples, tmp_path / "other", dataclasses.replace(SETTINGS, trim="none"))
    folder = copy_of(whole, tmp_path)
    shards.shard_path(folder, 0).write_bytes(shards.shard_path(tmp_path / "other", 0).read_bytes())
    for use in (opened, write):
        with pytest.raises(ValueError, match=r"shard-000000\.tar is a foreign shard: its stamp is"):
            use(frozen, samples, folder)
    shards.shard_path(folder, 0).write_bytes(shards.shard_path(folder, 1).read_bytes())
    with pytest.raises(ValueError, match=r"foreign shard: its shard is 1, expected 0"):
        opened(frozen, samples, folder)


def test_a_manifest_of_another_identity_is_refused_by_key(frozen, samples, whole):
    """Case 12."""
    others = {
        "codec": {"settings": dataclasses.replace(SETTINGS, codec="int8")},
        "last_codec": {"settings": dataclasses.replace(SETTINGS, last_codec="fp8")},
        "trim": {"settings": dataclasses.replace(SETTINGS, trim="none")},
        "shard_tokens": {"settings": dataclasses.replace(SETTINGS, shard_tokens=99)},
        "max_length": {"max_length": 64},
        "tokenizer": {"tokenizer": "other"},
        "template": {"template": "other"},
    }
    for key, options in others.items():
        for use in (opened, write):
            with pytest.raises(ValueError, match=rf"features made with another {key}: .*data\.cache_dir"):
                use(frozen, samples, whole, **options)
    other = tiny.tiny_target(vocab_size=128, target_layer_ids=(0, 2))
    with pytest.raises(ValueError, match="another target_layer_ids: "):
        opened(other, samples, whole)
    silent = dataclasses.replace(samples[0], loss_mask=samples[0].loss_mask.roll(-1))
    with pytest.raises(ValueError, match="another supervised: "):
        opened(frozen, [silent, *samples[1:]], whole)


def test_another_basis_is_refused(frozen, samples, tmp_path):
    settings = dataclasses.replace(SETTINGS, codec="lowrank", rank=16)
    write(frozen, samples, tmp_path, settings)
    basis = predict.lowrank.load_basis(tmp_path / "basis.safetensors", frozen.spec.num_features)
    predict.lowrank.save_basis(tmp_path / "basis.safetensors", dataclasses.replace(basis, mean=basis.mean + 1))
    with pytest.raises(ValueError, match="is not the basis that the manifest names"):
        opened(frozen, samples, tmp_path, settings)
    with pytest.raises(ValueError, match="foreign shard: its basis is"):
        write(frozen, samples, tmp_path, settings)


def test_a_lost_basis_is_learned_again_with_all_that_was_made_with_it(frozen, samples, tmp_path):
    settings = dataclasses.replace(SETTINGS, codec="lowrank", rank=16)
    write(frozen, samples, tmp_path, settings)
    before = content(tmp_path)
    (tmp_path / "basis.safetensors").unlink()
    with pytest.raises(ValueError, match="not a whole basis"):
        opened(frozen, samples, tmp_path, settings)
    write(frozen, samples, tmp_path, settings)
    assert content(tmp_path) == before


def test_an_unfinished_cache_is_not_opened(frozen, samples, tmp_path):
    with pytest.raises(ValueError, match=r"no finished feature cache in .*stage=features"):
        opened(frozen, samples, tmp_path)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_states_before_the_final_norm_are_refused_on_opening(frozen, samples, tmp_path, monkeypatch, codec):
    """Case 1, whatever the codec: its own error excuses no missing norm."""
    settings = dataclasses.replace(SETTINGS, codec=codec, last_codec=None, rank=16 if codec == "lowrank" else None)
    read = predict.read_states

    def before_the_norm(target, part, *rest):
        tensors = read(target, part, *rest)
        return tensors | {"last_hidden": tensors["features"][:, -target.spec.hidden_size :].contiguous()}

    monkeypatch.setattr(predict, "read_states", before_the_norm)
    write(frozen, samples, tmp_path, settings)
    with pytest.raises(
        ValueError, match=r"the stored last_hidden differ from the target's own by .*before the final norm"
    ):
        opened(frozen, samples, tmp_path, settings)


def test_layers_in_another_order_are_refused_on_opening(frozen, samples, tmp_path, monkeypatch):
    read = predict.read_states

    def exchanged(target, part, *rest):
        tensors = read(target, part, *rest)
        return tensors | {"features": tensors["features"].roll(target.spec.hidden_size, -1)}

    monkeypatch.setattr(predict, "read_states", exchanged)
    write(frozen, samples, tmp_path)
    with pytest.raises(ValueError, match="the stored features differ"):
        opened(frozen, samples, tmp_path)


def test_a_state_that_is_not_finite_is_refused_with_its_conversation(frozen, samples, tmp_path, monkeypatch):
    """Case 10: a codec would store it as some number."""
    read = predict.read_states
    monkeypatch.setattr(predict, "read_states", lambda *a: {k: v.fill_(torch.nan) for k, v in read(*a).items()})
    with pytest.raises(ValueError, match=r"target 'tiny', sample '\w+': .* hold NaN or infinity"):
        write(frozen, samples, tmp_path)


@pytest.mark.parametrize("failing", [2, 4])
def test_a_full_disk_loses_nothing_that_is_finished(frozen, samples, whole, tmp_path, monkeypatch, failing):
    """The disk fills up while a shard is flushed; the message is one that the entry scripts know."""
    flush, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    folder = tmp_path / "cache"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as caught:
            write(frozen, samples, folder)
    assert disk_is_full(caught.value)
    left = content(folder)
    finished = [name for name in left if name.endswith(".tar")]
    assert len(finished) == failing - 2  # the first two flushes are those of identity.json
    assert "manifest.json" not in left and not any(name.startswith(".") for name in left)
    write(frozen, samples, folder)
    assert content(folder) == content(whole)


def test_the_manifest_counts_what_was_written(samples, whole):
    manifest = json.loads((whole / "manifest.json").read_text())
    tokens = sum(map(len, samples))
    assert manifest["counts"]["samples"] == len(samples) and manifest["counts"]["tokens"] == tokens
    size = sum(path.stat().st_size for path in whole.glob("*.tar"))
    assert manifest["counts"]["bytes_per_token"] == pytest.approx(size / tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "int2"}, "data.codec must be one of bf16, fp8, int8, int4, lowrank, got 'int2'"),
        ({"last_codec": "lowrank"}, "data.last_codec must be one of bf16, fp8, int8, int4, got 'lowrank'"),
        ({"trim": "all"}, "data.trim must be one of none, span, teachers, got 'all'"),
        ({"rank": 0}, "data.codec_rank must be at least 1"),
        ({"shard_tokens": 0}, "data.shard_tokens must be at least 1"),
    ],
)
def test_settings_outside_their_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CacheSettings(**options)


def test_more_directions_than_values_are_refused(frozen):
    with pytest.raises(ValueError, match=r"data\.codec_rank must be at most 96"):
        CacheSettings("lowrank", rank=97).rank_of(frozen.spec)


def test_a_stop_by_the_user_is_passed_on(frozen, samples, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(predict.Writing, "make", stopped)
    with pytest.raises(KeyboardInterrupt):
        write(frozen, samples, tmp_path)
    assert not (tmp_path / "manifest.json").exists()
