"""benchmarks/simulator.py at a small size: every request is served, and the last line is JSON."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "simulator.py"


def test_the_simulator_benchmark_serves_all_and_ends_in_json():
    command = [sys.executable, str(SCRIPT), "requests=200", "users=16", "mean_tokens=20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert set(figures) == {
        f"{key}_{name}"
        for key in ("seconds", "requests_per_second")
        for name in ("early_stop", "asynchronous", "fixed")
    }
    assert all(value > 0 for value in figures.values())
