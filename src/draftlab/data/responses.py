"""Answers written by the target, as JSONL with a manifest: resumable at any moment, the same result however often it
stops.

Prompts are cut into windows, each sorted by length and cut into batches; batch j is sampled with a seed made of (seed,
j), so a batch comes out the same whenever it runs. Its lines are appended in one durable write; on resume the file is
cut back to whole batches (case 13). ``manifest.json`` is written last: a folder with it is complete. A folder begun
with another identity (target, template, sampling, prompts …) is refused, naming the key. The module knows nothing of
how tokens are generated.

    counts = write_responses(target.generate, chat, prompts, folder, ResponseSettings(), identity)
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from draftlab.data.answers import RESPONSES, count_answers, read_answers
from draftlab.data.chat import Chat
from draftlab.data.files import (
    IDENTITY,
    MANIFEST,
    append_lines,
    claim,
    drop_torn_line,
    read_object,
    reopen,
    seal,
    write_json,
)
from draftlab.data.progress import Progress
from draftlab.data.prompts import Prompt, prompts_digest
from draftlab.sampling import Sampling
from draftlab.target.spec import TargetSpec
from draftlab.target.weights import torch_dtype

PROMPTS = "prompts.json"  # what became of the prompts before they were asked; the manifest takes it up

# generate(prompts, sampling=…, max_new_tokens=…, seed=…) -> new tokens of every prompt, its end token included
Generate = Callable[..., list[list[int]]]


@dataclass(frozen=True)
class ResponseSettings:
    """How answers are written.

    Args:
        sampling: law of the tokens.
        max_new_tokens: an answer is cut there and marked ``finish_reason: length``.
        batch_size: prompts answered together.
        seed: of all draws.
        max_prompt_tokens: longer prompts are skipped and counted.
        window_batches: prompts are sorted by length within so many batches: little padding, and any prefix is mixed.
        max_minutes: stop after the batch that ends later than this; the same command goes on. None: no limit.

    Raises:
        ValueError: a value outside its range.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 512
    batch_size: int = 16
    seed: int = 0
    max_prompt_tokens: int = 2048
    window_batches: int = 8
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch_size", "max_prompt_tokens", "window_batches"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"responses.{name} must be at least 1 and whole, got {value!r}")
        if self.max_minutes is not None and self.max_minutes < 0:
            raise ValueError(f"responses.max_minutes must be null or at least 0, got {self.max_minutes}")

    def within(self, spec: TargetSpec) -> ResponseSettings:
        """The same for the positions of ``spec``: prompts that with their answer would exceed them count as too long.

        Raises:
            ValueError: answers that leave no position for a prompt.
        """
        room = spec.max_position - self.max_new_tokens
        if room < 1:
            raise ValueError(
                f"responses.max_new_tokens {self.max_new_tokens} leaves no room for a prompt: {spec.name} has "
                f"{spec.max_position} positions; make it smaller"
            )
        return replace(self, max_prompt_tokens=min(self.max_prompt_tokens, room))


@dataclass(frozen=True)
class _Job:
    """One rendered prompt."""

    prompt: Prompt
    ids: list[int]


def responses_identity(chat: Chat, prompts: list[Prompt], settings: ResponseSettings, target: dict) -> dict:
    """What must agree for two runs to write the same answers; how many of the prompts are answered is left open."""
    sampled = {key: value for key, value in asdict(settings).items() if key != "max_minutes"}
    return {
        "format": 1,
        "target": target,
        "thinking": chat.thinking,
        "template": chat.template_hash,
        **sampled,
        "prompts": prompts_digest(prompts),
    }


def write_responses(
    generate: Generate,
    chat: Chat,
    prompts: Sequence[Prompt],
    folder: Path,
    settings: ResponseSettings,
    identity: dict[str, Any],
) -> dict[str, Any]:
    """Let the target answer ``prompts``; returns the counts that also stand in the manifest.

    Raises:
        ValueError: the folder holds answers of another identity, or not one prompt can be answered.
    """
    claim_responses(folder, identity)
    jobs, skipped = _render(chat, prompts, settings)
    if not jobs:
        raise ValueError(f"not one of {len(prompts)} prompts can be answered: {dict(skipped)}")
    batches = list(_batches(jobs, settings))
    done = _finished_batches(folder / RESPONSES, batches)
    reopen(folder, identity)
    began = time.monotonic()
    with Progress("answers", total=len(jobs), done=sum(map(len, batches[:done])), unit="tokens") as progress:
        for index in range(done, len(batches)):
            if settings.max_minutes is not None and time.monotonic() - began >= 60 * settings.max_minutes:
                break
            records = _answer(generate, chat, batches[index], settings, index)
            append_lines(folder / RESPONSES, records)
            progress.advance(len(records), sum(record["completion_tokens"] for record in records))
    counts = count_answers(folder, skipped, len(jobs))
    seal_responses(folder, identity, counts)
    return counts


