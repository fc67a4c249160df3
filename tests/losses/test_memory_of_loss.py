"""What the loss takes, as the peak of processes of their own: it does not grow with anchors, and the plan says how much."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftlab.losses import Confidence, CrossEntropy, DraftLoss, TotalVariation

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "loss.py"
VOCABULARY, GAMMA = 20_000, 7
LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")


def peak_gb(anchors, chunk_gb, side="lean"):
    """Peak of a process that makes the loss and its gradient once."""
    sizes = {"vocabularies": [VOCABULARY], "hidden": [32], "rank": 8, "anchors": [anchors], "tokens": 600}
    words = [f"{key}={value}" for key, value in {**sizes, "chunk_gb": chunk_gb, "repeats": 1, "child": side}.items()]
    # Freed memory goes back at once, so that a peak is what was in use; a variable of the user's keeps entry from changing that.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])["peak_gb"]


@LINUX
@pytest.mark.slow
def test_the_peak_does_not_grow_with_the_anchors_and_is_what_a_chunk_is_planned_to_take():
    one_tensor = 4e-9 * VOCABULARY * GAMMA  # of logits, a block
    terms = {"ce": CrossEntropy(0.1), "tv": TotalVariation(0.9), "confidence": Confidence(1.0)}
    loss = DraftLoss(terms, "auto", chunk_gb=0.1)
    small, few, many, at_once = (peak_gb(*case) for case in ((2, 0.1), (64, 0.1), (512, 0.1), (512, 10.0)))
    assert many - few < 0.3 * one_tensor * 448, (
        "what grows are states and codes, not even one tensor of 448 more blocks"
    )
    planned = loss.kept_per_logit * one_tensor * loss.blocks_within(GAMMA, VOCABULARY)
    assert planned == pytest.approx(0.1, rel=0.05)
    assert many - small == pytest.approx(planned, abs=0.05)
    assert at_once - small == pytest.approx(loss.kept_per_logit * one_tensor * 512, rel=0.15)
