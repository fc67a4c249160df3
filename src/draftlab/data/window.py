"""The folder that a producer fills with shards and training empties: who is where, who is alive, and how much lies there.

    fixed/               held-out conversations: a finished cache that stays
    shard-%06d.tar       written by the producer, removed by training, which alone does so while it needs them
    position.json        written by training: the batches it has behind it, where it will end, and which process it is
    producer.json        touched by the producer every other second; says how it ended

Signs of life are changes of a file, never times, since two machines' clocks differ. The bound counts every file of the folder.
The module knows nothing of states, batches or targets.

    window = Window(folder, limit=20e9)
    with window.producing():
        window.position().batches, window.used() + size <= window.limit
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from draftlab.data.files import read_object, write_json
from draftlab.data.shards import shard_path

BEAT = 2.0  # seconds between two signs of life
POLL = 0.05  # seconds between two looks at the folder
NOTES = 16_384  # bytes kept free for position.json, producer.json and their successors
RUNNING, STOPPED, FAILED, DONE = "running", "stopped", "failed", "done"
START = "python src/prepare.py stage=stream … with this run's choices of target and data"


@dataclass(frozen=True)
class StreamSettings:
    """Bounds of a stream.

    Args:
        window_gb: the folder's size, at most. producer_seconds: training waits so long for a producer without a sign of life.

    Raises:
        ValueError: a value that is not positive.
    """

    window_gb: float = 20.0
    producer_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name, value in (("window_gb", self.window_gb), ("producer_seconds", self.producer_seconds)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"data.{name} must be a number above 0, got {value!r}")

    @property
    def limit(self) -> int:
        """The bound in bytes."""
        return int(self.window_gb * 1e9)


@dataclass(frozen=True)
class Position:
    """Where training is: ``batches`` behind it over all epochs, of ``until`` (None: unknown); ``reader`` names its process."""

    batches: int = 0
    until: int | None = None
    reader: str | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more is needed."""
        return self.until is not None and self.batches >= self.until


class Window:
    """One folder, seen from either side; ``limit``: its bytes, at most."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._position, self._producer = folder / "position.json", folder / "producer.json"

    # Shards

    def shard(self, number: int) -> Path:
        """Path of shard ``number``."""
        return shard_path(self.folder, number)

    def numbers(self) -> list[int]:
        """Shards that are there, in order."""
        return sorted(int(path.stem.removeprefix("shard-")) for path in self.folder.glob("shard-*.tar"))

    def used(self) -> int:
        """Bytes of all files in the folder."""
        total = 0
        for path in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # freed meanwhile
                total += path.stat().st_size if path.is_file() else 0
        return total

    def free(self, below: int) -> None:
        """Remove the shards before ``below``."""
        for number in self.numbers():
            if number < below:
                self.shard(number).unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove what a killed producer left half written, but nothing that training may be writing; for the producer."""
        for path in (*self.folder.glob(".shard-*"), *(self.folder / "fixed").glob(".*")):
            path.unlink(missing_ok=True)

    # Training's side

    def position(self) -> Position:
        """Where training is, or was; the beginning if it has not come yet."""
        if not self._position.exists():
            return Position()
        found = read_object(self._position)
        batches, until, reader = (found.get(name) for name in ("batches", "until", "reader"))
        if not (isinstance(batches, int) and isinstance(until, int | None) and isinstance(reader, str | None)):
            raise ValueError(
                f"{self._position} does not say where training is ({found}); it was damaged: remove {self.folder}"
            )
        return Position(batches, until, reader)

    def move(self, position: Position) -> None:
        """Tell where training is."""
        write_json(self._position, asdict(position))

    # The producer's side

    @contextlib.contextmanager
    def producing(self) -> Iterator[None]:
        """Be the folder's producer in this block, with signs of life; how it ended is noted.

        Raises:
            ValueError: another one is at work.
        """
        self._refuse_second_producer()
        note = {"producer": new_name(), "state": RUNNING, "message": ""}
        write_json(self._producer, note)
        stop = threading.Event()
        thread = threading.Thread(target=self._beat, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
            note["state"] = DONE
        except KeyboardInterrupt:
            note["state"] = STOPPED
            raise
        except BaseException as error:
            note |= {"state": FAILED, "message": str(error)}
            raise
        finally:
            stop.set()
            thread.join()
            with contextlib.suppress(OSError):  # a disk without room for it: training misses the signs of life instead
                write_json(self._producer, note)

    def note(self) -> dict[str, str]:
        """What the newest producer said last: ``producer``, ``state`` and ``message``; empty if there was none."""
        note = read_object(self._producer) if self._producer.exists() else {}
        if note and not all(isinstance(note.get(name), str) for name in ("producer", "state", "message")):
            raise ValueError(f"{self._producer} is no note of a producer ({note}); it was damaged: remove it")
        return note

    def ended(self) -> str | None:
        """The newest producer if it has ended, so that its end is no news."""
        note = self.note()
        return None if note.get("state") == RUNNING else note.get("producer")

    def wait(self, ready: Callable[[], bool], seconds: float, known: str | None = None) -> None:
        """Return as soon as ``ready``; ``known`` names a producer whose end is no news.

        Raises:
            ValueError: the producer failed, or none gave a sign of life for ``seconds``.
        """
        seen, since, told = self._sign(), time.monotonic(), False
        while not ready():
            sign, now = self._sign(), time.monotonic()
            if sign != seen:
                seen, since = sign, now
            note = self.note()
            if note.get("state") == FAILED and note["producer"] != known:
                raise ValueError(
                    f"the producer of the window in {self.folder} ended with: {note['message']}. Mend that, start it again "
                    f"({START}), and go on with resume=true"
                )
            if now - since > min(3 * BEAT, seconds) and not told:
                print(f"no producer at {self.folder}; waiting {seconds:g} s for {START}", flush=True)
                told = True
            if now - since > seconds:
                last = f" (the last one ended with: {note['message']})" if note.get("message") else ""
                raise ValueError(
                    f"no producer has given a sign of life in {self.folder} for data.producer_seconds={seconds:g}{last}: start "
                    f"{START}, and go on with resume=true"
                )
            time.sleep(POLL)

    def _sign(self) -> int:
        """Changes with every sign of life."""
        with contextlib.suppress(FileNotFoundError):
            return self._producer.stat().st_mtime_ns
        return 0

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(BEAT):
            with contextlib.suppress(OSError):
                os.utime(self._producer)

    def _refuse_second_producer(self) -> None:
        if self.note().get("state") != RUNNING:
            return
        before = self._sign()
        time.sleep(1.5 * BEAT)  # what is running shows itself in this time; what was killed does not
        if self._sign() != before:
            raise ValueError(
                f"another producer fills the window in {self.folder}; stop it first, or give another folder "
                "(data.cache_dir=…) to a second stream"
            )


def new_name() -> str:
    """A name that no other process has."""
    return uuid.uuid4().hex[:12]
