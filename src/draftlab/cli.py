"""What every entry script shares: user mistakes end in one readable message, a stop and a full disk in how to go on.

    @hydra.main(config_path="../conf", config_name="train", version_base="1.3")
    @entry
    def main(cfg): ...

A ``ValueError`` or a Hydra/OmegaConf configuration error is a user's mistake: its message is printed alone and the exit
code is 1. A full disk ends likewise. Anything else is our own fault and keeps its traceback. ``DRAFTLAB_TRACEBACK=1``
shows every traceback. SIGTERM ends a script as Ctrl-C does. A command that was refused or only planned leaves no empty
run folder behind.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from draftlab.memory import keep_freed_memory
from draftlab.typed import check_types

INTERRUPTED = 130  # the shell's exit code for a process ended by Ctrl-C
KEPT = "Everything finished so far is kept: run the same command again"
DISK_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))

refused: list[str] = []  # the messages of jobs of this multirun that were refused while the others went on

# Warnings of libraries about themselves, or about what is meant: a user can do nothing about them.
NOISE = (
    ".*LeafSpec.*is deprecated",  # Lightning of PyTorch
    "Checkpoint directory .* exists and is not empty",  # a run that is resumed
)


def entry(main: Callable) -> Callable:
    """Wrap a script's main function: types checked first, user mistakes without traceback (exit 1), how to resume after
    Ctrl-C (exit 130)."""

    @functools.wraps(main)
    def wrapped(*args, **kwargs):
        for message in NOISE:
            warnings.filterwarnings("ignore", message=message)
        keep_freed_memory()
        _silence_other_ranks()
        _terminate_as_interrupt()
        try:
            for given in args:
                check_types(given)
            return main(*args, **kwargs)
        except KeyboardInterrupt:
            print(f"\nInterrupted. {_how_to_go_on(*args)}", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None
        except Exception as error:
            mistake = (
                f"{error}\nThe disk is full. {_how_to_go_on(*args)}" if disk_is_full(error) else user_mistake(error)
            )
            if mistake is None:
                raise
            if os.environ.get("DRAFTLAB_TRACEBACK"):
                traceback.print_exc()
            print(f"error: {mistake}", file=sys.stderr)
            if _is_one_of_several():
                refused.append(f"{HydraConfig.get().runtime.output_dir}: {mistake}")
                return None
            raise SystemExit(1) from None
        finally:
            _drop_empty_folder()

    return wrapped


def leave() -> None:
    """The end of a script: exit code 1 if jobs of a multirun were refused, which are named once more."""
    if refused:
        print("\nrefused of this multirun:", *refused, sep="\n", file=sys.stderr)
        raise SystemExit(1)


@contextlib.contextmanager
def stops_as_interrupts(trainer) -> Iterator[None]:
    """Let a stop of what ``trainer`` runs in here end as KeyboardInterrupt; Lightning makes a SystemExit or nothing of it."""
    try:
        yield
    except SystemExit:
        if trainer.interrupted:
            raise KeyboardInterrupt from None
        raise
    if trainer.interrupted:
        raise KeyboardInterrupt


def choices(*groups: str) -> str:
    """The chosen options of ``groups``, joined by hyphens; ``multirun`` in a multirun, whose folder has one name."""
    if not HydraConfig.initialized() or HydraConfig.get().get("mode") != RunMode.RUN:
        return "multirun"
    return "-".join(str(HydraConfig.get().runtime.choices[group]) for group in groups)


OmegaConf.register_new_resolver("choices", choices, replace=True)


def _is_one_of_several() -> bool:
    """Whether this is a job of a multirun whose others run in this process too, and can go on."""
    if not HydraConfig.initialized():
        return False
    hydra = HydraConfig.get()
    return hydra.get("mode") == RunMode.MULTIRUN and "BasicLauncher" in hydra.launcher.get("_target_", "")


def _how_to_go_on(cfg: DictConfig | None = None, *_) -> str:
    """In words; a script whose configuration ``cfg`` has a ``resume`` that is off starts anew without it."""
    return f"{KEPT} with resume=true to go on." if cfg and cfg.get("resume") is False else f"{KEPT} to go on."


def _silence_other_ranks() -> None:
    """Of several processes of one run, as torchrun, SLURM or Lightning start them, only the first prints; errors still show."""
    ranks = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
    if next((rank for rank in ranks if rank is not None), "0") != "0":
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


def _terminate_as_interrupt() -> None:
    """Let SIGTERM raise KeyboardInterrupt; not under SLURM, where Lightning takes it as notice of a requeue."""
    if "SLURM_JOB_ID" in os.environ or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _drop_empty_folder() -> None:
    """Remove the run folder, which Hydra makes before anything can be refused, if nothing was written into it."""
    runtime = HydraConfig.get().runtime if HydraConfig.initialized() else None
    if runtime is None or OmegaConf.is_missing(runtime, "output_dir"):  # not a script of Hydra's, or only composed
        return
    folder = Path(runtime.output_dir)
    if folder != Path.cwd():
        with contextlib.suppress(OSError):  # rmdir removes empty folders only
            folder.rmdir()


def user_mistake(error: BaseException) -> str | None:
    """The readable message of a user's mistake, or None if ``error`` is not one.

    Hydra wraps what a constructor raises in an ``InstantiationException``; the constructor's own words are what helps. Only
    causes count: a fault of ours that happens while a ValueError is being handled keeps its traceback.
    """
    causes = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__
    theirs = HydraException | OmegaConfBaseException  # on several lines
    for cause in reversed(causes):
        if isinstance(cause, ValueError) or (cause is causes[0] and isinstance(cause, theirs)):
            said = str(cause)
            return "; ".join(map(str.strip, said.strip().split("\n"))) if isinstance(cause, theirs) else said
    return None


def disk_is_full(error: BaseException) -> bool:
    """Whether ``error`` says so in the system's words; writers outside Python raise it under classes of their own."""
    return any(words in str(error) for words in DISK_FULL)
