"""benchmarks/precision.py: its child times real steps, and its last line holds the ratios of medians."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "precision.py"
SMALL = ["experiment=demo", "head.rank=4", "drafter.num_layers=1", "trainer.num_anchors=2", "data.prompts.count=2"]


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("benchmark_precision", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_a_child_takes_steps(benchmark, precision):
    cfg = OmegaConf.create(
        {**benchmark.DEFAULTS, "overrides": SMALL, "batch": 1, "tokens": 90, "steps": 2, "child": precision}
    )
    assert 0 < benchmark.seconds_per_step(cfg) < 60


def test_ratios_are_of_medians(benchmark, monkeypatch, capsys):
    seconds = {"kept_bf16": 1.0, "handed_back_bf16": 1.5, "kept_float32": 2.0, "handed_back_float32": 2.2}
    turns = dict.fromkeys(seconds, 0)

    def child(name):
        turns[name] += 1
        return seconds[name] * (100 if turns[name] == 1 else 1)  # a slow first turn is no median

    monkeypatch.setattr(benchmark, "child", child)
    monkeypatch.setattr(sys, "argv", ["precision.py"])
    benchmark.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["handed_back_over_kept_bf16"] == 1.5 and figures["handed_back_over_kept_float32"] == 1.1
    assert figures["float32_over_bf16"] == 2.0


def test_unknown_arguments_are_refused_with_what_there_is(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["precision.py", "batchsize=3"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "batchsize" in capsys.readouterr().err
