"""Who asks the engine for answers, and when: a fixed number of users in turn, or arrivals at given times.

    closed loop    C users; each asks again as soon as it has its answer, so C requests run at any time
    open loop      requests arrive at the times of an iterator, whatever the engine does; those without a place wait

Prompts are taken in turn, so that two engines under the same load get the same ones in the same order. The module knows
nothing of models.

    ClosedLoop(prompts, users=8).take(now=0.0, running=0)        # eight requests
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """A prompt [n] of token ids that arrives at ``arrival`` seconds; ``number`` counts from 0."""

    number: int
    domain: str
    prompt: tuple[int, ...]
    arrival: float


class Load(ABC):
    """Hands out requests.

    Args:
        prompts: (domain, token ids), taken in turn.

    Raises:
        ValueError: no prompts, or one without tokens.
    """

    def __init__(self, prompts: Sequence[tuple[str, Sequence[int]]]) -> None:
        if not prompts or not all(len(ids) for _, ids in prompts):
            raise ValueError("a load needs at least one prompt, and every prompt at least one token")
        self.prompts = [(domain, tuple(ids)) for domain, ids in prompts]
        self.made = 0

    @abstractmethod
    def take(self, now: float, running: int) -> list[Request]:
        """Requests that join at ``now``, when ``running`` are being answered."""

    @abstractmethod
    def next_arrival(self) -> float | None:
        """Seconds at which a request will join an idle engine; None: never again."""

    def _request(self, arrival: float) -> Request:
        domain, prompt = self.prompts[self.made % len(self.prompts)]
        self.made += 1
        return Request(self.made - 1, domain, prompt, arrival)


class ClosedLoop(Load):
    """``users`` requests at any time.

    Raises:
        ValueError: fewer than one user.
    """

    def __init__(self, prompts: Sequence[tuple[str, Sequence[int]]], users: int) -> None:
        super().__init__(prompts)
        if users < 1:
            raise ValueError(f"concurrency must be at least 1 user, got {users}")
        self.users = users

    def take(self, now: float, running: int) -> list[Request]:
        """See :class:`Load`."""
        return [self._request(now) for _ in range(self.users - running)]

    def next_arrival(self) -> float | None:
        """See :class:`Load`."""
        return 0.0


class OpenLoop(Load):
    """Requests at ``times`` (ascending seconds), at most ``places`` of them answered at a time."""

    def __init__(self, prompts: Sequence[tuple[str, Sequence[int]]], times: Iterable[float], places: int) -> None:
        super().__init__(prompts)
        self.times, self.places = iter(times), places
        self._coming = next(self.times, None)

    def take(self, now: float, running: int) -> list[Request]:
        """See :class:`Load`."""
        taken = []
        while self._coming is not None and self._coming <= now and running + len(taken) < self.places:
            taken.append(self._request(self._coming))
            following = next(self.times, None)
            if following is not None and following < self._coming:
                raise ValueError(f"arrival times must ascend, got {following:g} s after {self._coming:g} s")
            self._coming = following
        return taken

    def next_arrival(self) -> float | None:
        """See :class:`Load`."""
        return self._coming
