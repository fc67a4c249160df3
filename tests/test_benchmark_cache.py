"""benchmarks/cache.py: measured on a tiny target, its last line holds every codec's figures."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import fitting

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "cache.py"


@pytest.fixture
def benchmark():
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("benchmark_cache", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_last_line_has_every_codecs_figures(benchmark, target_folder, tmp_path, monkeypatch, capsys):
    answers = fitting.write_answers(tmp_path)
    words = ["target=custom", f"target_path={target_folder}", f"data_path={answers}", "samples=14", "rank=24"]
    monkeypatch.setattr(sys, "argv", ["cache.py", *words, "codecs=[bf16,int4,lowrank]"])
    benchmark.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(list(values) == ["bf16", "int4", "lowrank"] for values in figures.values())
    size, error = figures["bytes_per_token"], figures["feature_error"]
    assert size["lowrank"] < size["int4"] < size["bf16"] and error["bf16"] == 0 < error["int4"] < error["lowrank"]
    assert figures["ratio_to_bf16"]["int4"] < 0.5 and all(
        value > 0 for value in figures["read_throughput_to_bf16"].values()
    )


def test_an_unknown_codec_is_refused_before_anything_is_loaded(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "load", lambda cfg: pytest.fail("the target was loaded"))
    monkeypatch.setattr(sys, "argv", ["cache.py", "codecs=[int2]"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "data.codec must be one of" in capsys.readouterr().err
