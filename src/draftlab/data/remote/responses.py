"""Answers of OpenAI-compatible servers on disk: every prompt exactly once, whatever dies in between.

The folder is that of :mod:`draftlab.data.responses`: JSONL and a manifest written last. During the run lines stand in
the order in which answers came, each group of them durable before it counts; at the end the file is put into the order
of the prompts, so that what is read does not depend on which server was fastest. A prompt is known by a digest of id and
messages; on resume those that have a line are not asked again. Its seed is made of (seed, digest), so it does not depend
on the order either. What could not be answered stands in ``errors.jsonl`` with its reason and is tried again by the next
run. The module knows nothing of HTTP.

    counts = await answer_prompts(pool, work, prompts, folder, identity)
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftlab.data.answers import RESPONSES, count_answers, read_answers
from draftlab.data.chat import Chat
from draftlab.data.files import append_lines, digest, drop_torn_line, reopen, replacing
from draftlab.data.progress import Progress
from draftlab.data.prompts import Prompt
from draftlab.data.remote.completion import Reply, Request, complete
from draftlab.data.remote.servers import Fault, Pool, Server
from draftlab.data.responses import ResponseSettings, claim_responses, seal_responses

ERRORS = "errors.jsonl"


@dataclass(frozen=True)
class Work:
    """What every request of a run shares."""

    chat: Chat
    settings: ResponseSettings
    end_tokens: dict[int, str]
    admit: Callable[[Server], Awaitable[None]]  # checks a server whose model is not known (yet, or any more)


@dataclass
class Tally:
    """What became of the prompts of this run."""

    skipped: Counter = field(default_factory=Counter)
    failed: Counter = field(default_factory=Counter)
    answered: int = 0


async def answer_prompts(
    pool: Pool, work: Work, prompts: Sequence[Prompt], folder: Path, identity: dict[str, Any]
) -> dict[str, Any]:
    """Let servers answer ``prompts``; returns the counts that also stand in the manifest.

    Raises:
        ValueError: the folder holds answers of another identity, no prompt can be answered, or no server is left.
        OSError: the disk is full; what was finished is kept.
    """
    claim_responses(folder, identity)
    path = folder / RESPONSES
    if drop_torn_line(path):
        print(f"dropped a torn last line of {path}")
    pending = list(unanswered(prompts, path))
    reopen(folder, identity)
    (folder / ERRORS).unlink(missing_ok=True)  # those prompts are among the pending ones
    tally, recorder = Tally(), Recorder(folder)
    with Progress("answers", len(prompts), len(prompts) - len(pending), "tokens") as progress:
        await _run(pool, work, pending, recorder, tally, progress)
    counts = _counts(work.chat, folder, tally, len(pending))
    if not counts["answers"] and not tally.failed and tally.skipped:
        raise ValueError(f"not one of {len(prompts)} prompts can be answered: {dict(tally.skipped)}")
    sort_answers(path, prompts)
    seal_responses(folder, identity, counts)
    return counts


def prompt_key(id: str, messages: Sequence[dict]) -> str:
    """What a prompt is known by on disk."""
    return digest([id, list(messages)])


def unanswered(prompts: Sequence[Prompt], path: Path) -> Iterator[tuple[Prompt, int]]:
    """Prompts without a line in ``path``, each with its occurrence (0 unless the very same prompt stood there before)."""
    done = Counter(_key_of(record) for record in read_answers(path))
    seen: Counter = Counter()
    for prompt in prompts:
        key = prompt_key(prompt.id, prompt.messages)
        if seen[key] >= done[key]:
            yield prompt, seen[key]
        seen[key] += 1


def request_seed(seed: int, prompt: Prompt, occurrence: int) -> int:
    """Seed of one answer, 31 bits: the same whichever server answers, and when."""
    return int(digest([seed, prompt_key(prompt.id, prompt.messages), occurrence]), 16) % 2**31


class Recorder:
    """Appends lines durably from a thread of its own turn, and nothing more after the first failure to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._waiting: list[tuple[str, dict]] = []
        self._lock, self._broken, self._news = threading.Lock(), False, asyncio.Event()

    def add(self, record: dict, file: str = RESPONSES) -> None:
        """Hand a finished record over."""
        self._waiting.append((file, record))
        self._news.set()

    async def run(self) -> None:
        """Write what is handed over until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Write what waits, in one durable append a file; a torn line of a full disk is cut off by the next run."""
        with self._lock:
            if self._broken:
                return
            group, self._waiting = self._waiting, []
            try:
                for file in (RESPONSES, ERRORS):
                    if lines := [record for name, record in group if name == file]:
                        append_lines(self.folder / file, lines)
            except BaseException:
                self._broken = True  # a further line would hide the torn one
                raise


