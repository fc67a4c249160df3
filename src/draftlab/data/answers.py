"""Answers on the disk as their writers left them: the manifest of a folder, the lines so far, and the counts of both.

    manifest = read_manifest(folder)                        # None: a JSONL file of the user's own
    counts = count_answers(folder, skipped, total=1000)

Who writes them is the matter of responses.py and remote/; what is trained on, of samples.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftlab.data.files import IDENTITY, MANIFEST, read_jsonl, read_object

RESPONSES = "responses.jsonl"
ENDS = ("stop", "length")  # finish_reason: by the target, or by the limit


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder of answers; None where there is none (a JSONL file of the user's own).

    Raises:
        ValueError: the answers are unfinished, or the manifest is damaged.
    """
    if (folder / MANIFEST).exists():
        manifest = read_object(folder / MANIFEST)
        if not isinstance(manifest.get("counts", {}), dict):
            raise ValueError(
                f"{folder / MANIFEST}: expected counts by outcome, got {manifest['counts']!r:.100}; it was damaged"
            )
        return manifest
    if (folder / IDENTITY).exists():
        raise ValueError(
            f"the answers in {folder} are unfinished; give the same prepare command again to go on, "
            "or with max_minutes=0 to close the folder with what is there"
        )
    return None


def read_answers(path: Path) -> Iterator[dict[str, Any]]:
    """The answers that a file of ours holds so far; none without one.

    Raises:
        ValueError: a line that no writer of answers left, with its number.
    """
    for number, record in read_jsonl(path) if path.exists() and path.stat().st_size else ():
        messages, tokens = record.get("messages"), record.get("completion_tokens")
        told = isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)
        texts = (
            record.get("id"),
            record.get("domain"),
            record.get("finish_reason"),
            messages[-1].get("content") if told else None,
        )
        if not all(isinstance(text, str) for text in texts) or texts[2] not in ENDS or type(tokens) is not int:
            raise ValueError(
                f"{path}, line {number}: not an answer that this command wrote (id, domain, messages, finish_reason, "
                "completion_tokens); the file was changed: restore it, or give another folder"
            )
        yield record


def count_answers(folder: Path, skipped: Counter, total: int) -> dict[str, Any]:
    """Counts of the answers that ``folder`` holds, by outcome; ``not_reached`` is what is missing of ``total``."""
    outcomes, domains, tokens = Counter(), Counter(), 0
    path = folder / RESPONSES
    for record in read_answers(path):
        outcomes[record["finish_reason"]] += 1
        domains[record["domain"]] += 1
        tokens += record["completion_tokens"]
    return {
        "answers": outcomes.total(),
        "stopped": outcomes["stop"],
        "truncated": outcomes["length"],
        "skipped": dict(skipped),
        "not_reached": total - outcomes.total(),
        "domains": dict(sorted(domains.items())),
        "completion_tokens": tokens,
    }
