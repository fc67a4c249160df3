"""The feature cache gives what the target says, in any number of processes, and loses no finished shard (cases 1, 10, 12, 13)."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import webdataset

import cached
import tiny
from draftlab.cli import disk_is_full
from draftlab.data import predict, shards
from draftlab.data.cache import CODEC_NAMES, CacheSettings, cache_identity, open_cache, planned_bytes
from draftlab.data.codecs import CODECS, relative_error
from draftlab.data.features import collate
from draftlab.data.predict import write_cache

SETTINGS = cached.SETTINGS


@pytest.fixture(scope="module")
def samples():
    return cached.conversations()


@pytest.fixture(scope="module")
def frozen():
    return cached.target()


def write(frozen, samples, folder, settings=SETTINGS, **text):
    return write_cache(cached.writing(frozen, samples, folder, settings, **text), cached.trainer())


def opened(frozen, samples, folder, settings=SETTINGS, **text):
    identity = cache_identity(frozen, samples, settings, cached.TEXT | text)
    return open_cache(frozen, samples, folder, identity, settings)


@pytest.fixture(scope="module")
def whole(frozen, samples, tmp_path_factory):
    """An undisturbed cache."""
    folder = tmp_path_factory.mktemp("whole")
    write(frozen, samples, folder)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("trim", shards.TRIMS)
def test_what_is_stored_is_the_targets_own_state_through_the_codec(frozen, samples, tmp_path, codec, trim):
    settings = dataclasses.replace(
        SETTINGS, codec=codec, last_codec=None, trim=trim, rank=40 if codec == "lowrank" else None
    )
    write(frozen, samples, tmp_path, settings)
    store = opened(frozen, samples, tmp_path, settings)
    last_codec = CODECS[settings.last_codec]
    for index, sample in enumerate(samples):
        alone = frozen.read(collate([sample]), log_normalizer=False)
        features, last, normalizer = store[index]
        mask = sample.loss_mask
        teaches = torch.tensor([bool(mask[t] and mask[t + 1]) for t in range(len(mask) - 1)] + [False])
        final = int(teaches.nonzero()[-1])
        context = len(sample) if trim == "none" else final
        kept = {"none": torch.ones_like(mask), "span": torch.arange(len(mask)) <= final, "teachers": teaches}[trim]
        assert features.shape == alone.features[0].shape and last.shape == alone.last_hidden[0].shape
        assert not features[context:].any() and not last[~kept].any() and normalizer[~teaches].isposinf().all()
        expected = last_codec.decode(last_codec.encode(alone.last_hidden[0][kept]), last.shape[-1])
        assert relative_error(expected, last[kept]) < 5e-3  # batches round otherwise than one conversation alone
        usual = {"bf16": 0.01, "fp8": 0.05, "int8": 0.02, "int4": 0.2, "lowrank": 0.75}[codec]
        assert relative_error(alone.features[0, :context], features[:context]) < usual
        law = (frozen.logits(last[teaches]) - normalizer[teaches].unsqueeze(-1)).exp().sum(-1)
        torch.testing.assert_close(law, torch.ones(len(law)), rtol=1e-4, atol=1e-4)


def test_shards_are_read_by_webdataset_as_they_are(frozen, samples, whole):
    found = {}
    urls = [str(path) for path in sorted(whole.glob("*.tar"))]
    for item in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False):
        found[int(item["__key__"])] = item["states"]
    assert sorted(found) == list(range(len(samples)))
    layout = SETTINGS.layout(frozen.spec)
    store = opened(frozen, samples, whole)
    for index, payload in found.items():
        stored = shards.unpack(payload, samples[index].loss_mask, layout)
        assert torch.equal(stored.features, store[index][0])
        assert torch.equal(stored.input_ids, samples[index].input_ids[: len(stored.input_ids)])
        assert torch.equal(stored.loss_mask, samples[index].loss_mask[: len(stored.loss_mask)])


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_measured_bytes_a_token_are_those_of_the_plan(frozen, tmp_path, codec):
    long = cached.conversations(count=24, letters=150)
    rank = {"lowrank": 40}.get(codec)
    settings = CacheSettings(codec, "bf16", "none", rank, "float32", shard_tokens=2000)
    manifest = write(frozen, long, tmp_path, settings)
    tokens = sum(map(len, long)) / len(long)
    planned = planned_bytes(settings, frozen.spec, len(long), tokens, cached.supervised(long) / len(long))
    # every token has a last hidden state without trimming, but a normalizer only where it teaches
    planned += (sum(map(len, long)) - cached.supervised(long)) * CODECS["bf16"].bytes_per_token(frozen.spec.hidden_size)
    assert manifest["counts"]["bytes"] == sum(path.stat().st_size for path in tmp_path.glob("*.tar"))
    assert manifest["counts"]["bytes"] == pytest.approx(planned, rel=0.02)


def test_trimming_makes_the_plan_of_the_tokens_that_teach(frozen, tmp_path):
    long = cached.conversations(count=24, letters=150)
    settings = dataclasses.replace(SETTINGS, trim="teachers", shard_tokens=2000)
    manifest = write(frozen, long, tmp_path, settings)
    tokens, teachers = sum(map(len, long)) / len(long), cached.supervised(long) / len(long)
    planned = planned_bytes(settings, frozen.spec, len(long), tokens, teachers)
    assert manifest["counts"]["bytes"] == pytest.approx(planned, rel=0.02)


def test_a_second_run_makes_nothing_again(frozen, samples, whole, monkeypatch):
    before = content(whole)
    monkeypatch.setattr(predict.Writing, "make", lambda *_: pytest.fail("a shard was made again"))
    write(frozen, samples, whole)
    assert content(whole) == before


def killed_writer(folder: Path, after: float) -> set[str]:
    """Start a writer, kill it by SIGKILL ``after`` seconds of writing; names of the shards that were finished then."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(Path(__file__).parents[1] / "cached.py"), str(folder), "1", "0.2"]
    writer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        for line in writer.stdout:
            if "writing" in line:
                break
        time.sleep(after)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    return {path.name for path in folder.glob("shard-*.tar")}


