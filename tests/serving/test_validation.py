"""The simulator against a real loop on this machine's clock: same traffic, its tables, its rounds; throughput within 10 %."""

from __future__ import annotations

import time

import pandas as pd
import pytest
import torch

import tiny
from draftlab.decode.loop import Decoder, DecodeSettings
from draftlab.decode.records import ROUNDS, rows_of
from draftlab.sampling import Sampling
from draftlab.scheduling import Fixed
from draftlab.serving.records import Served, Step
from draftlab.serving.traces import NoDrafter, RecordedTrace
from draftlab.serving.validation import hold_against, traffic_of
from scripted import ScriptedDrafter

USERS, GAMMA = 4, 3


class Watch:
    """Steps and finished requests of a Decoder, seen from its callback: the requests of the loop are a closed loop's."""

    def __init__(self, decoder):
        self.decoder, self.steps, self.served, self.joined = decoder, [], [], {}
        self.begun = self.last = time.perf_counter()
        self.before = {}

    def __call__(self, finished, committed):
        now, seconds = time.perf_counter(), dict(self.decoder.clock.seconds)
        prefill, draft, verify = (seconds.get(k, 0) - self.before.get(k, 0) for k in ("prefill", "draft", "verify"))
        start, end = self.last - self.begun, now - self.begun
        rows = [row for row in self.decoder.rows if row is not None]
        for row in rows:
            self.joined.setdefault(row.request, (start, start + prefill))
        if verify:
            accepted = sum(row.generation.rounds[-1].accepted for row in rows if row.generation.rounds)
            drafted = self.decoder.num_drafted * len(rows)
            times = (prefill, draft, 0.0, verify)  # what else the loop does lies between its steps
            self.steps.append(Step(start, *times, len(rows), drafted, drafted, accepted, accepted + len(rows)))
            self.served += [
                Served(row.request, "chat", *self.joined[row.request][:1] * 2, self.joined[row.request][1], end, tokens)
                for row in rows
                if not row.running and (tokens := len(row.generation.tokens))
            ]
        self.last, self.before = now, seconds


def decode(drafter, count=48, users=USERS):
    """(steps, served, rounds as a table) of a real loop over ``count`` prompts, ``users`` at a time."""
    target = tiny.tiny_target()
    settings = DecodeSettings(max_new_tokens=40, sampling=Sampling(), eos_token_ids=(7, 11), batch_size=users)
    prompts = torch.randint(12, 64, (count, 6), generator=torch.Generator().manual_seed(0)).tolist()
    decoder = Decoder(target, drafter, settings)
    watch = Watch(decoder)
    generations = decoder.run(prompts, torch.Generator().manual_seed(1), watch)
    key = {"temperature": 1.0, "benchmark": "set", "domain": "chat"}
    rows = [row for i, g in enumerate(generations) for row in rows_of({**key, "prompt_id": str(i)}, g)]
    return watch.steps, watch.served, pd.DataFrame(rows, columns=[field.name for field in ROUNDS])


def drafter():
    """Drafts the next token of an id most of the time, as the tiny target sometimes does."""
    table = torch.randn(GAMMA, 64, 64, generator=torch.Generator().manual_seed(3))
    target = tiny.tiny_target()
    last = target.logits(target.forward(torch.arange(64).unsqueeze(-1)).last_hidden)[:, 0]  # [V, V] after one token
    return ScriptedDrafter(table + 2.0 * last.to(table.dtype))


@pytest.fixture(scope="module")
def measured():
    return decode(drafter())


def test_the_simulated_throughput_is_within_ten_percent_of_a_real_loop(measured):
    steps, served, rounds = measured
    assert rounds["accepted"].nunique() > 2 and len({request.tokens for request in served}) > 5
    table = hold_against(steps, served, RecordedTrace(rounds, gamma=GAMMA), Fixed(), USERS)
    assert table.loc["throughput", "ratio"] == pytest.approx(1.0, abs=0.1), table
    assert table.loc["accepted_length", "ratio"] == pytest.approx(1.0, abs=0.1), table
    assert table.loc["budget", "ratio"] == pytest.approx(1.0)


def test_plain_decoding_is_within_ten_percent_too():
    steps, served, _ = decode(None)
    table = hold_against(steps, served, NoDrafter(), Fixed(), USERS)
    assert table.loc["throughput", "ratio"] == pytest.approx(1.0, abs=0.1), table


def test_rounds_that_accept_more_are_not_taken_for_the_engines(measured):
    """What the comparison is for: a trace that is not the engine's shows in the ratio."""
    steps, served, rounds = measured
    better = rounds.assign(accepted=rounds["proposed"], committed=rounds["proposed"] + 1)
    table = hold_against(steps, served, RecordedTrace(better, gamma=GAMMA), Fixed(), USERS)
    assert table.loc["throughput", "ratio"] > 1.2


def test_the_traffic_of_an_engine_is_in_the_order_of_arrival_and_none_is_refused():
    served = [Served(1, "code", 2.0, 2.0, 3.0, 4.0, 9), Served(0, "chat", 1.0, 1.0, 2.0, 5.0, 7)]
    traffic = traffic_of(served)
    assert traffic.arrival.tolist() == [1.0, 2.0] and traffic.tokens.tolist() == [7, 9]
    assert traffic.domain.tolist() == ["chat", "code"] and traffic_of(served, users=3).users == 3
    with pytest.raises(ValueError, match="no finished request"):
        traffic_of([])
