"""One cell of the engine table: a run's drafter in llama.cpp, with one kind of target weights.

    export -> converter -> two servers, without and with the drafter -> the prompts, in turns -> counts, times, verdicts
    the same prompts through our own loop, for its counts

Both servers answer a prompt one after the other, so that a machine that slows down slows both. What the engine does not take is
a result, too: ``loads`` is False and ``message`` is its own. The module draws no table.

    Cell(run, "f32", settings).measure(prompts)["greedy"]
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from draftlab.decode.loop import DecodeSettings, speculative_decode
from draftlab.decode.trained import open_drafter
from draftlab.engines.compare import (
    DIFFERENT,
    EQUAL,
    ROUNDING,
    ROUNDING_QUANTISED,
    TIE,
    Counts,
    break_even,
    counted,
    parting,
    verdict,
)
from draftlab.engines.files import check_weights, drafter_file, target_file
from draftlab.engines.llama import Completion, IllegalInstruction, LlamaServer, Unloadable
from draftlab.export.engines import ENGINES, method
from draftlab.export.facts import facts_of
from draftlab.export.gguf import OUTTYPES
from draftlab.export.run import GGUF, ExportSettings, export_run, pick_layout
from draftlab.sampling import Sampling
from draftlab.target import load_ends

Prompts = Mapping[str, Sequence[Sequence[int]]]  # domain -> token ids of its prompts
ENGINE, CONTEXT = "llama.cpp", 64  # its key; positions beyond prompt, answer and block
NO_REPACK = "-nr"  # weights stay as the file has them, so that kernels for them alone (AMX) are not used


@dataclass(frozen=True)
class CellSettings:
    """How cells are measured.

    Args:
        server, converter: llama.cpp's programs. server_arguments: more words for both servers.
        draft_weights: of the drafter's file; None: those of the target, f16 beside a quantised one.
        max_new_tokens: of every answer. threads: of the servers. checkpoint: best, last, or a file.
        device: of our own loop; batch_size: its rows.
    """

    server: Path
    converter: Path
    max_new_tokens: int
    threads: int | None = None
    checkpoint: str = "best"
    device: str = "auto"
    server_arguments: tuple[str, ...] = ()
    draft_weights: str | None = None
    batch_size: int = 8

    @property
    def num_threads(self) -> int:
        """Threads of a server: those asked for, else all that this process may use."""
        return self.threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


class Cell:
    """A run with one kind of weights and one length of drafts; refusals come before anything is measured.

    Args:
        drafted: tokens of a draft, as the engine is told; None: the block that the drafter was trained on.

    Raises:
        ValueError: no run, weights that are none, or a draft longer than the block.
    """

    def __init__(self, run: Path, weights: str, settings: CellSettings, drafted: int | None = None) -> None:
        self.run, self.weights, self.settings = run, weights, settings
        if settings.draft_weights not in (None, *OUTTYPES):
            raise ValueError(
                f"draft_weights: expected {', '.join(OUTTYPES)} or null, got {settings.draft_weights!r}; they are those of the "
                "drafter's file"
            )
        self.trained = open_drafter(run, settings.checkpoint)
        self.spec = self.trained.drafter.spec
        check_weights(weights, self.spec.path)
        self.trained.drafter.attach(load_ends(self.spec))
        self.facts = facts_of(self.trained.drafter)
        self.drafted = check_drafted(drafted, self.facts.block_size)
        self.format, self.refusal = None, None  # the latter: why no format takes this drafter
        try:
            self.format, _ = pick_layout(GGUF, self.facts)
        except ValueError as error:
            self.refusal = str(error)
        default = weights if weights in OUTTYPES else "f16"
        self.draft_weights = settings.draft_weights or default

    @property
    def label(self) -> str:
        """The target's weights, by their name without a folder."""
        return self.weights if self.weights in OUTTYPES else target_file(self.spec, self.weights, Path()).stem

    @property
    def name(self) -> str:
        """Of the result's file."""
        return f"{ENGINE}-{self.label}-{self.draft_weights}-{self.drafted}"

    def measure(self, prompts: Prompts) -> dict[str, Any]:
        """The result in plain types."""
        if self.refusal:
            return {**self._described(prompts), "objections": [self.refusal], "loads": False, "message": self.refusal}
        objections = ENGINES[ENGINE].objections(self.facts, self.format)
        result = {**self._described(prompts), "objections": objections, "loads": True, "message": None}
        with tempfile.TemporaryDirectory(prefix="draftlab-engine-") as work:
            try:
                served, answers = self._served_somehow(prompts, Path(work))
            except (Unloadable, ValueError) as error:
                if isinstance(error, ValueError) and "converter failed" not in str(error):
                    raise
                return result | {"loads": False, "message": last_line(str(error))}
        return result | served | {"ours": self._ours(prompts, answers)}

    def _described(self, prompts: Prompts) -> dict[str, Any]:
        facts = self.facts
        return {
            "engine": ENGINE,
            "weights": self.label,
            "draft_weights": self.draft_weights,
            "drafted": self.drafted,
            "run": self.run.resolve().name,
            "family": facts.family,
            "head": facts.head,
            "format": self.format,
            "block_size": facts.block_size,
            "target": self.spec.name,
            "drafter": self.trained.identity["digest"],
            "max_new_tokens": self.settings.max_new_tokens,
            "threads": self.settings.num_threads,
            "server_arguments": list(self.settings.server_arguments),
            "prompts": {domain: len(given) for domain, given in prompts.items()},
        }

    def _served_somehow(self, prompts: Prompts, work: Path) -> tuple[dict[str, Any], dict[str, list]]:
        """:meth:`_served`; once more without repacked weights where this machine does not run the kernels for them."""
        words = list(self.settings.server_arguments)
        settings = ExportSettings(self.format, unfinished=True)
        exported = export_run(self.run, settings, work / "drafter", self.settings.checkpoint)
        draft = drafter_file(exported, self.spec, self.draft_weights, self.settings.converter)
        try:
            return self._served(prompts, draft, work, words)
        except IllegalInstruction as error:
            if NO_REPACK in words:
                raise
            print(f"llama-server: {error}; once more with {NO_REPACK}", flush=True)
            served, answers = self._served(prompts, draft, work, [*words, NO_REPACK])
            return served | {"server_arguments": [*words, NO_REPACK], "without_arguments": str(error)}, answers

    def _served(
        self, prompts: Prompts, draft: Path, work: Path, words: list[str]
    ) -> tuple[dict[str, Any], dict[str, list]]:
        """What the engine did, in plain types, and its answers without the drafter by domain."""
        target = target_file(self.spec, self.weights, self.settings.converter)
        longest = max(len(ids) for given in prompts.values() for ids in given)
        context = longest + self.settings.max_new_tokens + self.facts.block_size + CONTEXT
        plain_words = [*("-m", str(target), "-c", str(context), "-np", "1", "-t", str(self.settings.num_threads))]
        plain_words += ["-ctk", "f32", "-ctv", "f32", "--cache-ram", "0", "-lv", "4"]
        plain_words += words
        kind = ["-md", str(draft), "--spec-type", f"draft-{method(self.facts)}"]
        kind += ["--spec-draft-n-max", str(self.drafted), "--spec-draft-p-min", "0"]
        kind += ["-ctkd", "f32", "-ctvd", "f32"]
        with ExitStack() as stack:
            plain = stack.enter_context(LlamaServer(self.settings.server, plain_words, work / "plain.log"))
            drafting = stack.enter_context(LlamaServer(self.settings.server, plain_words + kind, work / "draft.log"))
            answers = answer(plain, drafting, prompts, self.settings.max_new_tokens)
            rounding = ROUNDING.get(self.weights, ROUNDING_QUANTISED)
            verdicts = {domain: judge(plain, prompts[domain], pairs, rounding) for domain, pairs in answers.items()}
            times = drafting.drafting()
            version = plain.version()
        result = {"version": version, **summarise(answers, verdicts), "times_ms": times_of(answers, times)}
        return result, {domain: [plain.tokens for plain, _ in pairs] for domain, pairs in answers.items()}

    def _ours(self, prompts: Prompts, answers: Mapping[str, list]) -> dict[str, Any]:
        """Counts of our own loop, by domain, and how many answers are the engine's to the token."""
        target = self.trained.load_target(self.settings.device)
        drafter = self.trained.drafter
        drafter.block = replace(drafter.block, block_size=self.drafted)  # an engine's shorter draft is a shorter block
        limit = self.settings.max_new_tokens
        settings = DecodeSettings(limit, Sampling(0.0), target.eos_token_ids, self.settings.batch_size)
        domains, same, total = {}, 0, Counts()
        for domain, given in prompts.items():
            generations = speculative_decode(target, drafter, [list(ids) for ids in given], settings)
            counts = sum((counted(g.rounds, self.drafted, limit) for g in generations), Counts())
            domains[domain], total = counts.accepted_length, total + counts
            same += sum(tuple(g.tokens) == theirs for g, theirs in zip(generations, answers[domain], strict=True))
        return {"accepted_length": total.accepted_length, "domains": domains, "same_answers": same}


