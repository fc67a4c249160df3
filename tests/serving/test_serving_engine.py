"""The serving engine: answers are the plain ones, requests come and go, passes hold nothing but chosen tokens, counts add up."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import tiny
from draftlab.decode.budget import Budget
from draftlab.decode.loop import DecodeSettings, plain_decode
from draftlab.sampling import Sampling
from draftlab.scheduling import Asynchronous, Bypass, EarlyStop, Fixed, Threshold, Throughput
from draftlab.serving.engine import Engine
from draftlab.serving.load import ClosedLoop, OpenLoop
from draftlab.serving.records import summarise
from pairs import tiny_pair

STEEP = Throughput([1, 2, 3, 8, 40], [1.0, 0.8, 0.5, 0.2, 0.05])
MILD = Throughput([1, 2, 3, 8, 40], [1.0, 0.99, 0.98, 0.95, 0.9])
PROMPTS = [("math", [5, 6, 7]), ("chat", [8, 9, 10, 11, 12]), ("code", [4, 5]), ("chat", [9, 8, 7, 6]), ("code", [3])]
SCHEDULERS = {
    "all": lambda: None,
    "fixed": lambda: Budget(Fixed(2)),
    "threshold": lambda: Budget(Threshold(0.5)),
    "early_stop": lambda: Budget(EarlyStop(), MILD),
    "asynchronous": lambda: Budget(Asynchronous(), STEEP),
    "bypass": lambda: Budget(Bypass(EarlyStop(), rest=3), STEEP),
}
GREEDY = Sampling(temperature=0.0)


def settings(places=3, new=12, sampling=GREEDY, stops=()):
    return DecodeSettings(new, sampling, stops, batch_size=places, prefill_tokens=8)


def served_all(engine, count=9, places=3):
    """Serve ``count`` requests that have all arrived at the start."""
    return engine.run(OpenLoop(PROMPTS, [0.0] * count, places))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", ["markov", "dflash", "eagle3", "mtp", None])
def test_greedy_answers_are_those_of_plain_decoding(name, scheduler):
    target, drafter = tiny_pair(name or "markov", 16, 3)
    drafter = None if name is None else drafter
    budget = SCHEDULERS[scheduler]()
    if budget is not None and budget.scheduler.reads_confidence and name not in (None, "markov"):
        with pytest.raises(ValueError, match="no confidence head"):
            Engine(target, drafter, settings(), budget, 5)
        return
    engine = Engine(target, drafter, settings(stops=(9,)), budget, longest_prompt=5)
    _, served = served_all(engine)
    plain = plain_decode(target, [ids for _, ids in PROMPTS], settings(stops=(9,)))
    assert sorted(request.request for request in served) == list(range(9))
    assert all(engine.answers[number] == plain[number % 5].tokens for number in range(9))


@pytest.mark.parametrize("scheduler", ["all", "fixed"])
@pytest.mark.parametrize("name", ["markov", "mtp"])
def test_a_sampled_answer_does_not_depend_on_its_company(name, scheduler):
    target, drafter = tiny_pair(name, 16, 3)
    answers = []
    for places in (1, 2, 4):
        engine = Engine(target, drafter, settings(places, sampling=Sampling()), SCHEDULERS[scheduler](), 5)
        served_all(engine, places=places)
        answers.append(dict(engine.answers))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] != answers[0][5]  # the same prompt, another request


def test_the_law_of_a_sampled_answer_is_the_targets_under_a_scheduler():
    """1,500 requests against exact probabilities: every cell within five standard errors."""
    vocab, count = 6, 1500
    target, drafter = tiny_pair("markov", vocab, 2)
    engine = Engine(target, drafter, settings(50, new=2, sampling=Sampling()), Budget(EarlyStop(), MILD), 5)
    engine.run(OpenLoop([("chat", [3, 1, 2])], [0.0] * count, 50))
    found = torch.zeros(vocab, vocab, dtype=torch.float64)
    for first, second in engine.answers.values():
        found[first, second] += 1 / count
    first = torch.softmax(target.logits(target(torch.tensor([[3, 1, 2]])).last_hidden[0, -1]), -1)
    texts = torch.tensor([[3, 1, 2, token] for token in range(vocab)])
    law = first[:, None] * torch.softmax(target.logits(target(texts).last_hidden[:, -1]), -1)
    assert ((found - law).abs() <= 5 * (law * (1 - law) / count).sqrt() + 2 / count).all()


def test_a_pass_holds_the_anchors_and_the_chosen_tokens_and_nothing_else(monkeypatch):
    target, drafter = tiny_pair("markov", 16, 3)
    sent = []
    forward = type(target).forward

    def counting(self, ids, *arguments, **options):
        if len(arguments) == 4:  # a flattened pass
            sent.append(ids.numel())
        return forward(self, ids, *arguments, **options)

    monkeypatch.setattr(type(target), "forward", counting)
    steps, _ = served_all(Engine(target, drafter, settings(), Budget(Threshold(0.5)), 5))
    assert sent == [step.requests + step.verified for step in steps]
    assert len({step.verified / step.requests for step in steps}) > 1


def test_the_records_of_a_closed_loop_add_up():
    target, drafter = tiny_pair("markov", 16, 3)
    engine = Engine(target, drafter, settings(), None, 5)
    seen = []
    steps, served = engine.run(ClosedLoop(PROMPTS, users=3), seconds=1.5, on_step=seen.append)
    assert seen == steps and all(step.requests == 3 for step in steps)
    assert all(step.verified == 9 and 3 <= step.committed <= step.accepted + 3 for step in steps)
    assert all(b.start >= a.start + a.seconds for a, b in pairwise(steps))
    assert all(r.arrival <= r.joined <= r.first_token <= r.finished and r.tokens == 12 for r in served)
    finished = sum(request.tokens - 1 for request in served)
    assert 0 <= sum(step.committed for step in steps) - finished <= 3 * 12
    assert summarise(steps, served)["concurrency"] == 3


def test_an_idle_engine_skips_to_the_next_arrival():
    target, _ = tiny_pair("markov", 16, 3)
    steps, served = Engine(target, None, settings(), None, 5).run(OpenLoop(PROMPTS, [0.0, 1000.0, 1000.0], places=3))
    assert [request.arrival for request in served] == [0.0, 1000.0, 1000.0]
    assert served[-1].joined >= 1000.0 and max(step.requests for step in steps) == 2


def test_a_bypassed_drafter_catches_up_with_what_it_has_not_seen():
    """Resting steps in between: the drafter's cache refuses a context with holes."""
    target, drafter = tiny_pair("mtp", 16, 3)

    class Sometimes(Fixed):
        count = 0

        def draft_length(self, gamma):
            self.count += 1
            return (0, 0, 1, gamma)[self.count % 4]

    engine = Engine(target, drafter, settings(), Budget(Sometimes()), 5)
    steps, served = served_all(engine)
    assert len(served) == 9 and {step.drafted for step in steps} >= {0, 3, 9}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: Engine(t, None, settings(new=10**6)), "positions"),
        (lambda t: ClosedLoop(PROMPTS, users=0), "at least 1 user"),
        (lambda t: ClosedLoop([], users=1), "at least one prompt"),
        (lambda t: ClosedLoop([("chat", [])], users=1), "at least one token"),
        (lambda t: Engine(t, None, settings(), None, 2).run(ClosedLoop(PROMPTS, 1), 1.0), "made for prompts of 2"),
        (lambda t: Engine(t, None, settings(), None, 5).run(OpenLoop(PROMPTS, [1.0, 0.5], 2)), "must ascend"),
    ],
)
def test_what_cannot_be_served_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(tiny.tiny_target())
