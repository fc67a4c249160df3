"""Seconds spent on named parts of a loop; queued GPU work is waited for at both ends and so counted where it belongs.

>>> clock = Clock()
>>> with clock("verify", torch.device("cpu")):
...     pass
>>> list(clock.seconds), clock.times["verify"]
(['verify'], 1)
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Accumulates wall-clock seconds by name in ``seconds``, and how often each was entered in ``times``."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.times: Counter[str] = Counter()

    @contextmanager
    def __call__(self, name: str, device: torch.device) -> Iterator[None]:
        """Add the time of the ``with`` body to ``name``."""
        _wait(device)
        start = time.perf_counter()
        yield
        _wait(device)
        self.seconds[name] += time.perf_counter() - start
        self.times[name] += 1


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
