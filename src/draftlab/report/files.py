"""The files of a run folder, read and checked: whatever is damaged is refused in one ValueError that says what to do.

A comparison leaves out a run that is refused here and goes on, so nothing that passes may fail later: texts are UTF-8,
what is counted is numbers, and each row has what it is known by. It knows nothing of what the numbers mean.

    >>> read_rounds(Path("outputs/demo"))        # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml

WHOLE = ("round", "proposed", "accepted", "committed")
ROUND_COLUMNS = ("temperature", "benchmark", "domain", "prompt_id", *WHOLE)
CHANCES = ("confidence", "draft_top", "expected")  # a list a round, if they are there
AGAIN = "it was damaged or changed after it was written; evaluate again"
# Numbers of a row of evaluation.json: those that must be there, and those that may be missing or null.
COUNTED = ((), ("temperature", "prompts", "stopped", "truncated"))
TIMED = (
    ("temperature",),
    ("ratio", "rounds", "draft_seconds", "verify_seconds", "plain_tokens_per_s", "speculative_tokens_per_s"),
)
CURVES = ("step", "train/loss", "val/loss", "train/accepted_length", "val/accepted_length")


def read_text(path: Path) -> str | None:
    """The text of a file, None without one. Raises ValueError where it cannot be read or is no UTF-8."""
    if not path.exists():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected a readable UTF-8 text, got: {error}; mend or remove it") from error


def read_rounds(folder: Path) -> pd.DataFrame:
    """rounds.parquet with the ROUND_COLUMNS: temperature float, WHOLE int64, names str; CHANCES in [0, 1]."""
    path = folder / "rounds.parquet"
    if not path.is_file():
        raise ValueError(
            f"{path}: expected the rounds of an evaluation, found no file; "
            f"run `python src/evaluate.py run={folder}` first"
        )
    try:
        rounds = pd.read_parquet(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"{path}: expected a Parquet table, got: {error}; {AGAIN}") from error
    missing = [column for column in ROUND_COLUMNS if column not in rounds.columns]
    if missing:
        raise ValueError(f"{path}: expected the columns {', '.join(ROUND_COLUMNS)}; missing {', '.join(missing)}")
    if rounds.empty:
        raise ValueError(f"{path}: expected at least one decode round, got none; evaluate with more prompts or tokens")
    rounds = _typed(rounds.reset_index(drop=True), path)
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
    return rounds


def read_evaluation(folder: Path) -> dict[str, Any]:
    """evaluation.json: ``settings`` (mapping), ``counts`` and ``speed`` (rows), ``command`` (text or None)."""
    path = folder / "evaluation.json"
    text = read_text(path)
    if text is None:
        raise ValueError(
            f"{path}: missing; it is written last, so the evaluation did not end; "
            f"run `python src/evaluate.py run={folder}` again"
        )
    try:
        evaluation = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got: {error}; {AGAIN}") from error
    if not isinstance(evaluation, dict) or not isinstance(evaluation.get("settings"), dict):
        found = sorted(evaluation) if isinstance(evaluation, dict) else repr(evaluation)[:60]
        raise ValueError(f"{path}: expected an object with a key 'settings' that holds an object, got {found}; {AGAIN}")
    settings = evaluation["settings"]
    drafter = settings.get("drafter")
    if isinstance(drafter, Mapping) and not _number_or_none(drafter.get("parameters")):
        raise ValueError(
            f"{path}: expected a number at settings.drafter.parameters, got {drafter['parameters']!r}; {AGAIN}"
        )
    command = evaluation.get("command") or settings.get("command")
    if isinstance(command, list):
        command = " ".join(map(str, command))
    if command is not None and not isinstance(command, str):
        raise ValueError(f"{path}: expected a text at 'command', got {command!r}; {AGAIN}")
    return {
        "settings": settings,
        "counts": _frame(evaluation, "counts", COUNTED, path),
        "speed": _frame(evaluation, "speed", TIMED, path),
        "command": command,
    }


def read_metrics(path: Path) -> pd.DataFrame | None:
    """The training curves by step; None where there are none."""
    if not path.is_file() or path.stat().st_size == 0:
        return None
    try:
        metrics = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected a table as CSV, got: {error}; mend or remove it") from error
    if "step" not in metrics.columns or metrics["step"].isna().all():
        return None
    for column in metrics.columns.intersection(CURVES):
        if not _numeric(metrics[column]):
            raise ValueError(f"{path}: expected numbers in the column {column}, got others; mend or remove it")
    return metrics.replace([np.inf, -np.inf], np.nan)  # a loss that ran away cannot be drawn, the rest of its curve can


def read_overrides(path: Path) -> list[str] | None:
    """Hydra's overrides of the training command; None where none are recorded."""
    text = read_text(path)
    if text is None:
        return None
    try:
        overrides = yaml.safe_load(text) or []
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: expected a list as YAML, got: {reason}; mend or remove it") from error
    if not isinstance(overrides, list):
        raise ValueError(f"{path}: expected a list of overrides, got {overrides!r:.60}; mend or remove it")
    return list(map(str, overrides))


