"""Run the cells of a sweep side by side; stop them together; go on where they stopped.

    python src/sweep.py sweeps/gamma.yaml --workers 2

A cell is finished when its command ended with exit code 0; only then is ``finished.json`` written, whole or not at all. A
finished cell is not started again; one that was stopped, killed or failed is, with ``resume=true`` where its program knows
that word. A failed cell is shown with the end of its log, and the others go on. Ctrl-C, SIGTERM and a closed terminal stop
all runs as Ctrl-C would. If the runner itself is killed, Linux stops its runs, and a lock that runs inherit keeps a second
runner from starting the same cells meanwhile. Needs Linux or macOS. The module knows nothing of what a run computes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from draftlab.sweeps.plan import Job, Plan
from draftlab.sweeps.state import FAILED, FINISHED, RUNNING, STOPPED, CellState, Ledger, failure_text

LOG = "sweep.log"
POLL_SECONDS = 0.2
STOP_SECONDS = {signal.SIGINT: 60.0, signal.SIGTERM: 10.0, signal.SIGKILL: 10.0}  # patience after each, in this order
LOCK_SECONDS = 90.0  # runs of a killed runner need a moment to end
NOT_STARTED = 127  # the shell's exit code for a command that is not there
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass
class _Run:
    """A started cell."""

    job: Job
    process: subprocess.Popen
    began: float
    log_start: int  # bytes of earlier attempts in the log
    slot: int


class Runner:
    """Runs the jobs of a plan, ``workers`` at a time.

    Args:
        workers: runs side by side; they share the CPU's threads unless OMP_NUM_THREADS says otherwise. gpus: device
        numbers dealt out to the workers in turn; empty leaves CUDA_VISIBLE_DEVICES as it is.

    Raises:
        ValueError: fewer than one worker.
    """

    def __init__(self, plan: Plan, workers: int = 1, gpus: list[str] | None = None) -> None:
        if workers < 1:
            raise ValueError(f"--workers must be at least 1, got {workers}")
        self.plan, self.workers, self.gpus = plan, workers, list(gpus or [])
        self.ledger = Ledger(plan)
        self.running: list[_Run] = []

    def run(self, lock: int) -> list[CellState]:
        """Run what is not finished; the state of every cell in the plan's order. ``lock`` is inherited by the runs."""
        waiting = deque(job for job in self.plan.jobs if self.ledger.of(job).state != FINISHED)
        done = len(self.plan.jobs) - len(waiting)
        _say(f"{self.plan.folder}: {len(waiting)} cells to run" + (f", {done} finished before" if done else ""))
        slots = deque(range(self.workers))
        try:
            while waiting or self.running:
                while waiting and slots:
                    if self._start(waiting.popleft(), slots[0], lock):
                        slots.popleft()
                time.sleep(POLL_SECONDS)
                for run in [run for run in self.running if run.process.poll() is not None]:
                    self.running.remove(run)
                    slots.append(run.slot)
                    self._close(run)
        except BaseException:
            self._stop()
            raise
        return self.ledger.states()

    def _start(self, job: Job, slot: int, lock: int) -> bool:
        """Start a cell; False if its command cannot be started at all."""
        job.folder.mkdir(parents=True, exist_ok=True)
        path = job.folder / LOG
        words = [*job.words, *(job.resume if path.exists() else ())]
        with path.open("ab") as log:
            log_start = log.tell()
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            try:
                process = self._popen(words, log, slot, lock)
            except OSError as error:  # of the command itself: no such file, or not executable
                log.write(f"{error}\n".encode())
                process = None
        if process is None:
            self.ledger.change(job, state=FAILED, exit_code=NOT_STARTED)
            _say(f"{self._number(job)} {job.cell.name}: {failure_text(NOT_STARTED, path, log_start)}")
            return False
        self.running.append(_Run(job, process, time.monotonic(), log_start, slot))
        self.ledger.change(job, state=RUNNING, exit_code=None)
        _say(f"{self._number(job)} {job.cell.name}: started, log in {path}")
        return True

    def _popen(self, words: list[str], log: IO[bytes], slot: int, lock: int) -> subprocess.Popen:
        environment = {"PYTHONUNBUFFERED": "1", "WANDB_RUN_GROUP": self.plan.name, **os.environ}
        if self.workers > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, _cpus() // self.workers)))
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,  # Ctrl-C reaches the runner alone, which then stops the runs in order
            pass_fds=(lock,),
            preexec_fn=_prepare_child,
        )

    def _close(self, run: _Run) -> None:
        """Record how a run ended."""
        job, code = run.job, run.process.returncode
        seconds = self.ledger.of(job).seconds + time.monotonic() - run.began
        state = self.ledger.change(job, state=FAILED if code else FINISHED, exit_code=code, seconds=seconds)
        text = f"{self._number(job)} {job.cell.name}: "
        if code:
            _say(text + failure_text(code, job.folder / LOG, run.log_start))
            return
        metric = "" if state.metric is None else f", {self.plan.metric.name} {state.metric:.4g}"
        _say(f"{text}finished after {state.seconds / 60:.1f} min{metric}")

    def _stop(self) -> None:
        """End all runs, gently first; a second Ctrl-C meanwhile ends them at once."""
        if self.running:
            _say(f"\nstopping {len(self.running)} runs; Ctrl-C again kills them")
        for number, patience in STOP_SECONDS.items():
            _signal(self.running, number)
            try:
                _wait(self.running, patience)
            except KeyboardInterrupt:
                _signal(self.running, signal.SIGKILL)
        for run in self.running:  # stopped also if it says 0: some programs do so after Ctrl-C
            seconds = self.ledger.of(run.job).seconds + time.monotonic() - run.began
            self.ledger.change(run.job, state=STOPPED, exit_code=run.process.returncode, seconds=seconds)
        states = [state.state for state in self.ledger.states()]
        _say(f"{states.count(FINISHED)} of {len(states)} cells are finished")

    def _number(self, job: Job) -> str:
        return f"[{self.plan.jobs.index(job) + 1}/{len(self.plan.jobs)}]"


