"""Servers that answer prompts, and their health: who gets the next request, who rests, and when there is nobody left.

A server gets at most ``concurrency`` requests at once. After STRIKES faults in a row (at once where nothing listens, or
where it asks for time) it rests for rest_seconds · 2^(rests so far), with jitter and at most LONGEST_REST, and is then
tried with one request; a success makes it well again. The run ends when no server has been well for ``dead_minutes``.
The module knows nothing of HTTP, prompts or files.

    pool = Pool([Server("http://127.0.0.1:8000/v1")], ClientSettings())
    server = await pool.acquire()
    pool.release(server, fault=None)
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

STRIKES = 3
LONGEST_REST = 300.0
LONGEST_PAUSE = 60.0
TICK = 5.0  # seconds after which a waiting request looks again, whatever happened


@dataclass(frozen=True)
class ClientSettings:
    """How servers are asked.

    Args:
        model: name under which every server lists the target; None: the target's own name.
        check: find out before the run whether every server runs the target.
        concurrency: requests in flight at one server.
        timeout: seconds for one answer.
        retries: further attempts at a prompt, after faults that may be the prompt's own.
        rest_seconds: first rest of a sick server and first pause before a prompt is tried again; both double.
        dead_minutes: end the run when no server has been well for so long.
        api_key_env: environment variable that holds the key, if the servers want one.

    Raises:
        ValueError: a value outside its range.
    """

    model: str | None = None
    check: bool = True
    concurrency: int = 32
    timeout: float = 600.0
    retries: int = 5
    rest_seconds: float = 2.0
    dead_minutes: float = 10.0
    api_key_env: str = "OPENAI_API_KEY"

    def __post_init__(self) -> None:
        if not isinstance(self.concurrency, int) or not 1 <= self.concurrency <= 1000:
            raise ValueError(f"client.concurrency must be whole and in 1..1000 per server, got {self.concurrency!r}")
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"client.retries must be at least 0 and whole, got {self.retries!r}")
        for name in ("timeout", "rest_seconds", "dead_minutes"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"client.{name} must be a positive number, got {value!r}")
        if not self.api_key_env:
            raise ValueError("client.api_key_env must name an environment variable; the key itself is never configured")


class Fault(Exception):
    """A request that brought no answer.

    Args:
        kind: the reason under which it is counted.
        detail: what the server said.
        blameless: it says nothing about the prompt, which keeps its attempts.
        final: another attempt would end the same way; it says nothing against the server.
        rest: seconds for which the server asks for quiet, or 0 to rest at once for the usual time.
    """

    def __init__(
        self, kind: str, detail: str, *, blameless: bool = False, final: bool = False, rest: float | None = None
    ):
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.blameless, self.final, self.rest = kind, detail, blameless, final, rest


class ServersDead(ValueError):
    """No server has been well for too long."""


@dataclass
class Server:
    """One server and what happened at it; ``label`` is its address without user, password and query."""

    url: str
    client: Any = None
    model: str = ""
    takes_extra: bool = True  # sampling fields beyond OpenAI's own
    in_flight: int = 0
    strikes: int = 0
    rests: int = 0
    rest_until: float = 0.0
    answered: int = 0
    faults: Counter = field(default_factory=Counter)
    last_fault: str = ""

    def __post_init__(self) -> None:
        self.label = redacted(self.url)

    @property
    def well(self) -> bool:
        """False from the STRIKES-th fault in a row to the next answer."""
        return self.strikes < STRIKES


class Pool:
    """Gives out servers and keeps their health; ``clock`` counts seconds."""

    def __init__(
        self, servers: Sequence[Server], settings: ClientSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.servers, self.settings, self.clock = list(servers), settings, clock
        self.well_at = self.failed_at = clock()
        self._jitter = random.Random()  # of waiting times only; answers do not depend on it
        self._changed = asyncio.Event()

    @property
    def capacity(self) -> int:
        """Requests in flight at all servers together."""
        return self.settings.concurrency * len(self.servers)

    async def acquire(self, avoid: Server | None = None) -> Server:
        """The least busy server that takes a request now, another than ``avoid`` if there is one; waits for one.

        Raises:
            ServersDead: none has been well for ``dead_minutes``.
        """
        while True:
            self._check_life(self.failed_at)  # pauses of prompts may outlast every rest, so that one is always free
            free = [server for server in self.servers if self._free(server)]
            if free:
                server = min(free, key=lambda server: (server is avoid, not server.well, server.in_flight))
                server.in_flight += 1
                return server
            self._check_life(self.clock())
            self._changed.clear()
            resting = [server.rest_until - self.clock() for server in self.servers]
            wait = min([TICK, *(seconds for seconds in resting if seconds > 0)])
            try:
                await asyncio.wait_for(self._changed.wait(), max(wait, 0.01))
            except TimeoutError:
                continue

    def release(self, server: Server, fault: Fault | None = None) -> None:
        """Count how a request ended and let others go on."""
        server.in_flight -= 1
        self._changed.set()
        if fault is None:
            server.strikes = server.rests = 0
            server.answered += 1
            self.well_at = self.clock()
            return
        server.faults[fault.kind] += 1
        if fault.final:
            return
        if server.well:
            self.well_at = self.clock()
        server.last_fault, self.failed_at = str(fault), self.clock()
        server.strikes = max(server.strikes + 1, 0 if fault.rest is None else STRIKES)
        if not server.well and self.clock() >= server.rest_until:  # what was in flight together rests once
            usual = min(self.settings.rest_seconds * 2**server.rests, LONGEST_REST) * self._jitter.uniform(0.75, 1.25)
            server.rest_until = self.clock() + max(usual, fault.rest or 0.0)
            server.rests = min(server.rests + 1, 30)

    def pause(self, attempt: int) -> float:
        """Seconds before attempt ``attempt`` (from 1) at a prompt is followed by the next: doubling, with jitter."""
        return min(self.settings.rest_seconds * 2 ** (attempt - 1), LONGEST_PAUSE) * self._jitter.uniform(0.5, 1.5)

    def _free(self, server: Server) -> bool:
        room = self.settings.concurrency if server.well else 1
        return server.in_flight < room and self.clock() >= server.rest_until

    def _check_life(self, now: float) -> None:
        """``now``: the moment for which it is known that no server answers."""
        if any(server.well for server in self.servers):
            self.well_at = self.clock()
        elif now - self.well_at > 60 * self.settings.dead_minutes:
            said = "; ".join(f"{server.label} ({server.last_fault})" for server in self.servers)
            raise ServersDead(
                f"no server has answered for {self.settings.dead_minutes:g} minutes: {said}. Every finished answer is "
                "kept; start the servers again and give the same command to go on (client.dead_minutes waits longer)"
            )


def check_urls(urls: Sequence[str]) -> list[str]:
    """Addresses without a closing slash.

    Raises:
        ValueError: none, one twice, or one that is no http address.
    """
    if isinstance(urls, str) or not urls:
        raise ValueError("engine=openai needs servers, e.g. servers=[http://127.0.0.1:8000/v1]")
    found = [str(url).rstrip("/") for url in urls]
    for url in found:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(f"servers: {redacted(url)!r} is no address such as http://127.0.0.1:8000/v1")
    if len(set(found)) < len(found):
        raise ValueError("servers: an address stands there twice; client.concurrency sets the requests per server")
    return found


def redacted(url: str) -> str:
    """``url`` without user, password and query, which may be secrets."""
    head, separator, rest = url.partition("://")
    head, rest = (head, rest) if separator else ("", url)
    return head + separator + rest.rpartition("@")[2].partition("?")[0].partition("#")[0]
