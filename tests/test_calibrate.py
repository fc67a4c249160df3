"""src/calibrate.py on a run folder: temperatures and measures are written, goes on after a stop, refuses in one line."""

import json
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from draftlab.calibration import Calibration
from runs import ROOT, tiny_run

SMALL = ["limit=8", "drift_limit=6", "skip=2", "max_new_tokens=40", "batch_size=8", "device=cpu"]


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
    assert "rounds of the fit" in output and "was not evaluated" in output and "All positions together" in output
    assert set(rounds["expected"].map(len) == rounds["proposed"]) == {True} and content["source"] == "confidence"
    page = (run / "calibration.html").read_text(encoding="utf-8")
    assert "Head, baseline and ceiling" in page and page.count("data:image/png;base64,") == 3
    assert (run / "figures" / "calibration_threshold.png").is_file()
    assert Calibration.load(run / "calibration.json").drafter["block_size"] == 3

    code, output = calibrate(f"run={run}", *SMALL, "drift=[0.5]")
    assert code == 0 and "nothing is decoded again" in output
    drifted = run / "calibration" / "T0.5"
    assert set(pd.read_parquet(drifted / "rounds.parquet")["temperature"]) == {0.5}
    texts = pd.read_json(drifted / "outputs.jsonl", lines=True)
    assert texts.groupby("benchmark").size().max() == 6, "drift_limit"
    assert set(pd.read_csv(run / "tables" / "calibration_drift.csv")["sampling"]) == {1.0, 0.5}


@pytest.mark.slow
def test_the_evaluation_is_what_is_tested_on_if_it_is_of_the_same_checkpoint(run, tmp_path):
    """It has other prompts than the fit."""
    copy = shutil.copytree(run, tmp_path / "copy")
    command = [f"run={copy}", "limit=2", "max_new_tokens=40", "temperatures=[1.0]", "speed.prompts=0", "device=cpu"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "src" / "evaluate.py"), *command], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    code, output = calibrate(f"run={copy}", *SMALL)
    assert code == 0 and "held-out rounds" in output and "no held-out figures" not in output
    parts = {row["part"] for row in json.loads((copy / "calibration.json").read_text())["measures"]}
    assert parts == {"fit", "held-out"}

    stated = json.loads((copy / "evaluation.json").read_text())
    stated["settings"]["drafter"]["digest"] = "another"
    (copy / "evaluation.json").write_text(json.dumps(stated))
    code, output = calibrate(f"run={copy}", *SMALL)
    assert code == 0 and "is of another checkpoint (another" in output and "held-out rounds" not in output


def test_a_drafter_without_confidence_head_is_calibrated_by_its_draft_law(target_folder, tmp_path):
    headless = tiny_run(tmp_path / "headless", target_folder, ["loss=no_confidence", "drafter.confidence_head=false"])
    code, output = calibrate(f"run={headless}", *SMALL)
    assert code == 0, output
    calibration = Calibration.load(headless / "calibration.json")
    assert calibration.source == "draft_top" and len(calibration.temperatures) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["limit=0"], "limit must be at least 1"),
        (["skip=-1"], "skip must be at least 0"),
        (["temperature=-1"], "temperature"),
        (["drift=[1.0]"], "temperatures must be one or more different"),
        (["drift=[0.7,-0.3]"], "sampling.temperature"),
        (["drift_limit=0"], "drift_limit must be at least 1"),
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
