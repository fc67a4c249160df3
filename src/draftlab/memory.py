"""Freed memory stays with the process, so that the next step need not ask the system for it again.

A training step on a CPU makes and frees tensors of some 30 MB. The C library hands such memory back to the system at once,
and the system clears every page of it anew at the next step: up to a third of the step. ``benchmarks/precision.py`` measures it.
A GPU has PyTorch's own cache for that. The module knows nothing of tensors.

    keep_freed_memory()     # once, before the work
"""

from __future__ import annotations

import ctypes
import os
import sys

# Options of glibc's mallopt, from its malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8

SETTINGS = {
    ARENA_MAX: 1,  # one heap: those of further threads, as the backward pass has, hold 64 MB at most
    MMAP_MAX: 0,  # large tensors come from the heap too
    TRIM_THRESHOLD: 2**31 - 1,  # bytes at its end that are kept; the most that the option can say
    TOP_PAD: 64 * 2**20,  # bytes that it grows by at least
}
OWN_SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed; True if it agreed.

    It gives back what exceeds 2 GB at the end of its heap, and nothing from below a block that is still used: a process may hold
    as much as it once needed at a time, and somewhat more.

    Nothing is changed where the C library is not glibc, or where the user's environment sets up an allocator.
    """
    if not sys.platform.startswith("linux") or any(name.startswith(OWN_SETTINGS) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in SETTINGS.items())
