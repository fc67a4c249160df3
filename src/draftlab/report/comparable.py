"""Which runs can stand beside each other: those that decoded the same prompts of the same target in the same way.

The first readable run says what the others must agree with. Every run that cannot be read or does not agree is named with
the reason, and the rest goes on: for a comparison, for its W&B report, and for the notebooks alike.

    >>> runs, refused = comparable_runs(["outputs/dspark", "outputs/dflash"])     # doctest: +SKIP
    >>> runs = find_runs("outputs/sweeps/gamma")                             # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftlab.report.html import fact
from draftlab.report.run import Run, read_run

SAME = ("target", "thinking", "top_k", "top_p", "min_p", "max_new_tokens")  # settings that must agree
TRACES = (".hydra", "rounds.parquet", "evaluation.json")  # what only a run folder holds


def comparable_runs(
    run_dirs: Sequence[str | Path], names: Sequence[str] | None = None
) -> tuple[list[Run], dict[str, str]]:
    """Readable runs that agree with the first one, and the reason for every other, by name.

    Without ``names``, a run is called by the shortest end of its path that tells it from all others. Raises ValueError
    where a run is given twice.
    """
    runs, refused = [], {}
    for folder, name in zip(run_dirs, names or folder_names(run_dirs), strict=True):
        try:
            run = read_run(folder, name)
        except ValueError as error:
            refused[name] = str(error)
            continue
        reason = _difference(runs, run) if runs else None
        if reason is None:
            runs.append(run)
        else:
            refused[name] = reason
    return runs, refused


def common_temperatures(runs: Sequence[Run]) -> list[float]:
    """Temperatures at which all runs decoded, ascending."""
    return sorted(set.intersection(*(set(run.temperatures) for run in runs)))


def find_runs(folder: str | Path) -> list[Run]:
    """The evaluated runs right under ``folder`` that can be compared, by name, as a multirun or a sweep leaves them.

    Others are named in print. Raises ValueError where there is none.
    """
    folder = Path(folder)
    paths = sorted(path for path in folder.glob("*/") if any((path / trace).exists() for trace in TRACES))
    runs, refused = comparable_runs(paths, [path.name for path in paths])
    for name, reason in refused.items():
        print(f"left out: {name}: {reason}")
    if not runs:
        raise ValueError(f"{folder}: expected folders of evaluated runs in it, found none; check the path")
    return runs


def run_folders(value: Any) -> list[str]:
    """``runs`` of a command as names of folders, each once. Raises ValueError where it is anything else."""
    folders = [value] if isinstance(value, str) else value
    if not isinstance(folders, list) or not folders or not all(isinstance(item, str) and item for item in folders):
        raise ValueError(f"runs: expected names of folders, as in runs=[outputs/a,outputs/b], got {value!r}")
    folder_names(folders)
    return folders


def folder_names(run_dirs: Sequence[str | Path]) -> list[str]:
    """The shortest ends of the paths that tell all runs apart. Raises ValueError where one is given twice."""
    parts = [Path(folder).resolve().parts for folder in run_dirs]
    repeated = {"/".join(part) for part in parts if parts.count(part) > 1}
    if repeated:
        raise ValueError(f"runs: expected every run once, got {', '.join(sorted(repeated))} more than once")
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("different absolute paths have different names")


def check_out(out: Any) -> Path:
    """``out`` as a folder that can be written into; nothing of the trial stays. Raises ValueError where it cannot be."""
    if not isinstance(out, str | Path) or not str(out):
        raise ValueError(f"out: expected the name of a folder for the comparison, got {out!r}")
    out, missing = Path(out), []
    try:
        missing = [folder for folder in (out, *out.parents) if not folder.exists()]
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            return out
    except OSError as error:
        raise ValueError(
            f"out: expected a folder that can be made and written into, got {out} ({error}); give another with out="
        ) from error
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _difference(runs: Sequence[Run], run: Run) -> str | None:
    """Why a run cannot be compared with those before it, or None."""
    first = runs[0]
    for key in SAME:
        ours, theirs = (_identity(each.settings.get(key)) for each in (first, run))
        if ours != theirs:
            return f"{key} is {fact(theirs)}, but {fact(ours)} in {first.name}; evaluate both alike"
    common = common_temperatures(runs)
    if not set(common) & set(run.temperatures):
        whose = first.name if len(runs) == 1 else f"{first.name} and the others"
        return f"temperatures {fact(run.temperatures)} have none in common with {fact(common)} of {whose}"
    if first.prompts != run.prompts:
        shared = len(first.prompts & run.prompts)
        ours = f"the {len(first.prompts)} prompts of {first.name}"
        return f"{len(run.prompts)} prompts, of which {shared} are among {ours}; evaluate both on the same"
    return None


def _identity(value):
    """A target is known by its name; where it lies on disk does not matter."""
    return value.get("name", value) if isinstance(value, dict) else value
