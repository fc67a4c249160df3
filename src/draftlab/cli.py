"""What every entry script shares: user mistakes end in one readable message, Ctrl-C and a full disk in how to go on.

    @hydra.main(config_path="../conf", config_name="train", version_base="1.3")
    @entry
    def main(cfg): ...

A ``ValueError`` or a Hydra/OmegaConf configuration error is a user's mistake: its message is printed alone and the exit
code is 1. A full disk ends likewise. Anything else is our own fault and keeps its traceback. ``DRAFTLAB_TRACEBACK=1``
shows every traceback.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import traceback
from collections.abc import Callable

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

INTERRUPTED = 130  # the shell's exit code for a process ended by Ctrl-C
GO_ON = "Everything finished so far is kept: run the same command again to go on\n(training: with resume=true)."
DISK_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))


def entry(main: Callable) -> Callable:
    """Wrap a script's main function: user mistakes without traceback (exit 1), how to resume after Ctrl-C (exit 130)."""

    @functools.wraps(main)
    def wrapped(*args, **kwargs):
        try:
            return main(*args, **kwargs)
        except KeyboardInterrupt:
            print(f"\nInterrupted. {GO_ON}", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None
        except Exception as error:
            mistake = f"{error}\nThe disk is full. {GO_ON}" if disk_is_full(error) else user_mistake(error)
            if mistake is None:
                raise
            if os.environ.get("DRAFTLAB_TRACEBACK"):
                traceback.print_exc()
            print(f"error: {mistake}", file=sys.stderr)
            raise SystemExit(1) from None

    return wrapped


def user_mistake(error: BaseException) -> str | None:
    """The readable message of a user's mistake, or None if ``error`` is not one.

    Hydra wraps what a constructor raises in an ``InstantiationException``; the constructor's own words are what helps. Only
    causes count: a fault of ours that happens while a ValueError is being handled keeps its traceback.
    """
    causes = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__
    for cause in reversed(causes):
        if isinstance(cause, ValueError):
            return str(cause)
    if isinstance(causes[0], HydraException | OmegaConfBaseException):
        return str(causes[0])
    return None


def disk_is_full(error: BaseException) -> bool:
    """Whether ``error`` says so in the system's words; writers outside Python raise it under classes of their own."""
    return any(words in str(error) for words in DISK_FULL)
