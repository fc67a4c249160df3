"""src/schedule.py simulate from a command line to a page; what cannot be simulated is refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hydra
import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir

from draftlab.calibration import Calibration
from draftlab.scheduling import Throughput
from draftlab.serving.traces import COLUMNS

ROOT = Path(__file__).resolve().parents[1]
SMALL = [
    "simulation.loads=[1,16]",
    "simulation.traffic.requests=30",
    "simulation.traffic.rounds=2",
    "simulation.traffic.mean_tokens=20",
]
BURSTS = [
    "experiment=bursts",
    "simulation.traffic.requests=100",
    "simulation.traffic.mean_tokens=20",
    "simulation.study.burstiness=[1,50]",
    "simulation.study.lags=[1,4]",
    "simulation.study.seeds=[0]",
]


def simulate(out, *overrides):
    command = [sys.executable, str(ROOT / "src" / "schedule.py"), "simulate", f"out={out}", *overrides]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=out.parent)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with rounds of four tokens a block, its calibration and a measured table."""
    folder, generator, rows = tmp_path_factory.mktemp("runs") / "tiny", np.random.default_rng(0), []
    folder.mkdir()
    for prompt in range(8):
        for number in range(12):
            confidence = generator.uniform(0.3, 0.95, 4)
            accepted = int((generator.random(4) < confidence).cumprod().sum())
            counts = (number, 4, accepted, accepted + 1)
            rows.append((1.0, "set", ["chat", "code"][prompt % 2], str(prompt), *counts, confidence.tolist()))
    pd.DataFrame(rows, columns=COLUMNS).to_parquet(folder / "rounds.parquet")
    Calibration((1.1, 1.0, 0.9, 1.0)).save(folder / "calibration.json")
    Throughput([1, 8, 32, 128], [50.0, 45.0, 20.0, 6.0]).save(folder / "sps.json")
    return folder


@pytest.mark.slow
def test_figures_7_and_8_come_out_and_the_same_command_computes_nothing_anew(tmp_path):
    out = tmp_path / "load"
    done = simulate(out, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "staircase that rises" in done.stdout and f"report: {out / 'report.html'}" in done.stdout
    cells = pd.read_csv(out / "tables" / "cells.csv")
    assert len(cells) == 18 and {"no drafting", "mtp1 fixed", "dspark asynchronous"} <= set(cells["line"])
    stamps = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    more = simulate(out, *SMALL, "simulation.loads=[1,16,4]")
    assert more.returncode == 0, more.stderr
    assert "going on at 18 of 27" in more.stdout
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    other = simulate(out, *SMALL, "simulation.traffic.spread=0.1")
    assert other.returncode == 1 and "another load.spread" in other.stderr and "Traceback" not in other.stderr


def test_recorded_rounds_and_a_measured_table_take_the_place_of_made_up_ones(tmp_path, run):
    out = tmp_path / "recorded"
    done = simulate(out, *SMALL, f"run={run}", f"table={run / 'sps.json'}")
    assert done.returncode == 0, done.stderr
    assert "left out: mtp1: no recorded rounds; name its run with simulation.drafters.mtp1.trace.run" in done.stdout
    cells = pd.read_csv(out / "tables" / "cells.csv")
    assert set(cells["drafter"]) == {"none", "dspark"} and cells["budget"].max() == 5.0
    plain = cells[(cells["drafter"] == "none") & (cells["users"] == 1)]["user_speed_mean"].item()
    assert plain == pytest.approx(50.0)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert str(run) in page and "No machine was measured" in page


def test_bursts_come_out_with_a_recommendation(tmp_path):
    out = tmp_path / "bursts"
    done = simulate(out, *BURSTS)
    assert done.returncode == 0, done.stderr
    assert "At a lag of 4 the regret goes from" in done.stdout
    table = pd.read_csv(out / "tables" / "regret.csv")
    assert set(table["scheduler"]) == {"early_stop", "early_stop_smooth", "lag_1", "lag_4"}
    assert "At a lag of 4 the regret goes from" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["run=absent"], "rounds.parquet: missing; name the folder of an evaluated run"),
        (["table=absent.json"], "absent.json cannot be read as JSON"),
        (["simulation.schedulers.fixed.length=9"], "schedule.length is 9, but blocks have"),
        (["simulation.traffic.kind=wild"], "traffic must be one of closed"),
        (["simulation.lines.mtp9=[fixed]"], "no drafter 'mtp9'; there are none, mtp1"),
        (["simulation.lines.dspark=[best]"], "no scheduler 'best'; there are fixed"),
        (["simulation.loads=[]"], "need at least one entry each"),
        (["simulation.reference=mtp9"], "reference must be one of the lines"),
        (["simulation.drafters.dspark.trace.synthetic.acceptance=[1.5]"], "acceptance must be conditional"),
        (["simulation.table.generated.base=-1"], "a staircase needs"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(overrides, message, tmp_path):
    from draftlab.cli import user_mistake
    from draftlab.report.serving import About

    extra = [f"+{word}" if "lines.mtp9" in word else word for word in overrides]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("schedule", overrides=[*SMALL, "simulation.loads=[1]", *extra])
    with pytest.raises(Exception, match=r".") as caught:
        hydra.utils.instantiate(cfg.simulation, _convert_="all").run(tmp_path, About("simulated", ""))
    assert message in (user_mistake(caught.value) or "")
    assert not (tmp_path / "report.html").exists()
