"""data.features=stream trains as a cache does, inside its window, and both sides can be killed (cases 12, 13)."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

import lightning as L
import pytest

import cached
import fitting
import streamed
from draftlab.cli import disk_is_full
from draftlab.data import files
from draftlab.data.loaders import BatchPlan
from draftlab.data.predict import prepare_cache
from draftlab.data.produce import Producer
from draftlab.data.stream import StreamOrder, stream_of
from draftlab.data.window import Position, StreamSettings, Window
from streamed import loaded, producer, same, trained


@pytest.fixture(scope="module")
def target():
    return fitting.fitting_target()


@pytest.fixture
def folder(tmp_path):
    fitting.write_answers(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def undisturbed(target, tmp_path_factory):
    """Weights of a training from a cache."""
    folder = tmp_path_factory.mktemp("cache")
    fitting.write_answers(folder)
    return from_cache(target, folder)


def from_cache(target, folder, **options):
    data = loaded(target, folder, "cache", **options)
    prepare_cache(data, target, cached.trainer())
    return trained(target, data, folder / "cache-run")


def killed(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


class Largest(threading.Thread):
    """The largest size that a window was seen to have."""

    def __init__(self, window):
        super().__init__(daemon=True)
        self.window, self.size, self.numbers = window, 0, 0
        self.running = True

    def run(self):
        while self.running:
            self.size = max(self.size, self.window.used())
            self.numbers = max(self.numbers, len(self.window.numbers()))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.running = False
        self.join()


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("tokens", [1, 60, 200, 10**6])
def test_shards_hold_every_conversation_of_an_epoch_once_beside_those_of_its_batch(seed, tokens):
    plan = BatchPlan([3 + (7 * i) % 11 for i in range(23)], 4, seed)
    order = StreamOrder.of(plan, tokens)
    for epoch in range(3):
        shards = range(epoch * order.per_epoch, (epoch + 1) * order.per_epoch)
        assert sorted(row for number in shards for row in order.rows(number)) == list(range(23))
        for index in range(len(plan)):
            number = order.shard_of(epoch * len(plan) + index)
            assert number in shards and set(plan.rows(epoch, index)) <= set(order.rows(number))
    assert order.batches == max(1, tokens * 6 // sum(plan.lengths))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"codec": "int4", "packing": 512},
        {"codec": "lowrank", "codec_rank": 8, "val_samples": 0},
        {"num_workers": 1},
    ],
    ids=["bf16", "int4 packed", "lowrank without validation", "loader process"],
)
def test_a_stream_reaches_the_weights_of_a_cache_bit_for_bit(target, folder, undisturbed, options):
    """Three epochs through a window of less than one."""
    expected = from_cache(target, folder, **options) if options.keys() - {"num_workers"} else undisturbed
    data = loaded(target, folder, **options)
    window = stream_of(data).place(target)[0]
    with producer(data) as raised, Largest(window) as largest:
        weights = trained(target, data, folder / "run")
    assert not raised and same(weights, expected)
    order = stream_of(data).order
    assert 0 < largest.size <= window.limit and order.per_epoch > 2
    assert not window.numbers() and window.position().finished


def test_back_pressure_holds_the_producer_inside_the_window(target, folder):
    data = loaded(target, folder, codec="int8", window_gb=1.2e-4)
    window = stream_of(data).place(target)[0]
    with producer(data), Largest(window) as largest:
        while not window.numbers():
            time.sleep(0.05)
        time.sleep(1)
        full = window.numbers()
        assert full == list(range(len(full))) and len(full) < stream_of(data).order.per_epoch
        trained(target, data, folder / "run")
    assert largest.size <= window.limit < largest.size + 5e4 and largest.numbers <= len(full) + 1


def test_conversations_read_together_differ_by_rounding_alone(target, folder, undisturbed):
    data = loaded(target, folder, alone=False)
    with producer(data):
        weights = trained(target, data, folder / "run")
    for name, tensor in undisturbed.items():
        assert (weights[name] - tensor).abs().max() < 5e-3, name


def test_batches_come_in_the_order_of_a_cache(target, folder):
    caching = loaded(target, folder, "cache")
    prepare_cache(caching, target, cached.trainer())
    caching.compute_features(target)
    data = loaded(target, folder)
    with producer(data):
        data.compute_features(target)
        for one, other in zip(caching.train_dataloader(), data.train_dataloader(), strict=True):
            assert one.sample_ids == other.sample_ids and one.features.equal(other.features)
        for one, other in zip(caching.val_dataloader(), data.val_dataloader(), strict=True):
            assert one.sample_ids == other.sample_ids and one.last_hidden.equal(other.last_hidden)


@pytest.mark.parametrize("after", [pytest.param(3, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_a_killed_training_goes_on_to_the_same_weights_beside_the_same_producer(target, folder, undisturbed, after):
    """What was freed since the checkpoint is produced again."""
    making = streamed.start("produce", folder, 0)
    try:
        training = streamed.start("train", folder, streamed.STEPS, 0.1)
        streamed.until(training, f"step {after}")
        killed(training)
        assert (folder / "run" / "checkpoints" / f"step-{after - after % 2}.ckpt").exists()
        assert streamed.start("train", folder, streamed.STEPS, 0).wait(300) == 0
        assert making.wait(60) == 0, "the producer ends with training"
    finally:
        making.kill()
    assert same(streamed.weights_in(folder / "run"), undisturbed)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(0.13, marks=pytest.mark.slow),
        pytest.param(0.0, marks=pytest.mark.slow),
        pytest.param(0.31, marks=pytest.mark.slow),
    ],
)
def test_a_killed_producer_goes_on_and_training_waits_for_it(target, folder, undisturbed, after):
    """No finished shard is made again, and none is half there."""
    making = streamed.start("produce", folder, 0.15)
    training = streamed.start("train", folder, streamed.STEPS, 0.02)
    try:
        streamed.until(making, "making", 3)
        time.sleep(after)
        killed(making)
        window = Window(folder / "stream", 0)
        there = {number: window.shard(number).stat().st_ino for number in window.numbers()}
        making = streamed.start("produce", folder, 0)
        made = [int(line.split()[1]) for line in making.stdout if line.startswith("making")]
        assert training.wait(300) == 0 and making.wait(60) == 0
    finally:
        making.kill()
        training.kill()
    assert not set(made) & set(there)
    assert same(streamed.weights_in(folder / "run"), undisturbed)


def test_training_without_a_producer_says_what_to_start(target, folder):
    data = loaded(target, folder, producer_seconds=0.3)
    with pytest.raises(
        ValueError, match=r"no producer has given a sign of life in .*: start python src/prepare.py stage=stream"
    ):
        data.compute_features(target)


@pytest.mark.slow
def test_a_producer_that_dies_ends_training_and_the_next_one_serves_the_rest(target, folder, undisturbed):
    data = loaded(target, folder, producer_seconds=0.5)
    making = streamed.start("produce", folder, 0)
    streamed.until(making, "making", 3)
    killed(making)
    with pytest.raises(ValueError, match=r"no producer has given a sign of life .* go on with resume=true"):
        trained(target, data, folder / "run")
    data = loaded(target, folder)
    with producer(data):
        assert same(trained(target, data, folder / "run"), undisturbed)


def test_a_full_disk_ends_both_sides_with_the_reason_and_loses_nothing(target, folder, undisturbed, monkeypatch):
    flush, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 9 and threading.current_thread() is not threading.main_thread():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    data = loaded(target, folder)
    with monkeypatch.context() as patched, producer(data) as raised:
        patched.setattr(files.os, "fsync", full)
        with pytest.raises(ValueError, match=r"(No space left|no producer has given a sign)"):
            data.stream = StreamSettings(data.stream.window_gb, 3)
            trained(target, data, folder / "run")
    assert disk_is_full(raised[0]) and not list((folder / "stream").glob(".*"))
    data = loaded(target, folder)
    with producer(data) as raised:
        assert same(trained(target, data, folder / "run"), undisturbed) and not raised


def test_what_a_producer_failed_of_is_told_by_training(target, folder, monkeypatch):
    monkeypatch.setattr(Producer, "make", lambda *_: (_ for _ in ()).throw(ValueError("the states are not finite")))
    data = loaded(target, folder, producer_seconds=5)
    with producer(data), pytest.raises(ValueError, match=r"ended with: the states are not finite"):
        trained(target, data, folder / "run")


def test_a_training_that_begins_anew_is_served_from_its_beginning(target, folder, undisturbed):
    """The window is full of what comes later, which is given up as far as room is needed."""
    data = loaded(target, folder)
    window = stream_of(data).place(target)[0]
    window.move(Position(8, 100, "an earlier one"))
    with producer(data):
        while 9 not in window.numbers():
            time.sleep(0.02)
        assert same(trained(target, data, folder / "run"), undisturbed)


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("seed", {"seed": 1}),
        ("batch_size", {"batch_size": 3}),
        ("codec", {"codec": "fp8"}),
        ("shard_tokens", {"shard_tokens": 99}),
    ],
)
def test_another_identity_is_refused_by_both_sides(target, folder, key, options):
    """Case 12. Another seed holds out other conversations, which is told first."""
    stream_of(loaded(target, folder)).place(target)
    data = loaded(target, folder, **options)
    for use in (data.compute_features, lambda target: Producer(target, stream_of(data))):
        with pytest.raises(
            ValueError, match=rf"holds a stream of features made with another ({key}|training): .*data\.cache_dir"
        ):
            use(target)


def test_a_cut_shard_is_made_again_and_a_foreign_one_refused(target, folder, undisturbed):
    data = loaded(target, folder)
    window = stream_of(data).place(target)[0]
    with producer(data):
        while 1 not in window.numbers():
            time.sleep(0.02)
    content = window.shard(0).read_bytes()
    window.shard(1).write_bytes(window.shard(1).read_bytes()[:3000])
    with producer(data):
        assert same(trained(target, data, folder / "run"), undisturbed)
    window.shard(1).write_bytes(content)
    with producer(data) as raised:
        pass
    assert "foreign shard: its shard is 0, expected 1" in str(raised[0])


def test_a_second_producer_is_refused_and_a_second_training_ends_the_first(target, folder):
    data = loaded(target, folder)
    with producer(data):
        data.compute_features(target)
        with pytest.raises(ValueError, match=r"another producer fills the window in .*data\.cache_dir"):
            Producer(target, stream_of(data)).run()
        first = iter(data.train_dataloader())
        next(first)
        other = loaded(target, folder)
        other.compute_features(target)
        next(iter(other.train_dataloader()))
        data._store._at = 10**6  # as a shard later
        with pytest.raises(ValueError, match=r"another training took the window in .* over"):
            next(first)


def test_several_training_processes_are_refused_by_name(target, folder):
    data = loaded(target, folder)
    with pytest.raises(
        ValueError, match=r"data\.features=stream has one process on either side.*this run has 2 .*devices"
    ):
        data.require_ranks(2)
    data.require_ranks(1)
    data.trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False)
    with pytest.raises(ValueError, match="has one process on either side"):
        data.setup("fit")
    online = loaded(target, folder, "online")
    online.require_ranks(8)


def test_a_window_smaller_than_a_shard_is_refused_when_the_data_is_read(target, folder):
    with pytest.raises(
        ValueError, match=r"data\.window_gb=1e-06 holds less than one shard: the 2 held-out .* Give at least 0\.0"
    ):
        loaded(target, folder, window_gb=1e-6)


@pytest.mark.parametrize("name", ["window_gb", "producer_seconds"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), True, "20"])
def test_bounds_that_are_no_bounds_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"data\.{name} must be a number above 0"):
        StreamSettings(**{name: value})
