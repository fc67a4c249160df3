"""src/calibrate.py on a run folder: temperatures and measures are written, goes on after a stop, refuses in one line."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from draftlab.calibration import Calibration
from runs import ROOT, tiny_run

SMALL = ["limit=8", "skip=2", "max_new_tokens=40", "batch_size=8", "device=cpu"]


@pytest.fixture(scope="module")
def run(target_folder, tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("runs") / "tiny", target_folder)


def calibrate(*words):
    command = [sys.executable, str(ROOT / "src" / "calibrate.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stdout + done.stderr


def test_a_run_is_calibrated_on_prompts_that_evaluation_does_not_use(run):
    code, output = calibrate(f"run={run}", *SMALL)
    assert code == 0, output
    content = json.loads((run / "calibration.json").read_text())
    assert len(content["temperatures"]) == 3 and len(content["ece_before"]) == len(content["ece_after"]) == 3
    assert all(
        after <= before + 1e-9 for before, after in zip(content["ece_before"], content["ece_after"], strict=True)
    )
    rounds = pd.read_parquet(run / "calibration" / "rounds.parquet")
    assert content["num_samples"] == len(rounds) and set(rounds["temperature"]) == {1.0}
    assert "rounds of the fit" in output and "no held-out figures" in output
    assert Calibration.load(run / "calibration.json").drafter["block_size"] == 3

    code, output = calibrate(f"run={run}", *SMALL)
    assert code == 0 and "nothing is decoded again" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["limit=0"], "limit must be at least 1"),
        (["skip=-1"], "skip must be at least 0"),
        (["temperature=-1"], "temperature"),
        (["limit=1", "max_new_tokens=4"], "a temperature needs 200"),
        (["benchmarks=[gsm8k]"], "prompts_dir"),
    ],
)
def test_what_cannot_be_calibrated_on_is_refused_in_one_line(run, words, message):
    code, output = calibrate(f"run={run}", *SMALL, *words)
    assert code == 1 and message in output and "Traceback" not in output


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    code, output = calibrate(f"run={tmp_path}")
    assert code == 1 and "not a run of src/train.py" in output