def check_drafted(drafted: int | None, block_size: int) -> int:
    """Tokens of a draft; None is the whole block.

    Raises:
        ValueError: none, or more than the block has.
    """
    if drafted is None:
        return block_size
    if isinstance(drafted, bool) or not isinstance(drafted, int) or not 1 <= drafted <= block_size:
        raise ValueError(f"draft_tokens: expected 1 to {block_size} (the drafter's block) or null, got {drafted!r}")
    return drafted


def answer(plain: LlamaServer, drafting: LlamaServer, prompts: Prompts, limit: int) -> dict[str, list]:
    """Pairs of completions (without, with the drafter) by domain; the two take turns, after a warm-up that is not counted."""
    first = next(iter(prompts.values()))[0]
    for server in (plain, drafting):
        server.complete(first, min(8, limit))
    found: dict[str, list[tuple[Completion, Completion]]] = {}
    for domain, given in prompts.items():
        found[domain] = [(plain.complete(ids, limit), drafting.complete(ids, limit)) for ids in given]
    return found


def judge(
    plain: LlamaServer, prompts: Sequence[Sequence[int]], pairs: Sequence, rounding: float
) -> list[dict[str, Any]]:
    """Equal, tie or different for every pair of answers; where they part, with position and lead of the best token."""
    verdicts = []
    for ids, (without, drafted) in zip(prompts, pairs, strict=True):
        k = parting(without.tokens, drafted.tokens)
        if k is None:
            verdicts.append({"verdict": EQUAL})
            continue
        gap, best = plain.gap([*ids, *without.tokens[:k]])
        chosen = [side.tokens[k] if k < len(side.tokens) else None for side in (without, drafted)]
        verdicts.append({"verdict": verdict(gap, best, chosen, rounding), "position": k, "gap": gap})
    return verdicts


