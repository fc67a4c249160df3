"""Prompts: what the target is asked; the built-in generator, JSONL files, and when two prompts are the same one.

A prompt is a conversation that ends where the target shall answer. Two prompts are the same if their user turns (and
tool results) have the same texts after ``normalised``: case, white space and a closing full stop or question mark do
not count, nor do system messages and earlier answers. The split, the mix and the decontamination go by this. Data sets
in other forms are the matter of sources.py. The module knows nothing of tokenizers or models.

    builtin_prompts(2)        # [Prompt(id="train-math-0", domain="math", ...), Prompt(id="train-code-0", ...)]
    >>> normalised("What  is\\n2 + 2 ?") == normalised("what is 2 + 2")
    True
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlab.data import builtin
from draftlab.data.files import digest, read_jsonl, resolve_path

_NOT_ASKED = ("system", "developer", "assistant")


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


def normalised(text: str) -> str:
    """``text`` as equality is judged: composed characters, without case, spacing and closing ``. , ; : ?``.

    Other signs stay, since "2 + 2" is not "2 - 2", nor "5!" the same as "5".
    """
    words = unicodedata.normalize("NFC", text).casefold().split()
    plain = " ".join(words)
    return plain.rstrip(" .,;:?") or plain


def text_of(content: Any) -> str:
    """Text of a message's content; the text parts of a list joined, "" of None."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" if isinstance(part, dict) else str(part) for part in content)
    return content if isinstance(content, str) else ""


def question(messages: Sequence[dict[str, Any]]) -> str:
    """Digest of what is asked: equal for the same prompts, as the module's docstring defines them."""
    asked = [message.get("content") for message in messages if message["role"] not in _NOT_ASKED]
    texts = [normalised(text_of(content)) for content in asked]
    return digest(texts if any(texts) else asked)  # pictures without a word are told apart by themselves


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
