"""benchmarks/step.py: its sides take the same step, and its last line holds ratios of medians."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from draftlab.target import products

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "step.py"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("benchmark_step", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lean_and_both_straightforward_sides_take_the_same_step(benchmark, monkeypatch):
    monkeypatch.setattr(products, "AVAILABLE", products.AVAILABLE)  # the plain side turns it off
    small = {"tokens": [40], "anchors": [4], "layers": 1, "vocabulary": 300, "steps": 1}
    monkeypatch.setattr(benchmark, "LEAN", [*benchmark.LEAN, "head.rank=4", "target.vocab_size=300"])
    found = {}
    for side in ("lean", "lean_small", "same_products", "plain"):
        found[side] = benchmark.measure(OmegaConf.create({**benchmark.DEFAULTS, **small, "child": side}))
    for side in benchmark.EQUAL:
        for name in ("loss", "gradient"):
            assert found[side][name] == pytest.approx(found["lean"][name], rel=1e-5)
    assert all(0 < figures["s"] < 60 and figures["peak_gb"] > 0.1 for figures in found.values())


def fake(benchmark, monkeypatch, capsys, gradient, *words):
    seconds = {
        "lean": 1.0,
        "lean_small": 1.25,
        "plain": 2.0,
        "same_products": 1.5,
        "laptop": 0.25,
        "laptop_5_layers": 0.5,
    }
    turns, calls = {}, []

    def child(side, tokens, anchors):
        calls.append((side, anchors))
        turn = turns[side, anchors] = turns.get((side, anchors), 0) + 1
        slow = 100 if turn == 1 else 1  # a slow first turn is no median
        return {
            "s": slow * seconds[side],
            "peak_gb": 3.0,
            "loss": 1.0,
            "gradient": gradient if side == "plain" else 1.0,
        }

    monkeypatch.setattr(benchmark, "child", child)
    monkeypatch.setattr(sys, "argv", ["step.py", *words])
    benchmark.main()
    return json.loads(capsys.readouterr().out.splitlines()[-1]), calls


def test_ratios_are_of_medians_and_the_laptop_runs_at_the_first_size_only(benchmark, monkeypatch, capsys):
    figures, calls = fake(benchmark, monkeypatch, capsys, 1.0)
    assert figures["speedup"] == figures["speedup_n512"] == 2.0 and figures["speedup_same_products"] == 1.5
    assert figures["laptop_speedup"] == 8.0 and figures["laptop_5_layers_speedup"] == 4.0
    assert figures["lean_small_speedup"] == 1.6
    assert ("laptop", 64) in calls and ("laptop", 512) not in calls and ("plain", 512) in calls


def test_a_straightforward_side_that_does_not_fit_is_not_run_and_unequal_sides_stop_it(benchmark, monkeypatch, capsys):
    figures, calls = fake(benchmark, monkeypatch, capsys, 1.0, "limit_gb=4")
    assert ("plain", 64) in calls and ("plain", 512) not in calls
    assert figures["lean_peak_gb_n512"] == 3.0 and "speedup_n512" not in figures
    with pytest.raises(RuntimeError, match="must give the same gradient"):
        fake(benchmark, monkeypatch, capsys, 1.1)