def summarise(answers: Mapping[str, Sequence], verdicts: Mapping[str, Sequence]) -> dict[str, Any]:
    """Verdicts, accepted length and speed (medians over prompts), by domain and of all."""
    every = {"all": [pair for pairs in answers.values() for pair in pairs], **answers}
    lengths, speed = {}, {}
    for domain, pairs in every.items():
        rates = [tuple(len(side.tokens) / side.seconds for side in pair) for pair in pairs]
        plain, drafted = (median(side) for side in zip(*rates, strict=True))
        speed[domain] = {"plain": plain, "drafted": drafted, "ratio": median(d / p for p, d in rates)}
        counts = sum((Counts(d.passes, d.accepted) for _, d in pairs), Counts())
        lengths[domain] = counts.accepted_length
    flat = [each for given in verdicts.values() for each in given]
    counts = {name: sum(each["verdict"] == name for each in flat) for name in (EQUAL, TIE, DIFFERENT)}
    parted = [each for each in flat if each["verdict"] != EQUAL]
    theirs = {"accepted_length": lengths.pop("all"), "domains": lengths}
    return {"greedy": {**counts, "parted": parted}, "theirs": theirs, "tokens_per_s": speed}


def times_of(answers: Mapping[str, Sequence], drafts: Sequence[tuple[int, float]]) -> dict[str, float | None]:
    """Milliseconds of a plain token, of drafting and of the rest of a round, and the accepted length that pays for them.

    ``drafts`` are how often an answer was drafted for, and the seconds that took. All are medians over prompts: a machine
    that others use now and then stops for a moment. The first token of an answer comes from reading the prompt; the rest of a
    round is the target's pass over the draft and what it tells the drafter of it.
    """
    pairs = [pair for given in answers.values() for pair in given]
    plain = median(p.seconds / max(1, len(p.tokens) - 1) for p, _ in pairs) * 1000
    rounds = [d.seconds / d.passes for _, d in pairs if d.passes]
    drafted = [seconds / times for times, seconds in drafts if times]
    if not rounds or not drafted:
        return {"plain": plain, "draft": None, "verify": None, "pays_from": None}
    draft = median(drafted) * 1000
    verify = median(rounds) * 1000 - draft
    return {"plain": plain, "draft": draft, "verify": verify, "pays_from": break_even(plain, draft, verify)}


def last_line(message: str) -> str:
    """The line that names the cause: the last one of a converter's traceback, without advice behind it."""
    lines = [
        line.strip() for line in message.splitlines() if line.strip() and not line.startswith("It needs the package")
    ]
    return lines[-1]