def read_prompts(path: Path) -> frozenset[tuple[str, str]] | None:
    """(benchmark, prompt_id) of every line of outputs.jsonl; None without the file."""
    text = read_text(path)
    if text is None:
        return None
    prompts = set()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompts.add((str(row["benchmark"]), str(row["prompt_id"])))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path}: expected an object with benchmark and prompt_id in line {number}, got {line[:60]!r}; {AGAIN}"
            ) from error
    return frozenset(prompts)


def _typed(rounds: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The rounds with the types of :func:`read_rounds`; refused where a value has none."""
    for column in ROUND_COLUMNS:
        values = rounds[column]
        if values.isna().any():
            raise ValueError(f"{path}: expected a value in every row of {column}, got none in some; {AGAIN}")
        if column not in ("temperature", *WHOLE):
            rounds[column] = values.astype(str)
            continue
        fits = _numeric(values) and np.isfinite(values).all() and (column not in WHOLE or (values % 1 == 0).all())
        if not fits:
            kind = "whole numbers" if column in WHOLE else "numbers"
            raise ValueError(f"{path}: expected {kind} in the column {column}, got {values.iloc[0]!r} …; {AGAIN}")
        rounds[column] = values.astype(np.int64 if column in WHOLE else np.float64)
    for column in rounds.columns.intersection(CHANCES):
        given = [value for value in rounds[column] if np.ndim(value) == 1]
        try:
            flat = np.concatenate([np.asarray(value, dtype=np.float64) for value in given] or [np.zeros(0)])
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: expected lists of numbers in the column {column}; {AGAIN}") from error
        if not ((flat >= 0) & (flat <= 1)).all():
            raise ValueError(f"{path}: expected a {column} from 0 to 1 everywhere, got others; {AGAIN}")
    return rounds


def _frame(evaluation: Mapping[str, Any], key: str, numbers: tuple[tuple[str, ...], ...], path: Path) -> pd.DataFrame:
    """The rows at ``key`` with numbers where they belong, null as NaN; empty without the key."""
    needed, known = numbers
    rows = evaluation.get(key) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: expected a list of objects at '{key}', got {rows!r:.60}; {AGAIN}")
    if key == "speed" and any("ratio" not in row for row in rows):
        raise ValueError(f"{path}: expected a ratio in every row of 'speed', got a row without; {AGAIN}")
    for row in rows:
        for name in (*needed, *known):
            value = row.get(name)
            if not _number_or_none(value) or (value is None and name in needed):
                raise ValueError(f"{path}: expected a number at {key}.{name}, got {value!r}; {AGAIN}")
    frame = pd.DataFrame(rows)
    empty = [name for name in frame.columns.intersection([*needed, *known]) if frame[name].dtype == object]
    return frame.astype(dict.fromkeys(empty, np.float64))


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _number_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
