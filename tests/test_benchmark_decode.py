"""benchmarks/decode.py on a tiny target: every side decodes the same prompts and the ratios are of its own figures."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from scripted import ScriptedDrafter

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "decode.py"


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("benchmark_decode", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_decode"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_ends_with_one_json_line_of_its_ratios(benchmark, target, monkeypatch, capsys):
    drafter = ScriptedDrafter(torch.zeros(2, 64, 64))
    monkeypatch.setattr(benchmark, "load_pair", lambda cfg: (target, drafter))
    monkeypatch.setattr(benchmark, "heldout_prompts", lambda target, count, seed: [[5, 6, 7 + i] for i in range(count)])
    monkeypatch.setattr(sys, "argv", ["decode.py", "prompts=3", "max_new_tokens=5", "batch=2", "temperature=0"])
    benchmark.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["batch2_over_batch1"] > 0 and figures["tokens_per_s"] > 0


def test_large_and_small_batches_take_turns_over_the_same_prompts(benchmark, target):
    cfg = OmegaConf.create({**benchmark.DEFAULTS, "batch": 2, "max_new_tokens": 5, "temperature": 0.0})
    drafter = ScriptedDrafter(torch.zeros(2, 64, 64))
    sides = benchmark.measure(target, drafter, [[5], [6, 7], [8]], cfg)
    tokens = {(side.name, side.batch_size): side.tokens for side in sides}
    assert tokens["plain", 2] == tokens["speculative", 2] == 2 * tokens["plain", 1] == 2 * tokens["speculative", 1] > 0
    assert all((side.rounds > 0) == (side.name == "speculative") for side in sides)


def test_an_unknown_argument_is_refused_with_the_known_ones(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["decode.py", "promts=3"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "unknown argument promts; there are run, prompts" in capsys.readouterr().err
