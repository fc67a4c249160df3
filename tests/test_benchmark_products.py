"""benchmarks/products.py: both sides make the same products, and its last line holds their ratios."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "products.py"


@pytest.fixture
def benchmark():
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("benchmark_products", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_last_line_has_a_ratio_a_shape_and_number_of_rows(benchmark, monkeypatch, capsys):
    spent = {"PyTorch": 3.0, "oneDNN, kept": 1.0, "oneDNN": 2.0}
    monkeypatch.setattr(benchmark, "milliseconds", lambda rows, shape, cfg: spent)
    monkeypatch.setattr(sys, "argv", ["products.py", "rows=[1,2]", "shapes=[[8,4]]"])
    benchmark.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures == {"8x4_rows1": 3.0, "8x4_rows1_unkept": 1.5, "8x4_rows2": 3.0, "8x4_rows2_unkept": 1.5}


def test_every_way_makes_the_product_of_every_weight(benchmark, monkeypatch):
    calls = []

    def product(name):
        return lambda x, weight: calls.append((name, tuple(x.shape), tuple(weight.shape)))

    monkeypatch.setattr(benchmark, "FrozenProduct", product)
    monkeypatch.setattr(benchmark.F, "linear", product("PyTorch"))
    cfg = OmegaConf.create({**benchmark.DEFAULTS, "megabytes": 0.0003, "repeats": 2})
    spent = benchmark.milliseconds(3, (5, 5), cfg)
    assert set(spent) == {"PyTorch", "oneDNN, kept", "oneDNN"} and all(value > 0 for value in spent.values())
    assert calls.count(("PyTorch", (3, 5), (5, 5))) == calls.count((True, (3, 5), (5, 5))) == 3 * 3
