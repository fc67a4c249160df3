"""What a person waits for before any work begins, help and refusals, imports nothing that takes seconds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.stem for path in (ROOT / "src").glob("*.py"))
LIGHTNING = {
    "torch._dynamo",
    "lightning",
    "torchmetrics",
    "transformers",
    "datasets",
    "webdataset",
    "wandb",
    "pandas",
    "matplotlib",
}
HEAVY = {"torch", "numpy", *LIGHTNING}
RUN = "run=/nowhere"


def imported(*words, folder):
    """Exit code of ``python src/<words>``, the names that it imported, and what it said."""
    script, *rest = words
    command = [sys.executable, "-X", "importtime", str(ROOT / "src" / f"{script}.py"), *rest]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    modules = re.findall(r"^import time:.*\|\s*([\w.]+)", done.stderr, re.MULTILINE)
    said = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))
    return done.returncode, set(modules), done.stdout + said


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_and_unknown_keys_import_nothing_heavy(script, tmp_path):
    code, modules, said = imported(script, "--help", folder=tmp_path)
    assert code == 0 and script in said and "omegaconf" in modules and not modules & HEAVY
    code, modules, said = imported(script, "nokey=1", folder=tmp_path)
    assert code == 1 and "Traceback" not in said and not modules & HEAVY


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "head.rank=1.5"], "head.rank: expected int, got 1.5"),
        (["train", "data.batch_size=x"], "data.batch_size: expected int, got 'x'"),
        (["prepare", "stage=x"], "stage must be one of responses, features, stream, got 'x'"),
        (["prepare", "count=0"], "count must be null or at least 1, got 0"),
        (["schedule"], "the stage, the first word of the command, must be one of profile, serve, simulate; got none"),
        (["schedule", "serve", RUN], "none at /nowhere"),
        (["evaluate", RUN], "none at /nowhere"),
        (["calibrate", RUN], "none at /nowhere"),
        (["calibrate"], "run: name the folder of a trained drafter, as in run=outputs/demo"),
        (["export", RUN], "none at /nowhere"),
        (["report"], "runs: name the folders of evaluated runs"),
        (["adopt"], "checkpoint: name a folder, as in checkpoint=dspark_qwen3_4b_block7"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_wrong_words_types_and_folders_are_refused_before_anything_heavy(words, message, tmp_path):
    code, modules, said = imported(*words, folder=tmp_path)
    assert code == 1 and message in said and not modules & HEAVY


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", "plan=true", "target=qwen3_14b", "data=open_perfectblend"], 0, "optimiser steps"),
        (["train", "plan=true", "head.rank=-1"], 1, "head.rank must be at least 1, got -1"),
        (["train", "data.max_length=1"], 1, "data.max_length must be at least 2, got 1"),
        (["prepare", "data.max_length=1"], 1, "data.max_length must be at least 2, got 1"),
        (
            ["prepare", "stage=features", "data.features=online", "data.batch_size=0"],
            1,
            "data.batch_size must be at least 1",
        ),
        (["adopt", "checkpoint=/nowhere", "run=x"], 1, "/nowhere is no folder"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_plans_and_values_out_of_range_need_pytorch_alone(words, code, message, tmp_path):
    returned, modules, said = imported(*words, folder=tmp_path)
    assert returned == code and message in said and "torch" in modules and not modules & LIGHTNING
