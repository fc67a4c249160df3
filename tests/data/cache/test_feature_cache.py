"""The feature cache gives what the target says, in any number of processes, and loses no finished shard (cases 1, 10, 12, 13)."""

from __future__ import annotations

import dataclasses
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
from cached import SETTINGS, content, opened, write
from draftlab.data import predict, shards
from draftlab.data.cache import CODEC_NAMES, CacheSettings, planned_bytes
from draftlab.data.codecs import CODECS, relative_error
from draftlab.data.features import collate


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


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_measured_bytes_are_those_of_the_plan_at_the_widths_of_a_real_target(tmp_path, codec):
    """Of the tokens that are stored, with each codec's own last_codec and rank; whole lengths are an upper bound of them."""
    wide = tiny.tiny_target(vocab_size=128, hidden_size=576, target_layer_ids=(0, 1, 2))
    long = cached.conversations(count=30, letters=150)
    settings = CacheSettings(codec, compute_dtype="float32", shard_tokens=2000)
    counts = write(wide, long, tmp_path, settings)["counts"]
    stored = sum(shards.extent(sample.loss_mask, settings.trim).context for sample in long) / len(long)
    whole, teachers = sum(map(len, long)) / len(long), cached.supervised(long) / len(long)
    assert counts["bytes"] == pytest.approx(planned_bytes(settings, wide.spec, len(long), stored, teachers), rel=0.02)
    assert counts["bytes"] < planned_bytes(settings, wide.spec, len(long), whole, teachers)


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
    command = [sys.executable, str(Path(__file__).parents[2] / "cached.py"), str(folder), "1", "0.2"]
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
    command = [sys.executable, str(Path(__file__).parents[2] / "cached.py"), str(tmp_path / "two"), "2", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert content(tmp_path / "two") == content(whole)


@pytest.mark.slow
def test_fewer_missing_shards_than_processes_are_written_all_the_same(whole, tmp_path):
    folder = tmp_path / "two"
    shutil.copytree(whole, folder)
    shards.shard_path(folder, 1).unlink()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(Path(__file__).parents[2] / "cached.py"), str(folder), "2", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert content(folder) == content(whole)


def test_a_basis_is_learned_once_and_by_one_of_two_processes(frozen, samples, tmp_path):
    settings = dataclasses.replace(SETTINGS, codec="lowrank", rank=16)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(Path(__file__).parents[2] / "cached.py"), str(tmp_path / "two"), "2", "0", "lowrank"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("learning a basis of 16 directions") == 1
    write(frozen, samples, tmp_path / "one", settings)
    assert content(tmp_path / "two") == content(tmp_path / "one")