MOMENTS = [random.Random(7).uniform(0, 1.2) for _ in range(20)]


@pytest.mark.parametrize(
    "after", [*MOMENTS[:3], *(pytest.param(moment, marks=pytest.mark.slow) for moment in MOMENTS[3:])]
)
def test_a_writer_killed_at_any_moment_loses_no_finished_shard(frozen, samples, whole, tmp_path, monkeypatch, after):
    """Case 13: what is finished is kept as it is, and the end is byte for byte that of an undisturbed writer."""
    folder = tmp_path / "cache"
    finished = killed_writer(folder, after)
    made, make = [], predict.Writing.make
    monkeypatch.setattr(predict.Writing, "make", lambda self, index: (made.append(index), make(self, index))[1])
    write(frozen, samples, folder)
    remade = {shards.shard_path(folder, index).name for index in made}
    assert not remade & finished and len(remade | finished) == len(list(whole.glob("*.tar")))
    kept = {name: data for name, data in content(folder).items() if not name.startswith(".")}
    assert kept == content(whole)


def test_two_processes_write_what_one_does(whole, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(Path(__file__).parents[1] / "cached.py"), str(tmp_path / "two"), "2", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert content(tmp_path / "two") == content(whole)


def test_fewer_missing_shards_than_processes_are_written_all_the_same(whole, tmp_path):
    folder = tmp_path / "two"
    shutil.copytree(whole, folder)
    shards.shard_path(folder, 1).unlink()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(Path(__file__).parents[1] / "cached.py"), str(folder), "2", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert content(folder) == content(whole)


def test_a_basis_is_learned_once_and_by_one_of_two_processes(frozen, samples, tmp_path):
    settings = dataclasses.replace(SETTINGS, codec="lowrank", rank=16)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(Path(__file__).parents[1] / "cached.py"), str(tmp_path / "two"), "2", "0", "lowrank"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("learning a basis of 16 directions") == 1
    write(frozen, samples, tmp_path / "one", settings)
    assert content(tmp_path / "two") == content(tmp_path / "one")


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
        patched.setattr(shards.os, "fsync", full)
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
