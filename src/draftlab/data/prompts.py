"""Prompts and where they come from: the built-in generator, a local JSONL file, or a ``datasets`` set from disk or the
hub.

A prompt is a conversation that ends where the target shall answer. The module knows nothing of tokenizers or models.

    builtin_prompts(2)        # [Prompt(id="train-math-0", domain="math", ...), Prompt(id="train-code-0", ...)]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlab.data import builtin
from draftlab.data.files import digest, read_jsonl, resolve_path

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "user": "user",
    "system": "system",
    "tool": "tool",
}


@dataclass(frozen=True)
class Prompt:
    """Messages for the target to answer, and the domain by which results are split."""

    id: str
    domain: str
    messages: tuple[dict[str, Any], ...]
    tools: Any = None


def builtin_prompts(count: int | None = 3000, seed: int = 0, split: str = "train") -> list[Prompt]:
    """The first ``count`` prompts of the built-in generator (all of a domain-balanced stream with None).

    Math, code and chat take turns, so that any prefix is balanced. No held-out prompt occurs in training, whatever the
    seeds.

    Raises:
        ValueError: an unknown split, or more prompts than there are.
    """
    if split not in builtin.SPLITS:
        raise ValueError(f"prompts.split must be one of {', '.join(builtin.SPLITS)}, got {split!r}")
    if count is not None and count < 1:
        raise ValueError(f"prompts.count must be at least 1, got {count}")
    prompts = list(itertools.islice(_builtin_stream(seed, split), count))
    if count is not None and len(prompts) < count:
        raise ValueError(
            f"the built-in generator has {len(prompts)} {split} prompts for seed {seed}, fewer than {count}"
        )
    return prompts


def jsonl_prompts(path: str | Path | None = None, domain: str = "chat", first_turn: bool = True) -> list[Prompt]:
    """Prompts of a JSONL file whose lines hold ``messages`` (roles and contents) or ``turns`` (user texts).

    Args:
        path: the file; ``project:…`` lies in the project's folder.
        domain: for lines that name none.
        first_turn: of ``turns``, keep the first only, since later ones wait for an answer.

    Raises:
        ValueError: no file, an empty one, or a malformed line, with its number.
    """
    if path is None:
        raise ValueError("prompts.path is not set: expected a JSONL file with one prompt a line")
    path = resolve_path(path)
    prompts = []
    for number, record in read_jsonl(path):
        try:
            prompts.append(prompt_from(record, f"{path.stem}-{number - 1}", domain, first_turn))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return prompts


def datasets_prompts(
    path: str | None = None,
    name: str | None = None,
    split: str = "train",
    column: str = "messages",
    domain: str = "chat",
    domain_column: str | None = None,
) -> list[Prompt]:
    """Prompts of a ``datasets`` set: a folder written by ``save_to_disk``, or a hub id.

    Args:
        path: folder or hub id.
        name: the hub configuration, if it has several.
        split: which split, or a part of one on the hub: ``train[:20000]``.
        column: holds a conversation (``role``/``content`` or ``from``/``value``) or a plain text; answers are left out.
        domain: for rows without a ``domain_column``.
        domain_column: names the domain of a row.

    Raises:
        ValueError: no path, an unknown column or split, or not one usable row.
    """
    if not path:
        raise ValueError("prompts.path is not set: expected a folder written by datasets' save_to_disk, or a hub id")
    rows = _load_rows(path, name, split)
    _check_columns(rows, column, domain_column)
    prompts = []
    for index, row in enumerate(rows):
        record = {
            "id": row.get("id", f"{Path(path).name}-{index}"),
            "domain": row.get(domain_column) if domain_column else domain,
        }
        try:
            prompts.append(prompt_from({**record, "messages": _conversation(row[column])}, record["id"], domain))
        except ValueError:
            continue  # a row without a user turn has nothing to answer
    if not prompts:
        raise ValueError(f"no row of {path} has a user turn in column {column!r}")
    return prompts


def prompt_from(record: dict, default_id: str, domain: str, first_turn: bool = True) -> Prompt:
    """A prompt from one record with ``messages`` or ``turns``; what follows the last user turn is left out.

    Raises:
        ValueError: neither is there, or it is not of the right form.
    """
    if "turns" in record and "messages" not in record:
        turns = record["turns"]
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
            raise ValueError("'turns' must be a non-empty list of texts")
        if not first_turn and len(turns) > 1:
            raise ValueError("several 'turns' without answers cannot be rendered; use the first turn only")
        messages = [{"role": "user", "content": turns[0]}]
    elif "messages" in record:
        messages = _asked(record["messages"])
    else:
        raise ValueError(f"expected a field 'messages' or 'turns', got {sorted(record)}")
    own = record.get("domain")
    own = domain if own is None or (isinstance(own, float) and math.isnan(own)) else str(own)
    return Prompt(str(record.get("id", default_id)), own, tuple(messages), record.get("tools"))


def prompts_digest(prompts: list[Prompt], first: int = 256) -> str:
    """Digest of the first prompts, to recognise a source; independent of how many more are asked for."""
    return digest([[prompt.id, prompt.domain, list(prompt.messages)] for prompt in prompts[:first]])


def _builtin_stream(seed: int, split: str) -> Iterator[Prompt]:
    streams = {domain: enumerate(builtin.texts(domain, seed, split)) for domain in builtin.DOMAINS}
    while True:
        for domain, stream in streams.items():
            index, text = next(stream, (None, None))
            if text is None:
                return
            yield Prompt(f"{split}-{domain}-{index}", domain, ({"role": "user", "content": text},))


def _asked(messages: Any) -> list[dict]:
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and "role" in message for message in messages
    ):
        raise ValueError("'messages' must be a list of objects with 'role' and 'content'")
    last = max((index for index, message in enumerate(messages) if message["role"] in ("user", "tool")), default=None)
    if last is None:
        raise ValueError("'messages' has no user turn to answer")
    kept = messages[: last + 1]
    if not isinstance(kept[-1].get("content"), (str, list)) or not kept[-1]["content"]:
        raise ValueError("the last user turn has no text")
    return kept


def _conversation(value: Any) -> list[dict]:
    """Messages of a cell (``role``/``content`` or ``from``/``value`` objects, or one text) up to the first answer."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    messages = []
    for turn in value or []:
        role = turn.get("role", turn.get("from"))
        role = _ROLES.get(role, role)
        if role == "assistant":
            break
        messages.append({"role": role, "content": turn.get("content", turn.get("value"))})
    return messages


def _load_rows(path: str, name: str | None, split: str):
    import datasets  # slow to import, and needed for this source only

    folder = Path(path).expanduser()
    rows = datasets.load_from_disk(str(folder)) if folder.is_dir() else datasets.load_dataset(path, name, split=split)
    if isinstance(rows, dict):
        if split not in rows:
            raise ValueError(f"prompts.split: {path} has the splits {', '.join(rows)}, not {split!r}")
        rows = rows[split]
    return rows


def _check_columns(rows, column: str, domain_column: str | None) -> None:
    for field, wanted in (("column", column), ("domain_column", domain_column)):
        if wanted is not None and wanted not in rows.column_names:
            raise ValueError(f"prompts.{field}: no column {wanted!r}; there are {', '.join(rows.column_names)}")