def target_identity(spec: TargetSpec, device: str) -> dict[str, str | None]:
    """Who writes the answers; of a local folder only the name, since a manifest travels and a path does not."""
    source = Path(spec.path).name if Path(spec.path).is_dir() else spec.path
    dtype = str(torch_dtype(spec, device)).removeprefix("torch.")
    return {"name": spec.name, "source": source, "revision": spec.revision, "dtype": dtype}


def claim_responses(folder: Path, identity: dict) -> None:
    """Make the folder ours, or refuse one that holds answers of another identity or somebody's own file."""
    known = (folder / MANIFEST).exists() or (folder / IDENTITY).exists()
    if not known and (folder / RESPONSES).exists():
        raise ValueError(f"{folder / RESPONSES} has no manifest, so it is not ours to append to; give another folder")
    claim(folder, identity, "answers", "data.path")


def note_prompts(folder: Path, decontamination: dict[str, Any] | None) -> None:
    """Keep in ``folder`` which prompts were dropped before the others are asked, for the manifest; None for no check."""
    if decontamination is not None:
        write_json(folder / PROMPTS, {"decontamination": decontamination})


def _render(chat: Chat, prompts: Sequence[Prompt], settings: ResponseSettings) -> tuple[list[_Job], Counter]:
    jobs, skipped = [], Counter()
    for prompt in prompts:
        try:
            ids = chat.prompt_ids(prompt.messages, prompt.tools)
        except Exception:  # a template may raise anything
            skipped["template_error"] += 1
            continue
        if len(ids) > settings.max_prompt_tokens:
            skipped["prompt_too_long"] += 1
        else:
            jobs.append(_Job(prompt, ids))
    return jobs, skipped


def _batches(jobs: list[_Job], settings: ResponseSettings) -> Iterator[list[_Job]]:
    """Batches of similar prompt length; windows keep their order, so any prefix of the file is mixed."""
    window = settings.batch_size * settings.window_batches
    for start in range(0, len(jobs), window):
        ordered = sorted(jobs[start : start + window], key=lambda job: len(job.ids))
        for first in range(0, len(ordered), settings.batch_size):
            yield ordered[first : first + settings.batch_size]


def _finished_batches(path: Path, batches: list[list[_Job]]) -> int:
    """How many batches the file holds whole and in order; what comes after them is cut off."""
    if drop_torn_line(path):
        print(f"dropped a torn last line of {path}")
    found = [record["id"] for record in read_answers(path)]
    done, position = 0, 0
    while done < len(batches):
        wanted = [job.prompt.id for job in batches[done]]
        if found[position : position + len(wanted)] != wanted:
            break
        done, position = done + 1, position + len(wanted)
    if position < len(found):
        _keep_lines(path, position)
    return done


def _keep_lines(path: Path, count: int) -> None:
    with path.open("rb") as file:
        for _ in range(count):
            file.readline()
        size = file.tell()
    os.truncate(path, size)


def _answer(generate: Generate, chat: Chat, batch: list[_Job], settings: ResponseSettings, index: int) -> list[dict]:
    answers = generate(
        [job.ids for job in batch],
        sampling=settings.sampling,
        max_new_tokens=settings.max_new_tokens,
        seed=settings.seed * 1_000_003 + index,
    )
    return [_record(chat, job, tokens) for job, tokens in zip(batch, answers, strict=True)]


def _record(chat: Chat, job: _Job, tokens: list[int]) -> dict:
    text, finished = chat.answer_text(job.ids, tokens)
    record = {
        "id": job.prompt.id,
        "domain": job.prompt.domain,
        "messages": [*job.prompt.messages, {"role": "assistant", "content": text}],
        "finish_reason": "stop" if finished else "length",
        "prompt_tokens": len(job.ids),
        "completion_tokens": len(tokens),
    }
    return record | ({"tools": job.prompt.tools} if job.prompt.tools is not None else {})


def seal_responses(folder: Path, identity: dict[str, Any], counts: dict[str, Any]) -> None:
    """Write the manifest of a finished folder, with what was noted of its prompts."""
    noted = {"prompts": read_object(folder / PROMPTS)} if (folder / PROMPTS).exists() else {}
    seal(folder, {"identity": identity, "counts": counts, **noted})
