"""Decontamination: prompts that stand in evaluation prompts, or share a run of words with one, are dropped and counted.

A message of a prompt is contaminated if it equals an evaluation turn (kind ``exact``, after ``prompts.normalised``) or
shares ``ngram`` words in a row with one (kind ``ngram``; words are letters and digits, a Chinese or Japanese sign is a
word of its own). Shorter evaluation turns can only be found by equality. Instructions are not questions: words with
which all turns of a benchmark begin or end ("Please reason step by step …") are set aside, the question without them
counts as a turn too, and runs that more than ``common`` evaluation prompts share are left out.

The built-in held-out prompts are looked for by equality only: their templates are those of the training prompts, whose
fillers differ by construction.

Looking is linear in the words: with s = (n + 1) // 2, a shared run of n words holds, at a multiple of s, a whole *seed*
of n + 1 - s words, so only every s-th seed is looked up, and runs only around a seed that is known.

    clean = Decontaminator(prompts_dir="benchmarks")
    kept, report = clean(prompts)
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftlab.data.files import digest, read_jsonl, resolve_path
from draftlab.data.progress import Progress
from draftlab.data.prompts import Prompt, builtin_prompts, normalised, text_of

BUILTIN = "built-in held-out"
EXACT, NGRAM = "exact", "ngram"
EXAMPLES = 3  # ids named of each benchmark
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
_AFFIX_WORDS, _AFFIX_TURNS = 4, 8  # fewer words, or words of fewer turns, may agree by chance


class Decontaminator:
    """Knows the evaluation prompts and drops what is among them.

    Args:
        prompts_dir: folder of JSONL files with ``turns`` or ``messages``, one a benchmark; None for none.
        builtin_heldout: so many of the built-in held-out prompts are looked for as well.
        ngram: words in a row.
        common: runs that more evaluation prompts share are instructions.

    Raises:
        ValueError: a value outside its range, no such folder, no JSONL in it, or a malformed line, with its number.
    """

    def __init__(
        self, prompts_dir: str | None = None, builtin_heldout: int = 0, ngram: int = 13, common: int = 10
    ) -> None:
        for name, value, least in (
            ("builtin_heldout", builtin_heldout, 0),
            ("ngram", ngram, 1),
            ("common", common, 1),
        ):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"decontaminate.{name} must be at least {least} and whole, got {value!r}")
        benchmarks = read_benchmarks(resolve_path(prompts_dir)) if prompts_dir else {}
        heldout = builtin_prompts(builtin_heldout, split="heldout") if builtin_heldout else []
        equal = {BUILTIN: [[message["content"] for message in prompt.messages] for prompt in heldout]}
        self.index = EvaluationIndex(benchmarks, ngram, common, equal if heldout else {})
        self.sizes = {name: len(turns) for name, turns in benchmarks.items()} | (
            {BUILTIN: len(heldout)} if heldout else {}
        )
        # What must agree for two runs to keep the same prompts; nothing where nothing is looked for.
        self.identity = (
            {"decontaminate": {"ngram": ngram, "common": common, "prompts": digest([benchmarks, equal])}}
            if self.sizes
            else {}
        )

    def __call__(self, prompts: Sequence[Prompt]) -> tuple[list[Prompt], dict[str, Any] | None]:
        """The prompts to keep, in order, and the counts; prints them. The report is None if nothing is looked for.

        Raises:
            ValueError: not one prompt is left.
        """
        if not self.sizes:
            print("prompts are not compared with evaluation prompts: decontaminate.prompts_dir is not set", flush=True)
            return list(prompts), None
        kept, found = [], Found()
        with Progress("decontamination", total=len(prompts), unit="prompts") as progress:
            for prompt in prompts:
                hit = self.index.find(text_of(message.get("content")) for message in prompt.messages)
                if hit is None:
                    kept.append(prompt)
                else:
                    found.add(*hit, prompt.id)
                progress.advance(1, 1)
        report = self._report(len(prompts), len(kept), found)
        print(told(report), flush=True)
        if not kept:
            raise ValueError("decontaminate: every prompt stands in the evaluation prompts; there is nothing to answer")
        return kept, report

    def _report(self, checked: int, kept: int, found: Found) -> dict[str, Any]:
        return {
            "ngram": self.index.ngram,
            "common": self.index.common,
            "checked": checked,
            "removed": checked - kept,
            "benchmarks": {
                name: {"prompts": size}
                | {kind: found.counts[name, kind] for kind in (EXACT, NGRAM)}
                | {"examples": found.examples.get(name, [])}
                for name, size in self.sizes.items()
            },
        }


@dataclass
class Found:
    """Dropped prompts by benchmark and kind; each counts once, for the first that it was found in."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, benchmark: str, kind: str, prompt_id: str) -> None:
        """Count one prompt."""
        self.counts[benchmark, kind] += 1
        ids = self.examples.setdefault(benchmark, [])
        if len(ids) < EXAMPLES:
            ids.append(prompt_id)


