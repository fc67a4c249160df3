"""benchmarks/round.py on a tiny target: its parts are those of the decode loop, and shares add up."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from draftlab.blocks import BlockSpec
from draftlab.drafters import DSpark
from draftlab.heads import MarkovHead, NoHead

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "round.py"
HEADS = {"none": NoHead, "markov": partial(MarkovHead, rank=4)}


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("benchmark_round", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def drafters(target):
    block = BlockSpec(block_size=3, num_anchors=2)
    return {
        name: DSpark(target.spec, block, head, num_layers=1).eval().attach(target.ends) for name, head in HEADS.items()
    }


def test_the_parts_are_a_block_its_tokens_and_the_targets_verdict(benchmark, target, drafters):
    cfg = OmegaConf.create({**benchmark.DEFAULTS, "context": 12})
    timed = benchmark.sides(target, drafters, 2, cfg)
    assert set(timed) == {"parallel stage", "verification", "none", "markov"}
    hidden, _ = timed["parallel stage"]()
    assert hidden.shape == (2, 3, target.spec.hidden_size)
    assert timed["verification"]().shape == (2, 4, target.spec.vocab_size)
    assert timed["markov"]().tokens.shape == (2, 3)
    torch.testing.assert_close(timed["verification"](), timed["verification"]())  # a turn leaves no trace


def test_shares_are_of_the_whole_round_and_of_the_parallel_stage(benchmark):
    spent = {"parallel stage": 3.0, "none": 1.0, "markov": 2.0, "rnn": 0.5, "verification": 5.0}
    figures = benchmark.shares(spent, ["markov", "rnn"], 16)
    assert figures["markov_share_batch16"] == pytest.approx(0.1)
    assert figures["markov_over_parallel_batch16"] == pytest.approx(0.25)
    assert figures["rnn_share_batch16"] == 0, "a difference below the noise is nothing, not less"


def test_the_benchmark_ends_with_one_json_line(benchmark, target, drafters, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "fresh_drafter", lambda overrides: drafters[overrides[0].removeprefix("head=")])
    monkeypatch.setattr(benchmark, "load_target", lambda spec, device: target)
    monkeypatch.setattr(sys, "argv", ["round.py", "batches=[1,2]", "heads=[markov]", "context=8", "repeats=1"])
    benchmark.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures) == {f"markov_{what}_batch{b}" for what in ("share", "over_parallel") for b in (1, 2)}
    assert all(0 <= share < 1 for name, share in figures.items() if "share" in name)
