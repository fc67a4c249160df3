"""data.features=stream: training reads shards that a producer writes shortly before, and frees them behind it.

    shard n of an epoch       the conversations of batches K n … K n + K - 1, in training's own order
    K = ⌊shard_tokens / mean tokens of a batch⌋, at least 1

Only a window of the epoch is ever on the disk (window.py), whatever the data's size; a second epoch is produced again. Batches
and their order are those of ``data.features=cache``. A shard is a pure function of its place, so a killed producer goes on with
the same bytes, and a resumed training gets again what it had freed since its checkpoint. Nothing here depends on the drafter.

    stream = stream_of(data)                        # the same on both sides
    Producer(target, stream).run()                  # produce.py, in a process of its own
    store = open_stream(target, stream)             # in training
    with store.reading(epoch=0, index=3):
        features, last_hidden, log_normalizer = store[sample_index]
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from draftlab.data import lowrank
from draftlab.data.cache import (
    CacheSettings,
    CacheStore,
    basis_digest,
    cache_folder,
    cache_identity,
    check_stamp,
    open_cache,
    read_sample,
)
from draftlab.data.files import MANIFEST, claim, digest
from draftlab.data.loaders import BatchPlan
from draftlab.data.samples import Sample
from draftlab.data.shards import RECORD, Shard, member_bytes
from draftlab.data.window import NOTES, Position, StreamSettings, Window, new_name

FIELD = "data.cache_dir"


@dataclass(frozen=True)
class StreamOrder:
    """Which batches of ``plan`` make which shard; ``batches`` of a shard. Shards are numbered over all epochs."""

    plan: BatchPlan
    batches: int

    @classmethod
    def of(cls, plan: BatchPlan, shard_tokens: int) -> StreamOrder:
        """Shards of about ``shard_tokens`` tokens."""
        return cls(plan, max(1, shard_tokens * len(plan) // max(1, sum(plan.lengths))))

    @property
    def per_epoch(self) -> int:
        """Shards of an epoch."""
        return -(-len(self.plan) // self.batches)

    def shard_of(self, step: int) -> int:
        """The shard of batch ``step``, which counts over all epochs."""
        epoch, index = divmod(step, len(self.plan))
        return epoch * self.per_epoch + index // self.batches

    def rows(self, number: int) -> list[int]:
        """Rows of shard ``number``, each once; ordered by length, which saves padding."""
        epoch, part = divmod(number, self.per_epoch)
        steps = range(part * self.batches, min((part + 1) * self.batches, len(self.plan)))
        rows = [row for index in steps for row in self.plan.rows(epoch, index)]
        return sorted(rows, key=lambda row: (self.plan.lengths[row], row))


@dataclass(frozen=True)
class Stream:
    """What producer and training agree on.

    Args:
        samples: all conversations. train: indices of those to train on. held_out: of those that stay on the disk.
    """

    samples: list[Sample]
    train: list[int]
    held_out: list[int]
    order: StreamOrder
    cache: CacheSettings
    settings: StreamSettings
    text: dict[str, Any] = field(default_factory=dict)
    cache_dir: Path | None = None

    def place(self, target: Any) -> tuple[Window, str]:
        """The folder, claimed for what must agree for it to be this training's, and the digest of that.

        Raises:
            ValueError: it holds another stream, or something else.
        """
        plan = self.order.plan
        identity = cache_identity(target, self.samples, self.cache, self.text, self.held_out) | {
            "format": "stream-1",
            "training": digest(self.train),
            "seed": plan.seed,
            "batch_size": plan.batch_size,
        }
        folder = cache_folder(self.cache_dir, identity)
        claim(folder, identity, "a stream of features", FIELD)
        return Window(folder, self.settings.limit), digest(identity)

    def fixed(self, target: Any, stamp: str) -> tuple[list[Sample], dict[str, Any]]:
        """The conversations that stay on the disk, and the identity of their cache in the stream of that digest."""
        held_out = [self.samples[index] for index in self.held_out]
        return held_out, cache_identity(target, held_out, self.cache, self.text) | {"stream": stamp}

    def check_size(self, spec: Any) -> None:
        """Refuse a window that cannot hold the fixed conversations and any one shard.

        Raises:
            ValueError: naming both sizes.
        """
        sizes = [member_bytes(self.cache.payload_bytes(spec, sample.loss_mask)) for sample in self.samples]
        longest = sorted((sizes[index] for index in self.train), reverse=True)
        shard = _with_list(longest[: self.order.batches * self.order.plan.batch_size])
        fixed = NOTES + sum(_with_list([sizes[index]]) for index in self.held_out)
        if self.cache.codec == lowrank.NAME:
            fixed += 4 * spec.feature_size * (self.cache.rank_of(spec) + 1) + RECORD
        if fixed + shard > self.settings.limit:
            raise ValueError(
                f"data.window_gb={self.settings.window_gb:g} holds less than one shard: the {len(self.held_out)} held-out "
                f"conversations take up to {fixed / 1e9:.3g} GB and the largest shard {shard / 1e9:.3g} GB. Give at least "
                f"{(fixed + shard) / 1e9:.3g}, better several shards, or a smaller data.shard_tokens"
            )


def stream_of(data: Any) -> Stream:
    """The stream of a loaded datamodule; without held-out samples, the shortest one is kept to check the target by."""
    shortest = min(data.train_indices, key=lambda index: (len(data.samples[index]), index))
    plan = BatchPlan([len(data.samples[index]) for index in data.train_indices], data.batch_size, data.seed)
    return Stream(
        data.samples,
        data.train_indices,
        data.val_indices or [shortest],
        StreamOrder.of(plan, data.cache.shard_tokens),
        data.cache,
        data.stream,
        data.text_identity,
        data.features_folder,
    )


class StreamStore:
    """Features by sample index, of the batch that is being read; built by :func:`open_stream`.

    ``held`` is the cache of the held-out conversations, by their place among them.
    """

    def __init__(self, stream: Stream, window: Window, stamp: str, held: CacheStore, ended: str | None) -> None:
        self.stream, self.window, self.stamp, self.held = stream, window, stamp, held
        self.until: int | None = None  # batches of the whole training
        self._reader, self._at = new_name(), -1
        self._ended = ended  # the producer that had ended before this training began
        self._shard: Shard | None = None

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """``features`` [T, M*D], ``last_hidden`` [T, D] and ``log_normalizer`` [T] of sample ``index``.

        Raises:
            ValueError: bytes were changed, or they are another conversation's.
        """
        return read_sample(self._shard, index, self.stream.samples[index], self.held.layout)

    @contextlib.contextmanager
    def reading(self, epoch: int, index: int) -> Iterator[None]:
        """Read the samples of this batch in the block; waits for their shard, and holds nothing of it afterwards.

        Raises:
            ValueError: no producer makes it, or it is another stream's.
        """
        number = self.stream.order.shard_of(epoch * len(self.stream.order.plan) + index)
        self._shard = self._open(number)
        try:
            yield
        finally:
            self._shard = None

    def advance(self, batches: int) -> None:
        """Training has ``batches`` behind it: tell the producer, and free what lies before.

        Raises:
            ValueError: another training took the window over.
        """
        number = self.stream.order.shard_of(batches)
        if number == self._at:
            return
        self._refuse_second_reader()
        self._at = number
        self.window.move(Position(batches, self.until, self._reader))
        self.window.free(below=number)

    def close(self, batches: int) -> None:
        """Training has ended after ``batches``: free everything but what is fixed."""
        if self.window.position().reader != self._reader:
            return
        self.window.move(Position(batches, batches, self._reader))
        self.window.free(below=max(self.window.numbers(), default=-1) + 1)

    def _open(self, number: int) -> Shard:
        path = self.window.shard(number)
        while True:
            self.window.wait(lambda: self._is_there(path), self.stream.settings.producer_seconds, self._ended)
            try:
                shard = Shard(path)
            except ValueError:
                if path.exists():
                    raise
                continue  # the producer took it back for one that is needed earlier
            check_stamp(shard, self.stamp, number, basis_digest(self.held.layout))
            return shard

    def _is_there(self, path: Path) -> bool:
        if path.exists():
            return True
        self._refuse_second_reader()
        return False

    def _refuse_second_reader(self) -> None:
        if self._at >= 0 and self.window.position().reader != self._reader:
            raise ValueError(
                f"another training took the window in {self.window.folder} over, and frees what it has read; give each training "
                f"a producer and a folder of its own ({FIELD}=…)"
            )


def open_stream(target: Any, stream: Stream) -> StreamStore:
    """The stream as training reads it, once the producer has made the held-out conversations.

    Raises:
        ValueError: no producer, another identity, or states that are not this target's.
    """
    window, stamp = stream.place(target)
    samples, identity = stream.fixed(target, stamp)
    fixed = window.folder / "fixed"
    ended = window.ended()
    window.wait((fixed / MANIFEST).exists, stream.settings.producer_seconds, ended)
    held = open_cache(target, samples, fixed, identity, stream.cache)
    return StreamStore(stream, window, stamp, held, ended)


def _with_list(sizes: Sequence[int]) -> int:
    """Bytes of a shard whose members take ``sizes``, its list included; an upper bound for ids of a usual length."""
    return sum(sizes) + 400 * len(sizes) + 2 * RECORD
