"""benchmarks/exits.py on a tiny target: every policy decodes every prompt, and refusals come before anything is decoded."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from draftlab.report.exits import WHOLE, saving_table
from pairs import tiny_pair

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "exits.py"


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("benchmark_exits", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(benchmark, **changes):
    small = {"survival": [0.5, 1.0], "accepted": [0.5], "group": 2, "batch_size": 2, "max_new_tokens": 8}
    return OmegaConf.create(benchmark.DEFAULTS | small | changes)


def test_every_policy_decodes_every_prompt_and_the_shallowest_saves_most(benchmark):
    target, drafter = tiny_pair("markov", vocab_size=8, gamma=3, num_layers=3, exits=(1, 2))
    cfg = settings(benchmark)
    prompts = [[1, 5], [4, 3, 1], [6], [3, 2, 5], [7, 7]]
    target.eos_token_ids = ()  # every answer has rounds
    rounds, seconds = benchmark.decode(target, drafter, benchmark.policies(cfg), prompts, cfg)
    assert set(rounds["policy"]) == {WHOLE, "c < 0.5", "c < 1", "m < 0.5"}
    assert all(set(part["prompt"]) == set(range(5)) for _, part in rounds.groupby("policy"))
    table = saving_table(rounds, seconds, 3).set_index("policy")
    assert table.loc[WHOLE, "layers_a_round"] == 3 and table.loc["c < 1", "layers_a_round"] == 1
    assert table.loc["m < 0.5", "sat_out"] > 0 and (table["draft_ms"] > 0).all()


def test_no_threshold_at_all_is_refused(benchmark):
    with pytest.raises(ValueError, match="survival and accepted are both empty"):
        benchmark.policies(settings(benchmark, survival=[], accepted=[]))