def run_plan(plan: Plan, workers: int = 1, gpus: list[str] | None = None) -> list[CellState]:
    """Run every cell of ``plan`` that is not finished; the state of all of them, in order.

    Raises:
        ValueError: fewer than one worker; a cell that was started with other arguments; another runner in the same folder;
        a folder that cannot be made.
        KeyboardInterrupt: stopped by Ctrl-C or a signal; no run is left behind.
    """
    with _locked(plan.folder) as lock, _signals_as_interrupts():
        return Runner(plan, workers, gpus).run(lock)


def _prepare_child() -> None:
    """In the new process: Ctrl-C works even under nohup, and Linux ends the run should the runner be killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _signal(runs: list[_Run], number: int) -> None:
    for run in runs:
        if run.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.process.pid, number)


def _wait(runs: list[_Run], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(run.process.poll() is None for run in runs):
        time.sleep(POLL_SECONDS / 4)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Hold ``folder``; the descriptor is handed to the runs, so that the lock outlives a runner that is killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / ".lock").open("w")
    except OSError as error:
        raise ValueError(f"run folder {folder} cannot be made or written: {error}; give another --folder") from None
    with opened as file:
        deadline, said = time.monotonic() + LOCK_SECONDS, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise ValueError(
                        f"{folder} is in use: a sweep is running there, or runs of one that was killed have not ended; "
                        "stop them, or give another --folder"
                    ) from None
                if not said:
                    _say(f"{folder} is in use; waiting {LOCK_SECONDS:.0f} s for it")
                said = True
                time.sleep(POLL_SECONDS)
        yield file.fileno()


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """SIGINT, SIGTERM and, unless nohup switched it off, SIGHUP raise KeyboardInterrupt in here."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(text, flush=True)