class EvaluationIndex:
    """Evaluation turns by hash: whole, and cut into runs of ``ngram`` words.

    Args:
        benchmarks: name -> for each of its prompts, the turns.
        ngram: words of a run, n.
        common: runs of more prompts than this are left out.
        equal: further benchmarks that are looked for by equality only.
    """

    def __init__(
        self,
        benchmarks: Mapping[str, Sequence[Sequence[str]]],
        ngram: int,
        common: int,
        equal: Mapping[str, Sequence[Sequence[str]]] | None = None,
    ) -> None:
        self.ngram, self.common, self.stride = ngram, common, (ngram + 1) // 2
        self.seed_words = ngram + 1 - self.stride
        self.exact: dict[str, str] = {}  # normalised turn -> benchmark
        self.runs: dict[tuple[str, ...], str] = {}  # n words -> benchmark
        sharers: Counter[tuple[str, ...]] = Counter()
        for name, prompts in benchmarks.items():
            for whole, cores in _questions(prompts):
                new = [core for core in cores if core not in self.exact]
                for text in (*whole, *cores):
                    self.exact.setdefault(text, name)
                runs = {run for core in new for run in _runs(_WORD.findall(core), ngram)}
                sharers.update(runs)
                for run in runs:
                    self.runs.setdefault(run, name)
        for name, prompts in (equal or {}).items():
            for turn in (turn for turns in prompts for turn in turns):
                self.exact.setdefault(normalised(turn), name)
        self.exact.pop("", None)
        for run in [run for run, count in sharers.items() if count > common]:
            del self.runs[run]
        self.seeds = {
            run[start : start + self.seed_words] for run in self.runs for start in range(ngram - self.seed_words + 1)
        }

    def find(self, texts: Iterable[str]) -> tuple[str, str] | None:
        """Benchmark and kind of the first of ``texts`` that is known, equality before runs; None if none is."""
        plain = [normalised(text) for text in texts]
        for text in plain:
            if text in self.exact:
                return self.exact[text], EXACT
        for text in plain:
            if benchmark := self._shared_run(_WORD.findall(text)):
                return benchmark, NGRAM
        return None

    def _shared_run(self, words: list[str]) -> str | None:
        size, last = self.seed_words, len(words) - self.ngram
        if last < 0:
            return None
        seeds, runs = self.seeds, self.runs
        for start in range(0, len(words) - size + 1, self.stride):
            if tuple(words[start : start + size]) in seeds:
                for first in range(max(0, start - self.stride + 1), min(start, last) + 1):
                    if benchmark := runs.get(tuple(words[first : first + self.ngram])):
                        return benchmark
        return None


def read_benchmarks(folder: Path) -> dict[str, list[list[str]]]:
    """Turns of every prompt of every ``*.jsonl`` in ``folder``, by the file's stem; all user turns, not the first only.

    Raises:
        ValueError: no such folder, no JSONL in it, an empty file, or a malformed line, with its number.
    """
    if not folder.is_dir():
        raise ValueError(f"decontaminate.prompts_dir: expected a folder of JSONL files, found none at {folder}")
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise ValueError(
            f'decontaminate.prompts_dir: no *.jsonl in {folder}; expected lines {{"id": …, "turns": [text]}}'
        )
    return {path.stem: [_turns(record, path, number) for number, record in read_jsonl(path)] for path in paths}


def told(report: Mapping[str, Any]) -> str:
    """The counts of a report in words, a line for every benchmark."""
    sizes = [counts["prompts"] for counts in report["benchmarks"].values()]
    lines = [
        f"decontamination: {report['removed']:,} of {report['checked']:,} prompts dropped, compared with {sum(sizes):,} "
        f"evaluation prompts by equality and runs of {report['ngram']} words"
    ]
    for name, counts in report["benchmarks"].items():
        examples = f" ({', '.join(counts['examples'])} …)" if counts["examples"] else ""
        lines.append(f"  {name}: {counts[EXACT]:,} equal, {counts[NGRAM]:,} by a run of words{examples}")
    return "\n".join(lines)


def _turns(record: Mapping[str, Any], path: Path, number: int) -> list[str]:
    turns = record.get("turns")
    if turns is None and isinstance(record.get("messages"), list):
        messages = [message for message in record["messages"] if isinstance(message, dict)]
        turns = [text_of(message.get("content")) for message in messages if message.get("role") == "user"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{path}, line {number}: expected 'turns' (a list of texts) or 'messages' with a user turn")
    return turns


def _questions(prompts: Sequence[Sequence[str]]) -> Iterable[tuple[list[str], list[str]]]:
    """Of every prompt the turns as they are, and without the words that all first turns of the benchmark share."""
    firsts = [text.split(" ") for text in {normalised(turns[0]) for turns in prompts}]
    before, after = _shared(firsts), _shared([words[::-1] for words in firsts])
    for turns in prompts:
        whole = [normalised(turn) for turn in turns]
        words = whole[0].split(" ")
        core = normalised(" ".join(words[before : len(words) - after])) or whole[0]
        yield whole, [core, *whole[1:]]


def _shared(texts: Sequence[Sequence[str]]) -> int:
    """Number of words with which all ``texts`` begin; 0 if it may be chance."""
    if len(texts) < _AFFIX_TURNS:
        return 0
    columns = zip(*texts, strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    return shared if shared >= _AFFIX_WORDS else 0


def _runs(words: Sequence[str], ngram: int) -> Iterable[tuple[str, ...]]:
    return (tuple(words[first : first + ngram]) for first in range(len(words) - ngram + 1))
