"""What an evaluation leaves on disk: one row a decode round, one line a prompt, counts by outcome.

    rounds.parquet    temperature, benchmark, domain, prompt_id, round, proposed, accepted, committed, and a number a proposed
                      token: confidence, draft_top (max p_d), expected (c*); depth (draft layers run); files of earlier
                      versions end with confidence
    outputs.jsonl     temperature, benchmark, domain, prompt_id, prompt_tokens, num_tokens, finish_reason, text
    evaluation.json   settings, counts, speed; written last: its presence means that the evaluation ended
    earlier/1, …      evaluations with other settings, each with its tables, figures and report

``accepted`` never counts the bonus or corrected token, ``committed`` always does, so both readings of accepted length
can be had (case 24). Files are replaced atomically. The module knows nothing of models.

    write_evaluation(folder, results, {"settings": …, "speed": …})
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from draftlab.data.files import read_json, write_atomically, write_json
from draftlab.decode.loop import Generation

EVALUATION = "evaluation.json"
# What belongs to one evaluation, in the order in which it is set aside: evaluation.json, the sign of a whole one, last.
FILES = ("rounds.parquet", "outputs.jsonl", "tables", "figures", "report.html", EVALUATION)
ROUNDS = pa.schema(
    [
        ("temperature", pa.float64()),
        ("benchmark", pa.string()),
        ("domain", pa.string()),
        ("prompt_id", pa.string()),
        ("round", pa.int32()),
        ("proposed", pa.int32()),
        ("accepted", pa.int32()),
        ("committed", pa.int32()),
        ("confidence", pa.list_(pa.float32())),
        ("draft_top", pa.list_(pa.float32())),
        ("expected", pa.list_(pa.float32())),
        ("depth", pa.int32()),  # draft layers run; null where drafting was not to stop early
    ]
)


@dataclass(frozen=True)
class Result:
    """One benchmark decoded at one temperature; ``outputs`` and ``rounds`` are rows of the files above."""

    temperature: float
    benchmark: str
    domain: str
    outputs: list[dict[str, Any]]
    rounds: list[dict[str, Any]]
    skipped: int  # prompts too long for the target's context

    def counts(self) -> dict[str, Any]:
        """How many answers were stopped by a stop token and truncated by the length limit."""
        reasons = [output["finish_reason"] for output in self.outputs]
        return {
            "temperature": self.temperature,
            "benchmark": self.benchmark,
            "domain": self.domain,
            "prompts": len(reasons),
            "stopped": reasons.count("stop"),
            "truncated": reasons.count("length"),
            "skipped_too_long": self.skipped,
        }

    def accepted_length(self) -> float:
        """Tokens committed a round, bonus included; NaN without a round."""
        return sum(row["committed"] for row in self.rounds) / len(self.rounds) if self.rounds else float("nan")


def rows_of(key: dict[str, Any], generation: Generation) -> list[dict[str, Any]]:
    """One row a round of ``generation``; ``key`` names temperature, benchmark, domain and prompt."""
    return [{**key, "round": i, **asdict(counted)} for i, counted in enumerate(generation.rounds)]


def write_evaluation(folder: Path, results: Sequence[Result], evaluation: dict[str, Any]) -> None:
    """Write the three files; an older evaluation.json goes first, so that it never stands beside newer rounds."""
    (folder / EVALUATION).unlink(missing_ok=True)
    rounds = [row for result in results for row in result.rounds]
    temporary = folder / ".rounds.parquet.partial"
    pq.write_table(pa.Table.from_pylist(rounds, schema=ROUNDS), temporary)
    temporary.replace(folder / "rounds.parquet")
    lines = [json.dumps(output, ensure_ascii=False) for result in results for output in result.outputs]
    write_atomically(folder / "outputs.jsonl", "".join(line + "\n" for line in lines))
    write_json(folder / EVALUATION, {**evaluation, "counts": [result.counts() for result in results]})


def read_evaluation(folder: Path) -> dict[str, Any] | None:
    """evaluation.json of a run folder; None if it holds no whole evaluation."""
    return read_json(folder / EVALUATION) if (folder / EVALUATION).is_file() else None


def held_out_rounds(
    folder: Path, drafter: Mapping[str, Any], temperature: float, sampling: Mapping[str, Any]
) -> tuple[pd.DataFrame | None, str]:
    """The rounds of an evaluation of run ``folder``, if they are of that drafter and sampled like that; else None and why not."""
    evaluation = read_evaluation(folder)
    if evaluation is None or not (folder / "rounds.parquet").is_file():
        return None, f"{folder} was not evaluated; python src/evaluate.py run={folder}"
    settings = evaluation["settings"]
    theirs = settings.get("drafter")
    digest = theirs.get("digest") if isinstance(theirs, Mapping) else None
    if digest != drafter["digest"]:
        return (
            None,
            f"the evaluation in {folder} is of another checkpoint ({digest}, not {drafter['digest']}); evaluate again",
        )
    for key, value in sampling.items():
        if settings.get(key) != value:
            return None, f"the evaluation in {folder} has {key} {settings.get(key)}, not {value}"
    if temperature not in settings["temperatures"]:
        return None, f"the evaluation in {folder} has no rounds at temperature {temperature:g}"
    return pd.read_parquet(folder / "rounds.parquet"), ""


def set_aside(folder: Path) -> Path:
    """Move the evaluation of a run folder to ``earlier/N`` and return that; one cut short by a kill is taken up again."""
    number = 1
    while (folder / "earlier" / str(number) / EVALUATION).exists():
        number += 1
    place = folder / "earlier" / str(number)
    place.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (folder / name).exists():
            (folder / name).replace(place / name)
    return place
