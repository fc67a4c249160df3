"""Reading an evaluated run folder: rounds, settings, counts, speed, training curves, configuration and commands.

    outputs/<name>/rounds.parquet     one row a decode round (required)
    outputs/<name>/evaluation.json    settings, counts by outcome, speed (required)
    outputs/<name>/outputs.jsonl      the texts, one line a prompt (optional: names the prompts)
    outputs/<name>/metrics.csv        training curves (optional)
    outputs/<name>/.hydra/            composed configuration and overrides (optional)

What each file may hold is :mod:`draftlab.report.files`' part. It knows nothing of statistics or pictures.

    >>> run = read_run("outputs/demo")          # doctest: +SKIP
    >>> run.rounds[["accepted", "committed"]]   # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from draftlab.report.files import read_evaluation, read_metrics, read_overrides, read_prompts, read_rounds, read_text


@dataclass(frozen=True)
class Run:
    """One evaluated run. ``rounds`` has the columns of ``files.ROUND_COLUMNS`` and, if the drafter has the head, ``confidence``."""

    name: str
    folder: Path
    rounds: pd.DataFrame
    settings: Mapping[str, Any]
    counts: pd.DataFrame  # temperature, benchmark, domain, prompts, stopped, truncated
    speed: pd.DataFrame  # one row a temperature; empty if speed was not measured
    metrics: pd.DataFrame | None = None
    config: str | None = None
    commands: tuple[str, ...] = ()
    prompts: frozenset[tuple[str, str]] = field(default_factory=frozenset)  # (benchmark, prompt_id)

    @property
    def temperatures(self) -> list[float]:
        """Temperatures that were decoded at, ascending."""
        return sorted(float(value) for value in self.rounds["temperature"].unique())


def read_run(folder: str | Path, name: str | None = None) -> Run:
    """Read an evaluated run folder.

    Raises ValueError, naming the file and what to do, where a folder, file or column is missing, a file is damaged or a row
    cannot be.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"run folder {folder}: expected a folder written by src/train.py, found none; check the name")
    rounds, evaluation = read_rounds(folder), read_evaluation(folder)
    prompts = read_prompts(folder / "outputs.jsonl")
    if prompts is None:  # a prompt answered by one stop token has a text but no round
        prompts = frozenset(zip(rounds["benchmark"], rounds["prompt_id"], strict=True))
    return Run(
        name=name or folder.resolve().name,
        folder=folder,
        rounds=rounds,
        settings=evaluation["settings"],
        counts=evaluation["counts"],
        speed=evaluation["speed"],
        metrics=read_metrics(folder / "metrics.csv"),
        config=read_text(folder / ".hydra" / "config.yaml"),
        commands=_commands(folder, evaluation["command"]),
        prompts=prompts,
    )


def _commands(folder: Path, evaluated: str | None) -> tuple[str, ...]:
    """The commands that made the run: training from Hydra's overrides, evaluation from its own record."""
    overrides = read_overrides(folder / ".hydra" / "overrides.yaml")
    trained = None if overrides is None else " ".join(["python src/train.py", *overrides])
    return tuple(dict.fromkeys(command for command in (trained, evaluated) if command))
