"""Health of servers, with a clock of our own; and what of an address may be shown."""

from __future__ import annotations

import asyncio

import pytest

from draftlab.data.remote.completion import retry_after
from draftlab.data.remote.servers import ClientSettings, Fault, Pool, Server, ServersDead, redacted

SICK = Fault("server_error", "500")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def pool_of(count: int, **client) -> tuple[Pool, Clock]:
    clock = Clock()
    settings = ClientSettings(**({"concurrency": 2, "rest_seconds": 10.0, "dead_minutes": 1.0} | client))
    return Pool([Server(f"http://s{index}/v1") for index in range(count)], settings, clock), clock


def test_the_least_busy_server_is_next_and_none_gets_more_than_it_takes():
    async def run():
        pool, _ = pool_of(2)
        got = [(await pool.acquire()).label for _ in range(4)]
        assert sorted(got) == ["http://s0/v1"] * 2 + ["http://s1/v1"] * 2 and got[0] != got[1]
        waiting = asyncio.create_task(pool.acquire())
        await asyncio.sleep(0)
        assert not waiting.done()
        pool.release(pool.servers[1])
        assert await waiting is pool.servers[1]

    asyncio.run(run())


def test_a_prompt_goes_to_another_server_than_the_one_that_failed_it():
    async def run():
        pool, _ = pool_of(2)
        await pool.acquire()
        assert await pool.acquire(avoid=pool.servers[1]) is pool.servers[0]

    asyncio.run(run())


def test_a_server_rests_after_three_faults_in_a_row_longer_each_time_and_an_answer_makes_it_well():
    async def run():
        pool, clock = pool_of(1, dead_minutes=100.0)
        (server,) = pool.servers
        rests = []
        for _ in range(4):
            while clock() >= server.rest_until:
                await pool.acquire()
                pool.release(server, SICK)
            rests.append(server.rest_until - clock())
            clock.now = server.rest_until
        assert all(10 * 2**k * 0.75 <= rest <= 10 * 2**k * 1.25 for k, rest in enumerate(rests))
        assert server.faults == {"server_error": 3 + 3}, "one request tries a sick server"
        await pool.acquire()
        assert server.in_flight == 1 and not pool._free(server)
        pool.release(server)
        assert server.well and pool._free(server)

    asyncio.run(run())


def test_faults_of_prompts_and_single_faults_let_no_server_rest():
    async def run():
        pool, clock = pool_of(1)
        (server,) = pool.servers
        for fault in [Fault("refused", "", final=True)] * 9 + [SICK, None] * 5 + [SICK] * 2:
            await pool.acquire()
            pool.release(server, fault)
        assert server.well and clock() >= server.rest_until

    asyncio.run(run())


def test_a_server_that_asks_for_time_rests_that_long_at_least():
    pool, clock = pool_of(1, rest_seconds=1.0)
    (server,) = pool.servers
    server.in_flight = 1
    pool.release(server, Fault("rate_limited", "", blameless=True, rest=30.0))
    assert server.rest_until == clock() + 30.0


def test_a_server_whose_rest_comes_back_late_is_tried_before_it_is_given_up():
    async def run():
        pool, clock = pool_of(1)
        (server,) = pool.servers
        await pool.acquire()
        pool.release(server, Fault("rate_limited", "", blameless=True, rest=90.0))
        clock.now += 91
        assert await pool.acquire() is server
        pool.release(server, SICK)
        with pytest.raises(ServersDead):
            await pool.acquire()

    asyncio.run(run())


def test_the_run_ends_when_none_has_been_well_for_too_long_and_not_before():
    async def run():
        pool, clock = pool_of(2)
        for server in pool.servers:
            server.in_flight = 1
            pool.release(server, Fault("unreachable", "nothing there", blameless=True, rest=0.0))
            server.rest_until = clock() + 1000
        clock.now += 59
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pool.acquire(), 0.05)
        clock.now += 2
        with pytest.raises(ServersDead, match=r"http://s0/v1 \(unreachable: nothing there\); http://s1"):
            await pool.acquire()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("https://user:pass@host/v1", "https://host/v1"),
        ("https://user:pa/ss@host/v1?key=1#x", "https://host/v1"),
        ("user:pass@host", "host"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(url, shown):
    assert redacted(url) == shown


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 0), ("", 0), ("2.5", 2.5), ("-1", 0), ("1e9", 3600), ("nan", 0), ("soon", 0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90), ("Thu, 01 Jan 1970 00:00:01 GMT", 0),
    ],
)  # fmt: skip
def test_retry_after_is_read_as_seconds_or_as_a_date(value, seconds):
    assert retry_after(value, now=10.0) == seconds
