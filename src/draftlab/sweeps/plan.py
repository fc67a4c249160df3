"""From cells to commands: what each run is started with, and in which folder it works.

    <folder>/<cell>/     run folder of a cell, handed to Hydra as hydra.run.dir; sweep.log and finished.json lie there too

The words are those that ``wandb agent`` would start, plus the run folder. Overrides given for the whole sweep replace words
of the same key. For a Hydra script every cell is composed here, so that a mistake is found before the first run.

    plan = make_plan(sweep, make_cells(sweep), Path("outputs/sweeps/gamma"), ["trainer.settings.max_steps=100"])
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from hydra.types import RunMode
from omegaconf import DictConfig

from draftlab.sweeps.cells import Cell
from draftlab.sweeps.hydra_program import find_hydra_program
from draftlab.sweeps.spec import ARGUMENTS, PROGRAM, Metric, Sweep

FOLDER_KEY = "hydra.run.dir"
RESUME = "resume=true"
LAUNCHER = "hydra/launcher=submitit_slurm"
PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")


@dataclass(frozen=True)
class Job:
    """One cell ready to start.

    Attributes:
        folder: its run folder. words: the whole command. arguments: what stands after the program, without the folder:
        the identity of the run. resume: words that are added if it was started before.
    """

    cell: Cell
    folder: Path
    words: tuple[str, ...]
    arguments: tuple[str, ...]
    resume: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Everything a sweep will do: its jobs in order; ``multirun``: the same grid as one command of Hydra, if it is one."""

    name: str
    folder: Path
    jobs: tuple[Job, ...]
    metric: Metric | None = None
    multirun: str | None = None


def make_plan(sweep: Sweep, cells: list[Cell], folder: Path, overrides: list[str] | None = None) -> Plan:
    """Commands and folders of ``cells``.

    Args:
        folder: of the sweep. overrides: ``key=value`` words for every cell.

    Raises:
        ValueError: an override of a swept parameter or of the run folder, a folder that cannot be, or a cell that the program's
        configuration refuses or makes several runs of.
    """
    overrides = list(overrides or [])
    _check_overrides(sweep, overrides)
    _check_folders([folder, *(folder / cell.name for cell in cells)])
    start, fixed, rest = _split(sweep.command, overrides)
    program = find_hydra_program(Path(sweep.program))
    arguments = [(*fixed, *cell.arguments, *rest) for cell in cells]
    resume = ()
    if program is not None:
        runs = [[word for word in words if not word.startswith("-")] for words in arguments]
        try:
            composed = program.compose(runs)
        except ValueError as error:
            raise ValueError(f"{sweep.path}: {error}") from None
        for cell, words, cfg in zip(cells, arguments, composed, strict=True):
            _check_one_run(sweep, cell, words, cfg)
        resume = (RESUME,) if all("resume" in cfg for cfg in composed) else ()
    begin = [word for token in start for word in _expand(token, sweep.program)]
    jobs = []
    for cell, words in zip(cells, arguments, strict=True):
        place = [f"{FOLDER_KEY}={_quoted(folder / cell.name)}"] if program is not None else []
        jobs.append(Job(cell, folder / cell.name, (*begin, *words, *place), words, resume))
    multirun = None
    if program is not None and sweep.method == "grid":
        multirun = _multirun(sweep, folder, [*fixed, *rest])
    return Plan(sweep.name, folder, tuple(jobs), sweep.metric, multirun)


def _check_overrides(sweep: Sweep, overrides: list[str]) -> None:
    swept = {parameter.name for parameter in sweep.parameters}
    for word in overrides:
        key = _key(word)
        if "=" not in word and not word.startswith("~"):
            raise ValueError(
                f"{word!r}: expected key=value for every cell, or an option; see python src/sweep.py --help"
            )
        if key in swept:
            raise ValueError(f"{word}: {key} is swept in {sweep.path}; change its values there")
        if key == FOLDER_KEY:
            raise ValueError(f"{word}: every cell has a folder of its own; --folder says where they lie")


def _check_folders(folders: list[Path]) -> None:
    """Refuse a folder that is, or would lie in, something else; what is missing is made when the sweep runs."""
    for folder in folders:
        try:
            found = next(place for place in (folder, *folder.parents) if place.exists())
            if not found.is_dir():
                raise ValueError(f"run folder {folder}: {found} is not a folder; give another --folder")
        except OSError as error:
            raise ValueError(f"run folder {folder} cannot be made: {error}; give another --folder") from None


def _check_one_run(sweep: Sweep, cell: Cell, words: tuple[str, ...], cfg: DictConfig) -> None:
    """Refuse a cell that Hydra would start as a multirun: its runs would not lie in the cell's folder."""
    asked = sorted({"-m", "--multirun"} & set(words))
    if asked or cfg.hydra.mode == RunMode.MULTIRUN:
        why, mend = (
            "its configuration sets hydra.mode to MULTIRUN",
            "take an experiment that does not, or add hydra.mode=RUN",
        )
        if asked:
            why, mend = f"its command has {asked[0]}", "leave that word out"
        raise ValueError(
            f"{sweep.path}: a cell is one run, and {cell.name} would be several: {why}; {mend} "
            f"(composed with {' '.join(words)})"
        )


def _key(word: str) -> str:
    return word.split("=", 1)[0].lstrip("+~")


def _split(command: tuple[str, ...], overrides: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Words up to the program; fixed arguments before the values; those after them. Overrides take the place of fixed ones."""
    program, values = command.index(PROGRAM), command.index(ARGUMENTS)
    keys = {_key(word) for word in overrides}
    before = [word for word in command[program + 1 : values] if _key(word) not in keys]
    after = [word for word in command[values + 1 :] if _key(word) not in keys]
    return list(command[: program + 1]), before, [*after, *overrides]


def _expand(token: str, program: str) -> list[str]:
    macros = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": [sys.executable],
        PROGRAM: [program],
    }
    return macros.get(token, [token])


def _quoted(path: Path) -> str:
    """A path as Hydra reads it: blanks, commas and equal signs need quotes."""
    text = str(path)
    return text if PLAIN.fullmatch(text) else "'" + text.replace("'", "\\'") + "'"


def _multirun(sweep: Sweep, folder: Path, fixed: list[str]) -> str:
    """The grid as one Hydra multirun, which a launcher can take to a cluster."""
    words = [word for word in fixed if _key(word) != "run_name"]
    values = [f"{parameter.name}={','.join(map(str, parameter.choices() or []))}" for parameter in sweep.parameters]
    place = f"hydra.sweep.dir={_quoted(folder)}"
    return shlex.join(["python", os.path.relpath(sweep.program), "--multirun", LAUNCHER, *words, *values, place])
