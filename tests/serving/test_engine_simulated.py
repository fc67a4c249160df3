"""The simulator against the serving engine on this machine's clock: throughput within 10 % under fixed lengths and schedulers."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from draftlab.decode.budget import Budget
from draftlab.decode.loop import DecodeSettings, speculative_decode
from draftlab.decode.records import ROUNDS, rows_of
from draftlab.sampling import Sampling
from draftlab.scheduling import Asynchronous, EarlyStop, Fixed, Threshold, Throughput
from draftlab.serving.engine import Engine
from draftlab.serving.load import ClosedLoop
from draftlab.serving.traces import NoDrafter, RecordedTrace
from draftlab.serving.validation import hold_against
from pairs import tiny_pair

GAMMA, USERS, SECONDS = 3, 6, 12.0
SETTINGS = DecodeSettings(40, Sampling(), (2,), batch_size=USERS)
# A steep table, so that early stopping verifies some tokens and not others; the engine's own passes give the seconds.
TABLE = Throughput(range(1, 40), [1.0 / (1.0 + 0.04 * tokens) for tokens in range(1, 40)])
CHOICES = {
    "fixed": (Fixed, None),
    "short": (lambda: Fixed(1), None),
    "threshold": (lambda: Threshold(0.5), None),
    "early_stop": (EarlyStop, TABLE),
    "asynchronous": (Asynchronous, TABLE),
}


@pytest.fixture(scope="module")
def pair():
    return tiny_pair("markov", 16, GAMMA)


@pytest.fixture(scope="module")
def prompts():
    drawn = torch.randint(3, 16, (40, 6), generator=torch.Generator().manual_seed(0)).tolist()
    return [("chat", prompt) for prompt in drawn]


@pytest.fixture(scope="module")
def trace(pair, prompts):
    """Rounds of the same prompts, drafter and sampling, with whole blocks verified."""
    ids = [prompt for _, prompt in prompts]
    generations = speculative_decode(*pair, ids, SETTINGS, torch.Generator().manual_seed(1))
    key = {"temperature": 1.0, "benchmark": "set", "domain": "chat"}
    rows = [row for i, found in enumerate(generations) for row in rows_of({**key, "prompt_id": str(i)}, found)]
    return RecordedTrace(pd.DataFrame(rows, columns=[field.name for field in ROUNDS]), gamma=GAMMA)


def agrees(measure, *names):
    """Within 10 % in one of three measurements: a busy machine spoils one, a model that is wrong spoils all."""
    tries = []
    for _ in range(3):
        tries.append(measure()["ratio"])
        if all(abs(tries[-1][name] - 1.0) <= 0.1 for name in names):
            return
    raise AssertionError([{name: found[name] for name in names} for found in tries])


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOICES)
def test_the_simulated_throughput_is_within_ten_percent_of_the_engines(name, pair, prompts, trace):
    make, table = CHOICES[name]

    def measure():
        engine = Engine(*pair, SETTINGS, Budget(make(), table), longest_prompt=6)
        steps, served = engine.run(ClosedLoop(prompts, USERS), SECONDS)
        return hold_against(steps, served, trace, make(), USERS, decides_by=table)

    agrees(measure, "throughput", "budget")


@pytest.mark.slow
def test_plain_serving_is_simulated_within_ten_percent(pair, prompts):
    def measure():
        steps, served = Engine(pair[0], None, SETTINGS, longest_prompt=6).run(ClosedLoop(prompts, USERS), SECONDS)
        return hold_against(steps, served, NoDrafter(), Fixed(), USERS)

    agrees(measure, "throughput")
