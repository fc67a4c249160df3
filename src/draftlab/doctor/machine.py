"""Processors, memory, GPUs and free disk. A machine without a GPU lacks nothing that the quick start needs.

devices()                     # PyTorch is imported, if it can be
disk(Path("outputs"))
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from draftlab.doctor.finding import Finding, size_text

MEMORY_FILE = Path("/proc/meminfo")
DEMO_BYTES = 2.5e9  # of disk: the target, once more while it is converted, its features, the run


def devices() -> list[Finding]:
    """CPU, memory, and GPUs as PyTorch sees them."""
    found = [Finding("memory", *_memory())]
    try:
        import torch

        from draftlab.hardware import has_fast_bfloat16
    except (ImportError, OSError) as error:  # a missing library of the system is an OSError
        note = str(error).splitlines()[0]
        return [*found, Finding("PyTorch", "cannot be imported", note, "everything", "pip install -e .", needed=True)]
    fast = "fast in bfloat16" if has_fast_bfloat16("cpu") else "no instructions for bfloat16"
    found.insert(
        0, Finding("CPU", f"{_cpus()} cores", f"PyTorch computes with {torch.get_num_threads()} threads; {fast}")
    )
    if not torch.cuda.is_available():
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        return [
            *found,
            Finding("GPU", "none", f"PyTorch {torch.__version__} is built for {build}; device=auto is the CPU"),
        ]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        note = f"{size_text(free)} of {size_text(total)} free, compute capability {properties.major}.{properties.minor}"
        found.append(Finding(f"GPU cuda:{index}", properties.name, note))
    return found


def disk(folder: Path) -> Finding:
    """Room where ``folder`` is or will be, and whether it can be written.

    A folder that is not there counts as the first of its parents that is.
    """
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    what, found = f"disk of {folder}", f"{size_text(free)} free"
    if not os.access(there, os.W_OK):
        return Finding(what, found, "not writable", "the quick start", f"make {there} writable", needed=True)
    if free < DEMO_BYTES:
        remedy = f"free {size_text(DEMO_BYTES - free)}, or work elsewhere"
        return Finding(what, found, f"wanted: {size_text(DEMO_BYTES)}", "the quick start", remedy, needed=True)
    return Finding(what, found)


def _cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> tuple[str, str]:
    """All memory and what is free of it, in words."""
    if MEMORY_FILE.is_file():
        rows = (line.split() for line in MEMORY_FILE.read_text(encoding="utf-8").splitlines())
        sizes = {name.rstrip(":"): int(value) * 1024 for name, value, *_ in rows}
        return size_text(sizes["MemTotal"]), f"{size_text(sizes['MemAvailable'])} available"
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return size_text(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")), ""
    return "unknown", ""
