"""Reading an evaluated run folder: rounds, settings, counts, speed, training curves, configuration and commands.

    outputs/<name>/rounds.parquet     one row a decode round (required)
    outputs/<name>/evaluation.json    settings, counts by outcome, speed (required)
    outputs/<name>/outputs.jsonl      the texts, one line a prompt (optional: names the prompts)
    outputs/<name>/metrics.csv        training curves (optional)
    outputs/<name>/.hydra/            composed configuration and overrides (optional)

It checks what it reads and knows nothing of statistics or pictures.

    >>> run = read_run("outputs/demo")          # doctest: +SKIP
    >>> run.rounds[["accepted", "committed"]]   # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

ROUND_COLUMNS = ("temperature", "benchmark", "domain", "prompt_id", "round", "proposed", "accepted", "committed")


@dataclass(frozen=True)
class Run:
    """One evaluated run. ``rounds`` has the ROUND_COLUMNS and, if the drafter has the head, ``confidence``."""

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

    Raises ValueError, naming the file and what to run, where a folder, file or column is missing or a row cannot be.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"run folder {folder}: expected a folder written by src/train.py, found none; check the name")
    rounds, evaluation = _read_rounds(folder), _read_evaluation(folder)
    return Run(
        name=name or folder.resolve().name,
        folder=folder,
        rounds=rounds,
        settings=evaluation["settings"],
        counts=pd.DataFrame(evaluation.get("counts", [])),
        speed=pd.DataFrame(evaluation.get("speed", [])),
        metrics=_read_metrics(folder / "metrics.csv"),
        config=_read_text(folder / ".hydra" / "config.yaml"),
        commands=_read_commands(folder, evaluation),
        prompts=_read_prompts(folder / "outputs.jsonl", rounds),
    )


def find_runs(folder: str | Path) -> list[Run]:
    """The evaluated runs right under ``folder``, by name, as a multirun or a sweep leaves them; others are named in print.

    Raises ValueError where there is none.
    """
    folder, runs = Path(folder), []
    for path in sorted(path for path in folder.glob("*/") if (path / ".hydra").is_dir()):
        try:
            runs.append(read_run(path))
        except ValueError as error:
            print(f"left out: {path.name}: {error}")
    if not runs:
        raise ValueError(f"{folder}: expected folders of evaluated runs in it, found none; check the path")
    return runs


def _read_rounds(folder: Path) -> pd.DataFrame:
    path = folder / "rounds.parquet"
    if not path.is_file():
        raise ValueError(
            f"{path}: expected the rounds of an evaluation, found no file; "
            f"run `python src/evaluate.py run={folder}` first"
        )
    rounds = pd.read_parquet(path)
    missing = [column for column in ROUND_COLUMNS if column not in rounds.columns]
    if missing:
        raise ValueError(f"{path}: expected the columns {', '.join(ROUND_COLUMNS)}; missing {', '.join(missing)}")
    if rounds.empty:
        raise ValueError(f"{path}: expected at least one decode round, got none; evaluate with more prompts or tokens")
    possible = (
        rounds["accepted"].between(0, rounds["proposed"])
        & rounds["committed"].between(rounds["accepted"], rounds["accepted"] + 1)
        & (rounds["committed"] >= 1)
    )
    if not possible.all():
        row = rounds.loc[~possible, ["prompt_id", "round", "proposed", "accepted", "committed"]].iloc[0].to_dict()
        raise ValueError(
            f"{path}: expected 0 <= accepted <= proposed and committed = accepted or accepted + 1, got {row}; "
            "evaluate again"
        )
    return rounds.assign(benchmark=rounds["benchmark"].astype(str), domain=rounds["domain"].astype(str))


def _read_evaluation(folder: Path) -> dict[str, Any]:
    path = folder / "evaluation.json"
    if not path.is_file():
        raise ValueError(
            f"{path}: missing; it is written last, so the evaluation did not end; "
            f"run `python src/evaluate.py run={folder}` again"
        )
    evaluation = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(evaluation.get("settings"), dict):
        raise ValueError(f"{path}: expected a key 'settings', got {sorted(evaluation)}; evaluate again")
    return evaluation


def _read_metrics(path: Path) -> pd.DataFrame | None:
    if not path.is_file() or path.stat().st_size == 0:
        return None
    metrics = pd.read_csv(path)
    return metrics if "step" in metrics.columns and len(metrics) else None


def _read_text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _read_commands(folder: Path, evaluation: Mapping[str, Any]) -> tuple[str, ...]:
    """The commands that made the run: training from Hydra's overrides, evaluation from its own record."""
    commands = []
    overrides = _read_text(folder / ".hydra" / "overrides.yaml")
    if overrides is not None:
        commands.append(" ".join(["python src/train.py", *map(str, yaml.safe_load(overrides) or [])]))
    recorded = evaluation.get("command") or evaluation["settings"].get("command")
    if recorded:
        commands.append(recorded if isinstance(recorded, str) else " ".join(map(str, recorded)))
    return tuple(dict.fromkeys(commands))


def _read_prompts(path: Path, rounds: pd.DataFrame) -> frozenset[tuple[str, str]]:
    """(benchmark, prompt_id) of all prompts; a prompt answered by one stop token has a text but no round."""
    if not path.is_file():
        return frozenset(zip(rounds["benchmark"], rounds["prompt_id"].astype(str), strict=True))
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return frozenset((str(line["benchmark"]), str(line["prompt_id"])) for line in lines)
