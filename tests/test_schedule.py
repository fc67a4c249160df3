"""src/schedule.py on a run folder: profiles, serves in cells that take turns, goes on after a stop, refuses in one line."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from draftlab.scheduling import Throughput
from runs import ROOT, tiny_run

PROFILE = ["profile.tokens=[1,4,16]", "profile.rows=[1,4]", "profile.contexts=[16]", "profile.main_context=16"]
PROFILE += ["profile.repeats=2", "device=cpu"]
SERVE = ["serve.seconds=1.5", "serve.warm_up=0.2", "serve.turns=2", "serve.max_new_tokens=8", "limit=3", "device=cpu"]


@pytest.fixture(scope="module")
def run(target_folder, tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("runs") / "tiny", target_folder)


def schedule(*words):
    command = [sys.executable, str(ROOT / "src" / "schedule.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def profiled(run):
    code, output = schedule("profile", f"run={run}", *PROFILE)
    assert code == 0, output
    return run


def test_a_profile_writes_tables_in_the_engines_form_all_passes_and_a_picture(profiled):
    table = json.loads((profiled / "sps.json").read_text())
    assert table["sample_batch_tokens"] == [1, 4, 16] and table["max_batch_tokens"] == 16
    assert Throughput.load(profiled / "draft_sps.json").batch_tokens.tolist() == [1, 4]
    assert len(pd.read_csv(profiled / "profile.csv")) == 2 * (3 + 2 * 2)
    assert (profiled / "figures" / "throughput.png").stat().st_size > 1000
    code, output = schedule("profile", f"run={profiled}", *PROFILE, "profile.repeats=3")
    assert code == 1 and "another settings.repeats" in output


@pytest.mark.slow
def test_cells_are_served_in_turns_and_a_whole_experiment_is_not_measured_again(profiled):
    words = (
        "serve",
        "experiment=pareto",
        f"run={profiled}",
        "cells.mtp1=null",
        "cells.mtp3=null",
        "cells.threshold=null",
    )
    code, output = schedule(*words, *SERVE, "concurrency=[1,3]")
    assert code == 0, output
    folder = profiled / "pareto"
    summary = pd.read_csv(folder / "summary.csv")
    assert list(summary["cell"].unique()) == ["plain", "fixed", "early_stop", "asynchronous", "bypass"]
    assert len(summary) == 10 and np.isfinite(summary[["throughput", "budget", "user_speed_mean"]]).all().all()
    assert (summary["throughput_low"] <= summary["throughput_high"]).all()
    plain, fixed = (summary[summary["cell"] == cell] for cell in ("plain", "fixed"))
    assert (plain["budget"] == 1).all() and (fixed["budget"] == 4).all()
    steps, requests = (pd.read_parquet(folder / name) for name in ("steps.parquet", "requests.parquet"))
    assert set(steps["turn"]) == {0, 1} and (requests["tokens"] == 8).all()
    assert (folder / "figures" / "pareto.png").is_file() and (folder / "figures" / "load.png").is_file()
    before = (folder / "summary.csv").read_text()
    (folder / "partial").joinpath(sorted(p.name for p in (folder / "partial").iterdir())[0]).unlink()
    code, output = schedule(*words, *SERVE, "concurrency=[1,3]")
    assert code == 0 and "going on at 19 of 20" in output
    assert (folder / "summary.csv").read_text() != before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the first word of the command"),
        (["dance"], "must be one of profile, serve"),
        (["serve"], "run: name the folder"),
        pytest.param(["profile", "RUN", "profile.tokens=[0,1]"], "profile.tokens", marks=pytest.mark.slow),
        pytest.param(["serve", "RUN", "sps=none.json"], "SPS table", marks=pytest.mark.slow),
        pytest.param(["serve", "RUN", "concurrency=[0]"], "concurrency", marks=pytest.mark.slow),
        pytest.param(["serve", "RUN", "serve.warm_up=99"], "serve.warm_up", marks=pytest.mark.slow),
        pytest.param(
            ["serve", "RUN", "schedule=fixed", "schedule.length=9"], "schedule.length is 9", marks=pytest.mark.slow
        ),
        pytest.param(
            ["serve", "RUN", "schedule=fixed", "serve.max_new_tokens=99999"], "positions", marks=pytest.mark.slow
        ),
        pytest.param(["serve", "RUN", "experiment=pareto"], "cells.mtp1 has no run", marks=pytest.mark.slow),
        pytest.param(["serve", "RUN", "+cells.a.speed=1"], "cells.a", marks=pytest.mark.slow),
        pytest.param(
            ["serve", "RUN", "schedule=fixed", "+cells.drafter.block_size=2"], "block_size 2", marks=pytest.mark.slow
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(run, words, message):
    code, output = schedule(*[f"run={run}" if word == "RUN" else word for word in words])
    assert code == 1 and message in output and "Traceback" not in output
