"""benchmarks/loss.py: both sides give the same loss and gradients, memory follows the chunk, and nothing too large is run."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "loss.py"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("benchmark_loss", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(benchmark, **changes):
    sizes = {"vocabularies": [700], "hidden": [96], "anchors": [12], "tokens": 40, "rank": 8, "chunk_gb": 0.0005}
    return OmegaConf.create({**benchmark.DEFAULTS, **sizes, **changes})


@pytest.mark.parametrize("chunk_gb", [0.0005, 1.0], ids=["chunks of three blocks", "one chunk"])
def test_loss_and_gradients_equal_the_straightforward_twin(benchmark, chunk_gb):
    case, found = benchmark.Case(small(benchmark, chunk_gb=chunk_gb)), {}
    for side in ("plain", "lean"):
        loss = case.run(side)
        gradients = [case.hidden.grad, *(p.grad for p in case.drafter.parameters() if p.grad is not None)]
        found[side] = loss, [gradient.clone() for gradient in gradients]
    assert found["lean"][0] == pytest.approx(found["plain"][0], rel=1e-5)
    assert len(found["lean"][1]) == len(found["plain"][1]) > 3
    for lean, plain in zip(found["lean"][1], found["plain"][1], strict=True):
        assert (lean - plain).norm() <= 1e-5 * plain.norm() and plain.any()


def test_two_processes_start_from_the_same_weights(benchmark):
    first, second = (benchmark.Case(small(benchmark)) for _ in range(2))
    for one, other in zip(first.drafter.parameters(), second.drafter.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_does_not_fit_is_estimated_and_said_to_be(benchmark, monkeypatch, capsys):
    def child(side, **changes):
        assert side == "lean", "nothing too large is run"
        return {"peak_gb": 1.5, "lean_s": 2.0, "lean_loss": 3.0}

    monkeypatch.setattr(benchmark, "child", child)
    monkeypatch.setattr(
        sys, "argv", ["loss.py", "vocabularies=[151936]", "hidden=[2560]", "anchors=[512]", "growth=false"]
    )
    benchmark.main()
    out = capsys.readouterr().out
    figures = json.loads(out.splitlines()[-1])
    assert figures["lean_peak_gb"] == 1.5 and figures["plain_peak_gb"] > 20 and figures["time_ratio"] is None
    assert figures["plain_measured"] is False and "not run" in out