async def _run(pool: Pool, work: Work, pending: list, recorder: Recorder, tally: Tally, progress: Progress) -> None:
    """All of ``pending`` by as many workers as servers take requests; the first error ends them all."""
    began, minutes = time.monotonic(), work.settings.max_minutes
    queue = iter(pending)

    async def worker() -> None:
        while minutes is None or time.monotonic() - began < 60 * minutes:
            prompt, occurrence = next(queue, (None, 0))
            if prompt is None:
                return
            tokens = await _answer(pool, work, prompt, occurrence, recorder, tally)
            progress.advance(1, tokens)

    writer = asyncio.create_task(recorder.run())
    workers = [asyncio.create_task(worker()) for _ in range(min(pool.capacity, len(pending)))]
    everything = asyncio.gather(*workers)
    try:
        await asyncio.wait({writer, everything}, return_when=asyncio.FIRST_COMPLETED)
        if writer.done():
            writer.result()  # it ends by an error only
        await everything
    finally:
        for task in (writer, *workers):
            task.cancel()
        await asyncio.gather(writer, *workers, return_exceptions=True)
        recorder.flush()


async def _answer(pool: Pool, work: Work, prompt: Prompt, occurrence: int, recorder: Recorder, tally: Tally) -> int:
    """Answer one prompt, or say why not; returns the number of tokens."""
    try:
        ids = work.chat.prompt_ids(prompt.messages, prompt.tools)
    except Exception:  # a template may raise anything
        tally.skipped["template_error"] += 1
        return 0
    if len(ids) > work.settings.max_prompt_tokens:
        tally.skipped["prompt_too_long"] += 1
        return 0
    request = Request(ids, work.settings.max_new_tokens, request_seed(work.settings.seed, prompt, occurrence))
    reply = await _ask(pool, work, request)
    if isinstance(reply, Fault):
        tally.failed[reply.kind] += 1
        error = {"id": prompt.id, "domain": prompt.domain, "reason": reply.kind, "detail": reply.detail}
        recorder.add(error | {"messages": list(prompt.messages)}, ERRORS)
        return 0
    record = as_record(work.chat, prompt, ids, reply)
    tally.answered += 1
    recorder.add(record)
    return record["completion_tokens"]


async def _ask(pool: Pool, work: Work, request: Request) -> Reply | Fault:
    """The answer to one request, or the last fault when its attempts are used up."""
    attempts, server = 0, None
    while True:
        server = await pool.acquire(avoid=server)
        fault: Fault | None = Fault("cancelled", "the run was stopped", final=True)
        try:
            if not server.model:
                await work.admit(server)
            reply = await complete(server, request, work.settings.sampling, work.end_tokens)
            fault = None
            return reply
        except Fault as error:
            fault = error
        finally:
            pool.release(server, fault)
        if fault.kind == "unreachable":
            server.model = ""  # what comes back there may be another model
        if fault.blameless:
            continue
        attempts += 1
        if fault.final or attempts > pool.settings.retries:
            return fault
        await asyncio.sleep(pool.pause(attempts))


def as_record(chat: Chat, prompt: Prompt, ids: list[int], reply: Reply) -> dict[str, Any]:
    """The line of an answer; token counts are the server's, else those of the text tokenised again."""
    text = chat.answer_text(ids, reply.tokens)[0] if reply.tokens else reply.text
    tokens = reply.completion_tokens
    if tokens is None:
        tokens = len(chat.tokenizer(text, add_special_tokens=False)["input_ids"]) + reply.finished
    record = {
        "id": prompt.id,
        "domain": prompt.domain,
        "messages": [*prompt.messages, {"role": "assistant", "content": text}],
        "finish_reason": "stop" if reply.finished else "length",
        "prompt_tokens": len(ids),
        "completion_tokens": tokens,
    }
    return record | ({"tools": prompt.tools} if prompt.tools is not None else {})


def sort_answers(path: Path, prompts: Sequence[Prompt]) -> None:
    """Put the lines of ``path`` into the order of ``prompts``, atomically; answers to other prompts come last."""
    if not path.exists():
        return
    places: dict[str, list[int]] = {}
    for place, prompt in enumerate(prompts):
        places.setdefault(prompt_key(prompt.id, prompt.messages), []).append(place)
    lines, offset = [], 0  # (place in the order, place in the file, length)
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                here = places.get(_key_of(json.loads(line)), ())
                lines.append((here.pop(0) if here else len(prompts), offset, len(line)))
            offset += len(line)
    if lines == (ordered := sorted(lines)):
        return
    with path.open("rb") as file, replacing(path) as out:
        for _, start, length in ordered:
            file.seek(start)
            out.write(file.read(length))


def _counts(chat: Chat, folder: Path, tally: Tally, pending: int) -> dict[str, Any]:
    """Those of the local engine, and what only servers can do."""
    counts = count_answers(folder, tally.skipped, 0)
    empty = thinking = 0
    for record in read_answers(folder / RESPONSES):
        text = record["messages"][-1]["content"]
        empty += not text.strip()
        thinking += chat.has_reasoning(text)
    failed = dict(sorted(tally.failed.items()))
    reached = tally.answered + tally.failed.total() + tally.skipped.total()
    return counts | {"not_reached": pending - reached, "failed": failed, "empty": empty, "thinking": thinking}


def _key_of(record: dict) -> str:
    return prompt_key(record["id"], record["messages"][:-1])
