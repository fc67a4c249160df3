"""benchmarks/gpu.py: its rows run small on a CPU, one that fails leaves the others, and no row outlasts its time."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location("benchmark_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config(benchmark, **changes):
    return OmegaConf.create({**benchmark.DEFAULTS, "device": "cpu", "size": "tiny", "steps": 2, **changes})


@pytest.mark.parametrize("name", ["bf16-sdpa-lean", "float32-sdpa-lean"])
def test_a_row_takes_steps_and_gives_its_figures(benchmark, name):
    figures = benchmark.measure(config(benchmark, child=name))
    assert figures["peak_gb"] is None and figures["ms_per_step"] > 0
    assert figures["tokens_per_second"] == pytest.approx(2 * 48 * 1e3 / figures["ms_per_step"])


@pytest.mark.slow
def test_a_row_that_fails_shows_its_error_and_the_rest_go_on(benchmark, monkeypatch, capsys):
    """FlexAttention has no backward pass on a CPU, and is refused there."""
    monkeypatch.setattr(
        sys, "argv", ["gpu.py", "device=cpu", "size=tiny", "steps=1", "rows=[bf16-flex-lean,float32-sdpa-lean]"]
    )
    benchmark.main()
    said = capsys.readouterr().out
    figures = json.loads(said.splitlines()[-1])
    assert "trainer.attention=flex trains on CUDA only" in figures["bf16-flex-lean"]["error"]
    assert figures["float32-sdpa-lean"]["ms_per_step"] > 0 and "training step, size=tiny, cpu" in said


def test_a_row_that_outlasts_its_time_is_ended(benchmark, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "device=cpu", "size=tiny"])
    began = time.monotonic()
    assert benchmark.row("bf16-sdpa-lean", 0.5) == {"error": "not done in 0 s"}
    assert time.monotonic() - began < 20


def test_rows_share_the_time_that_is_left(benchmark, monkeypatch):
    given = []
    monkeypatch.setattr(benchmark, "row", lambda name, seconds: given.append(seconds) or {"error": "none"})
    benchmark.run(["a", "b", "c", "d"], 2.0)
    assert [round(seconds) for seconds in given] == [60, 80, 120, 120]
    assert benchmark.run(["a"], 0.01) == {"a": {"error": "no time left of minutes=0.01"}}


def test_without_a_gpu_it_says_so_in_one_line_and_exits_1():
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(SCRIPT.with_suffix(".sh"))], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 1 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and "sees no GPU; device=cpu size=tiny" in done.stderr


@pytest.mark.parametrize("words", [["size=huge"], ["rows=[fp4]"]])
def test_what_there_is_not_is_refused_with_what_there_is(benchmark, monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "device=cpu", *words])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "choose of 'paper'" in (said := capsys.readouterr().err) or "choose of 'bf16-sdpa-lean'" in said
