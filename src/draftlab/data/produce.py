"""The producer of ``data.features=stream``: the frozen target reads ahead of training, as far as the window allows.

    shard n is written when   bytes of the folder + bytes of shard n ≤ window_gb,   n: the first one missing from training's own on

It runs in a process of its own, beside training on another GPU, on another machine that sees the folder, or on the same CPU:

    python src/prepare.py stage=stream data=laptop data.features=stream

One shard is made while the window is still full, and waits. It ends when training does; stop it at any moment, and the same
command goes on. When training steps back to a checkpoint, what it needs again is made first.
"""

from __future__ import annotations

import time
from typing import Any

import lightning as L

from draftlab.data.cache import check_stamp, layout_of
from draftlab.data.predict import Writing, encode, prepare_cache, print_cache
from draftlab.data.progress import Progress
from draftlab.data.shards import Member, Shard, shard_bytes, write_shard
from draftlab.data.stream import Stream, stream_of
from draftlab.data.window import NOTES, POLL, Position

FILLED_BY = {"features": "cache", "stream": "stream"}  # stage of prepare.py -> data.features
WAITING_SECONDS = 60.0  # between two lines that say that the window is full


def check_stage(stage: str, data: Any, world_size: int) -> None:
    """Refuse a stage of prepare.py that does not fill what ``data`` reads, or that so many processes cannot share.

    Raises:
        ValueError: naming both.
    """
    mode = FILLED_BY[stage]
    if data.features != mode:
        raise ValueError(f"stage={stage} fills the {mode} of data.features={mode}, got data.features={data.features}")
    data.require_ranks(world_size)


def store_features(data: Any, target: Any, trainer: L.Trainer) -> None:
    """Fill the cache or, until its training ends, the window of a loaded datamodule.

    Raises:
        ValueError: another identity in the folder, another producer, or a state that is not finite.
        OSError: the disk is full; what is finished stays.
    """
    if data.features == "stream":
        Producer(target, stream_of(data)).run()
    else:
        print_cache(*prepare_cache(data, target, trainer))


class Producer:
    """Fills one window.

    Raises:
        ValueError: the folder holds another identity, or the bound is too small.
    """

    def __init__(self, target: Any, stream: Stream) -> None:
        stream.check_size(target.spec)
        self.target, self.stream = target, stream
        self.window, self.stamp = stream.place(target)
        self._before = self.window.position()  # of an earlier training, as far as it has ended

    def run(self) -> None:
        """Make the held-out conversations, then shards until training needs no more."""
        with self.window.producing():
            self.window.clean()
            self._fix()
            self._drop_damaged()
            settings = self.stream.settings
            print(f"a window of {settings.window_gb:g} GB for training to read: {self.window.folder}", flush=True)
            order, number = self.stream.order, self._next()
            while number is not None:
                epoch, done = divmod(number, order.per_epoch)
                with Progress(f"shards of epoch {epoch + 1}", order.per_epoch, done) as progress:
                    while number is not None and number // order.per_epoch == epoch:
                        members = self.make(number)
                        if self._put(number, members):
                            progress.advance(1, sum(member.tokens for member in members))
                        number = self._next()
        print("training has ended; the window is no longer needed", flush=True)

    def make(self, number: int) -> list[Member]:
        """The members of shard ``number``."""
        indices = [self.stream.train[row] for row in self.stream.order.rows(number)]
        return encode(self.target, self.stream.samples, indices, self._layout, self.stream.cache)

    def _fix(self) -> None:
        """Write the conversations that stay, with the basis if the codec has one, which is learned from those to train on."""
        samples, identity = self.stream.fixed(self.target, self.stamp)
        training = [self.stream.samples[index] for index in self.stream.train]
        folder = self.window.folder / "fixed"
        fixed = Writing(self.target, samples, folder, identity, self.stream.cache, training)
        if fixed.missing:
            fixed.begin()
            for index in fixed.missing:
                fixed.write(index, fixed.make(index))
        fixed.finish()
        self._layout, self._basis = layout_of(folder, self.target.spec, self.stream.cache), fixed.basis

    def _drop_damaged(self) -> None:
        """Remove shards that are cut.

        Raises:
            ValueError: one of another identity.
        """
        for number in self.window.numbers():
            try:
                shard = Shard(self.window.shard(number))
            except ValueError:
                self.window.shard(number).unlink(missing_ok=True)
                continue
            check_stamp(shard, self.stamp, number, self._basis)

    def _position(self) -> Position:
        """Where training is; one that had ended before this producer came counts as a new one that has not begun."""
        position = self.window.position()
        return Position() if position.finished and position == self._before else position

    def _missing(self, position: Position) -> int | None:
        """The first shard from training's own on that is not there; None if training needs no further one."""
        order, number = self.stream.order, self.stream.order.shard_of(position.batches)
        there = set(self.window.numbers())
        while number in there:
            number += 1
        return None if position.until is not None and number > order.shard_of(position.until - 1) else number

    def _next(self) -> int | None:
        """The next shard to make, waiting while none is needed; None when training has ended."""
        while not (position := self._position()).finished:
            number = self._missing(position)
            if number is not None:
                return number
            time.sleep(POLL)
        return None

    def _put(self, number: int, members: list[Member]) -> bool:
        """Write shard ``number`` as soon as there is room; False if another one is needed first by now.

        Raises:
            ValueError: it does not even fit into an empty window.
        """
        stamp = {"stamp": self.stamp, "basis": self._basis, "shard": number}
        size, said = shard_bytes(stamp, members), time.monotonic()
        while not (position := self._position()).finished and self._missing(position) == number:
            used = self.window.used() + NOTES
            if used + size <= self.window.limit:
                write_shard(self.window.shard(number), stamp, members)
                return True
            there = self.window.numbers()
            if not there:
                raise ValueError(
                    f"data.window_gb={self.stream.settings.window_gb:g} has no room for a shard of {size / 1e9:.3g} GB beside "
                    f"{used / 1e9:.3g} GB that stay; give a larger one, or a smaller data.shard_tokens"
                )
            if there[-1] > number:  # training has stepped back: the farthest ahead is made again in its turn
                self.window.shard(there[-1]).unlink(missing_ok=True)
                continue
            if time.monotonic() - said > WAITING_SECONDS:
                said = time.monotonic()
                print(f"the window is full at shard {number}; waiting for training", flush=True)
            time.sleep(POLL)
        return False
