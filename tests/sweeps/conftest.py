"""A sweep over a tiny program that waits, crashes or writes as its arguments say, and src/sweep.py as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from processes import usual_signals

SCRIPT = Path(__file__).parents[2] / "src" / "sweep.py"

# It notes in runs.jsonl when it starts and ends, waits `seconds` or for the file go_<n>, and crashes if n is `crash_at`.
PROGRAM = """
import json, os, signal, sys, time

values = dict(word.split("=", 1) for word in sys.argv[1:])

def note(what):
    with open("runs.jsonl", "a") as file:
        line = {"what": what, "n": values.get("n"), "pid": os.getpid(), "at": time.monotonic(),
                "threads": os.environ.get("OMP_NUM_THREADS"), "gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}
        file.write(json.dumps(line) + "\\n")

if "stubborn" in values:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("start")
print("first words of", values)
end = time.monotonic() + float(values.get("seconds", 0))
try:
    while time.monotonic() < end and not os.path.exists("go_" + values["n"]):
        time.sleep(0.02)
except KeyboardInterrupt:
    note("interrupted")
    sys.exit(130)
if values.get("crash_at") == values.get("n"):
    print("the reason of the crash")
    sys.exit(3)
note("end")
"""

# The same as a Hydra program that can resume, and that logs a metric into its run folder.
HYDRA_PROGRAM = """
from pathlib import Path
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(config_path="conf", config_name="work", version_base="1.3")
def main(cfg):
    folder = Path(HydraConfig.get().runtime.output_dir)
    with open("runs.txt", "a") as file:
        file.write(f"{folder.name} {cfg.size} {cfg.part.kind} resume={cfg.resume}\\n")
    if cfg.crash_at == cfg.size and not cfg.resume:
        raise ValueError("crashed as told")
    (folder / "metrics.csv").write_text(f"step,val/score\\n1,0.5\\n2,\\n3,{cfg.size * 2}\\n4,\\n")

if __name__ == "__main__":
    main()
"""
HYDRA_CONF = {
    "work.yaml": "defaults: [_self_, {part: one}, {override hydra/job_logging: disabled}]\n"
    "size: 1\ncrash_at: 0\nresume: false\nhydra: {output_subdir: null}\n",
    "part/one.yaml": "kind: one\n",
    "part/two.yaml": "kind: two\n",
}
COMMAND = ["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """The current folder of a test: ``write`` makes a sweep file, ``start`` and ``run`` start src/sweep.py in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "work.py").write_text(HYDRA_PROGRAM)
    for name, content in HYDRA_CONF.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text(content)
    removed = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "DRAFTLAB_TRACEBACK")
    environment = {key: value for key, value in os.environ.items() if key not in removed}

    def write(parameters, name="try.yaml", **content):
        content = {"program": "program.py", "method": "grid", "command": COMMAND, "parameters": parameters} | content
        content = {key: value for key, value in content.items() if value is not None}
        (tmp_path / name).write_text(yaml.safe_dump(content, sort_keys=False))
        return name

    started = []

    def start(*words, **extra):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *words],
            cwd=tmp_path,
            env=environment | extra,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=usual_signals,
        )
        started.append(process)
        return process

    def run(*words, **extra):
        process = start(*words, **extra)
        output, _ = process.communicate(timeout=900)
        return process.returncode, output

    def noted(what=None):
        path = tmp_path / "runs.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if what in (None, line["what"])]

    yield SimpleNamespace(folder=tmp_path, write=write, start=start, run=run, noted=noted)
    for process in started:  # of a test that failed half way
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=120)
