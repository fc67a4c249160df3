"""Conversations as token ids and loss masks, read from answers on disk; unusable ones are skipped and counted by reason
(case 10).

    samples, counts = read_samples(folder, chat, max_length=512)

A malformed line refuses the file, with its number, since then nothing else in it can be trusted either; a sample that
merely cannot be used (NaN, empty, unknown role, template error …) costs itself only. The module knows nothing of
targets.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftlab.blocks import anchor_candidates
from draftlab.data.answers import RESPONSES, read_manifest
from draftlab.data.chat import Chat
from draftlab.data.files import digest, read_jsonl
from draftlab.data.prompts import question

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True)
class Sample:
    """One tokenised conversation; ``prompt`` and ``question`` are digests of what was asked, to the letter and as
    ``prompts.question`` has it, by which samples are split."""

    id: str
    domain: str
    prompt: str
    question: str
    input_ids: Tensor  # [T] int32
    loss_mask: Tensor  # [T] bool

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass
class SampleCounts:
    """What became of the lines of a file."""

    kept: int = 0
    cut_at_max_length: int = 0
    skipped: Counter = field(default_factory=Counter)

    def __add__(self, other: SampleCounts) -> SampleCounts:
        """Counts of two files together."""
        return SampleCounts(
            self.kept + other.kept, self.cut_at_max_length + other.cut_at_max_length, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        text = f"{self.kept} samples, {self.cut_at_max_length} of them cut at max_length"
        if self.skipped:
            text += "; skipped " + ", ".join(f"{count} ({reason})" for reason, count in sorted(self.skipped.items()))
        return text


class SkippedSample(Exception):
    """A sample that cannot be used; its message is the reason."""


def responses_file(path: Path) -> Path:
    """The JSONL file at ``path``, which is the file itself or a folder written by ``prepare.py``.

    Raises:
        ValueError: there is none, or the folder's answers are unfinished.
    """
    if path.is_dir():
        read_manifest(path)
        path = path / RESPONSES
    if not path.is_file():
        raise ValueError(
            f"data.path: no answers at {path}; expected a JSONL file or a folder with {RESPONSES}. "
            "Let the target write them first: python src/prepare.py stage=responses with the same data and target"
        )
    return path


def read_samples(path: Path, chat: Chat, max_length: int) -> tuple[list[Sample], SampleCounts]:
    """Samples of every usable conversation of a file or folder, in file order.

    Raises:
        ValueError: no file, a malformed line (with its number), another number of answers than the folder's manifest
            says, or not one usable sample (with the reasons).
    """
    file = responses_file(path)
    samples, counts = tokenise((record for _, record in read_jsonl(file)), chat, max_length)
    written = ((read_manifest(path) or {}) if path.is_dir() else {}).get("counts", {}).get("answers")
    if written is not None and written != counts.kept + counts.skipped.total():
        raise ValueError(
            f"{file} holds {counts.kept + counts.skipped.total()} answers, its manifest counts {written}: it was cut or "
            "edited; restore it, or copy the file elsewhere and give data.path=FILE to train on what is there"
        )
    if not samples:
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.skipped.most_common())
        raise ValueError(f"not one sample of {file} can be used: {reasons}")
    return samples, counts


def tokenise(records: Iterable[dict], chat: Chat, max_length: int) -> tuple[list[Sample], SampleCounts]:
    """Samples of the usable records, and the counts of all."""
    samples, counts = [], SampleCounts()
    for index, record in enumerate(records):
        try:
            sample, was_cut = to_sample(record, str(record.get("id", index)), chat, max_length)
        except SkippedSample as reason:
            counts.skipped[str(reason)] += 1
            continue
        samples.append(sample)
        counts.kept += 1
        counts.cut_at_max_length += was_cut
    return samples, counts


def to_sample(record: dict, sample_id: str, chat: Chat, max_length: int) -> tuple[Sample, bool]:
    """One sample, and whether it was cut at ``max_length`` tokens.

    Raises:
        SkippedSample: it cannot be used; the message is the reason.
    """
    messages = _messages(record.get("messages"))
    tools = _tools(record.get("tools"))
    try:
        ids, mask = chat.render(messages, finished=record.get("finish_reason") != "length", tools=tools)
    except Exception as error:  # templates raise whatever they like
        raise SkippedSample("template error") from error
    loss_mask = torch.tensor(mask[:max_length], dtype=torch.bool)
    if not anchor_candidates(loss_mask[None]).any():
        raise SkippedSample("answer beyond max_length" if len(ids) > max_length else "answer shorter than two tokens")
    domain = record.get("domain")
    sample = Sample(
        id=sample_id,
        domain=domain if isinstance(domain, str) else "all",
        prompt=digest([message.get("content") for message in messages if message["role"] != "assistant"]),
        question=question(messages),
        input_ids=torch.tensor(ids[:max_length], dtype=torch.int32),
        loss_mask=loss_mask,
    )
    return sample, len(ids) > max_length


def _messages(messages: Any) -> list[dict]:
    if _is_nan(messages):
        raise SkippedSample("NaN")
    if not isinstance(messages, list) or not messages:
        raise SkippedSample("empty")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise SkippedSample("message without role")
        if message["role"] not in ROLES:
            raise SkippedSample("unknown role")
        content = message.get("content")
        if _is_nan(content):
            raise SkippedSample("NaN")
        if not isinstance(content, (str, list, type(None))):
            raise SkippedSample("content is not text")
        if not content and not message.get("tool_calls"):
            raise SkippedSample("empty")
    if not any(message["role"] == "assistant" for message in messages):
        raise SkippedSample("no answer")
    if messages[0]["role"] == "assistant":
        raise SkippedSample("begins with an answer")
    return messages


def _tools(tools: Any) -> list | None:
    """Tools as the template wants them: a list; data sets often hold it as a JSON string."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except json.JSONDecodeError:
            raise SkippedSample("unreadable tools") from None
    if tools is None or _is_nan(tools):
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise SkippedSample("unreadable tools")
    return tools or None


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def split(samples: Sequence[Sample], val_samples: int, seed: int) -> tuple[list[int], list[int]]:
    """Indices to train on and at least ``val_samples`` held-out ones (none for 0), disjoint by question, in file order.

    Every sample is on one side, and samples that ask the same (``prompts.question``: whatever case, spacing, system
    message, file or answer) on the same side. Questions are ranked by a seeded hash and held out from the front.
    """
    ranks = [digest([seed, sample.prompt]) for sample in samples]
    first: dict[str, str] = {}  # question -> the least rank of its wordings
    for sample, rank in zip(samples, ranks, strict=True):
        first[sample.question] = min(rank, first.get(sample.question, rank))
    keys = [(first[sample.question], sample.question) for sample in samples]
    ranked = sorted(range(len(samples)), key=lambda index: (keys[index], index))
    held_out = val_samples
    while 0 < held_out < len(ranked) and keys[ranked[held_out]] == keys[ranked[held_out - 1]]:
        held_out += 1
    return sorted(ranked[held_out:]), sorted(ranked[:held_out])
