"""Prompts of any data set: its rows, in one of five forms, as what the target is asked.

    form           columns                           what is asked
    messages       messages                          turns of role/content up to the first answer
    conversations  conversations                     turns of from/value (ShareGPT) up to the first answer
    turns          turns                             the first of several user texts
    alpaca         instruction, input                the instruction, a blank line and the input if there is one
    prompt         prompt                            the text

The columns tell the form; ``form`` and ``column`` name it where they do not. Answers are left out, since the target
writes its own. A row that asks nothing is skipped and counted with its reason; a line that is not JSON refuses the
file, with its number. The module knows nothing of tokenizers or models.

    DatasetPrompts("HuggingFaceH4/ultrachat_200k", split="train_sft")()        # a list of Prompt
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from draftlab.data.progress import Progress
from draftlab.data.prompts import Prompt, prompt_from
from draftlab.data.tables import Rows, open_rows

# form -> the columns it is known by; a set with several forms is read as the first of them
FORMS = {
    "messages": ("messages", "conversation"),
    "conversations": ("conversations",),
    "turns": ("turns",),
    "alpaca": ("instruction",),
    "prompt": ("prompt", "question", "query"),
}
OPTIONAL = ("id", "system", "tools")

ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model"), "assistant"),
    **{role: role for role in ("system", "developer", "tool", "function")},
}


@dataclass(frozen=True)
class DatasetPrompts:
    """Reads prompts when called.

    Args:
        path: a hub id, a JSONL, JSON or Parquet file, a folder of such files or one written by ``save_to_disk``.
        name: the hub configuration, if the set has several.
        split: which split, or a part of one on the hub: ``train[:20000]``.
        form: ``auto`` or one of ``FORMS``.
        column: holds the conversation or the text (of alpaca, the instruction); null for the form's usual ones.
        domain: for rows without a ``domain_column``, or with nothing in it.
        domain_column: names the domain of a row.
        domains: translates what stands in ``domain_column``, as ``{gsm8k: math}``; other values stay as they are.
        limit: read only the first so many rows.

    Raises:
        ValueError: an unknown form or a limit below 1; when called: no path, a missing column (with those that there
            are), or not one row that asks something (with the reasons).
    """

    path: str | None = None
    name: str | None = None
    split: str = "train"
    form: str = "auto"
    column: str | None = None
    domain: str = "chat"
    domain_column: str | None = None
    domains: Mapping[str, str] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.form not in ("auto", *FORMS):
            raise ValueError(f"prompts.form must be one of auto, {', '.join(FORMS)}, got {self.form!r}")
        if self.limit is not None and (not isinstance(self.limit, int) or self.limit < 1):
            raise ValueError(f"prompts.limit must be null or at least 1 and whole, got {self.limit!r}")
        if self.domains and not self.domain_column:
            raise ValueError("prompts.domains translates the values of prompts.domain_column, which is not set")
        object.__setattr__(self, "domains", {str(value): domain for value, domain in (self.domains or {}).items()})

    def __call__(self) -> list[Prompt]:
        """All prompts, in the order of the rows; prints how many there are and what was skipped."""
        if not self.path:
            raise ValueError("prompts.path is not set: expected a hub id, a JSONL, JSON or Parquet file, or a folder")
        rows = open_rows(self.path, self.name, self.split)
        form, column = self._find(rows.columns)
        skipped: Counter[str] = Counter()
        prompts = list(self._read(rows, form, column, skipped))
        why = ", ".join(f"{count:,} ({reason})" for reason, count in skipped.most_common())
        if not prompts:
            raise ValueError(f"no row of {self.path} asks something in column {column!r}: {why or 'it has no rows'}")
        print(f"{self.path}: {len(prompts):,} prompts of column {column!r}; skipped {why or 0}", flush=True)
        return prompts

    def _find(self, columns: tuple[str, ...]) -> tuple[str, str]:
        """The form and the column to read, from what is set and what is there."""
        there = f"there are {', '.join(columns)}"
        for field in ("column", "domain_column"):
            wanted = getattr(self, field)
            if wanted is not None and wanted not in columns:
                raise ValueError(f"prompts.{field}: {self.path} has no column {wanted!r}; {there}")
        forms = FORMS if self.form == "auto" else {self.form: FORMS[self.form]}
        if self.column is not None:
            named = [form for form, usual in forms.items() if self.column in usual]
            return (named or [self.form])[0], self.column
        for form, usual in forms.items():
            for column in usual:
                if column in columns:
                    return form, column
        expected = " or ".join(repr(column) for usual in forms.values() for column in usual)
        raise ValueError(
            f"prompts.form={self.form}: {self.path} has no column {expected}; {there}; name one with prompts.column"
        )

    def _read(self, rows: Rows, form: str, column: str, skipped: Counter[str]) -> Iterator[Prompt]:
        wanted = dict.fromkeys((column, *OPTIONAL, *(["input"] if form == "alpaca" else [])))
        if self.domain_column:
            wanted[self.domain_column] = None
        seen: set[str] = set()
        with Progress("prompts", total=min(rows.total, self.limit or rows.total)) as progress:
            for index, row in enumerate(islice(rows.read(list(wanted)), self.limit)):
                progress.advance(1)
                try:
                    prompt = self._prompt(row, index, _messages(row, form, column))
                except ValueError as error:
                    skipped[str(error)] += 1
                    continue
                if prompt.id in seen:
                    prompt = Prompt(f"{prompt.id}-{index}", prompt.domain, prompt.messages, prompt.tools)
                seen.add(prompt.id)
                yield prompt

    def _prompt(self, row: Mapping[str, Any], index: int, messages: list[dict]) -> Prompt:
        domain = row.get(self.domain_column) if self.domain_column else None
        if domain is not None:
            domain = self.domains.get(str(domain), domain)
        default_id = f"{Path(self.path).stem if Path(self.path).suffix else Path(self.path).name}-{index}"
        row_id = default_id if row.get("id") in (None, "") else row["id"]
        record = {"id": row_id, "domain": domain, "messages": messages, "tools": _tools(row.get("tools"))}
        return prompt_from(record, default_id, self.domain)


def _messages(row: Mapping[str, Any], form: str, column: str) -> list[dict]:
    """What a row asks, as messages.

    Raises:
        ValueError: the cell is of no known form; the message is the reason.
    """
    cell = row.get(column)
    if form == "alpaca" and isinstance(cell, str) and isinstance(row.get("input"), str) and row["input"].strip():
        cell = f"{cell}\n\n{row['input']}"
    messages = _conversation(cell)
    system = row.get("system")
    if isinstance(system, str) and system.strip() and messages and messages[0]["role"] not in ("system", "developer"):
        messages = [{"role": "system", "content": system}, *messages]
    return messages


def _conversation(cell: Any) -> list[dict]:
    """Messages up to the first answer, of turns with role/content or from/value, of user texts in turn, or of one."""
    if isinstance(cell, str):
        return [{"role": "user", "content": cell}]
    if isinstance(cell, Mapping):  # one object of lists, as ``datasets`` gives a sequence of objects
        cell = [dict(zip(cell, values, strict=False)) for values in zip(*cell.values(), strict=False)]
    if not isinstance(cell, (list, tuple)) or not cell:
        raise ValueError("empty")
    if all(isinstance(turn, str) for turn in cell):
        return [{"role": "user", "content": cell[0]}]
    messages = []
    for turn in cell:
        if not isinstance(turn, Mapping):
            raise ValueError("a turn is neither an object nor a text")
        name = turn.get("role") or turn.get("from")
        role = ROLES.get(str(name).lower())
        if role is None:
            raise ValueError(f"unknown role {name!r}")
        if role == "assistant":
            break
        content = turn.get("content")
        messages.append({"role": role, "content": turn.get("value") if content is None else content})
    return messages


def _tools(tools: Any) -> Any:
    """Tools as a list; data sets often hold it as a JSON string."""
    if not isinstance(tools, str):
        return tools or None
    try:
        return (json.loads(tools) or None) if tools.strip() else None
    except json.JSONDecodeError:
        raise ValueError("unreadable tools") from None
