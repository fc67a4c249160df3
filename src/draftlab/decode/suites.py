"""Benchmarks: named sets of prompts of one domain, from the built-in held-out generator or a folder of JSONL files.

    folder/gsm8k.jsonl with lines {"id": "gsm8k-0", "turns": ["…"]}   ->   Benchmark("gsm8k", "math", prompts)

The first turn is used. Files are read whole before any model is loaded, so that a malformed line is refused at once,
with its number. The module knows nothing of models or decoding.

    >>> [benchmark.name for benchmark in builtin_benchmarks(limit=2, seed=0)]
    ['heldout-math', 'heldout-code', 'heldout-chat']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftlab.data.builtin import DOMAINS
from draftlab.data.prompts import Prompt, builtin_prompts, jsonl_prompts

OTHER = "other"  # domain of a file that neither the map nor its lines name


@dataclass(frozen=True)
class Benchmark:
    """Prompts that are reported together.

    Raises:
        ValueError: no prompts, or two prompts with one id (results are told apart by it).
    """

    name: str
    domain: str
    prompts: tuple[Prompt, ...]

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError(f"benchmark {self.name}: expected at least one prompt, got none")
        seen: set[str] = set()
        for prompt in self.prompts:
            if prompt.id in seen:
                raise ValueError(f"benchmark {self.name}: two prompts have the id {prompt.id!r}; ids must differ")
            seen.add(prompt.id)


def builtin_benchmarks(limit: int, seed: int = 0) -> list[Benchmark]:
    """``limit`` held-out prompts of each built-in domain, never among the training ones."""
    _check_limit(limit)
    by_domain: dict[str, list[Prompt]] = {}
    for prompt in builtin_prompts(limit * len(DOMAINS), seed, split="heldout"):  # the domains take turns
        by_domain.setdefault(prompt.domain, []).append(prompt)
    return [Benchmark(f"heldout-{domain}", domain, tuple(prompts)) for domain, prompts in by_domain.items()]


def folder_benchmarks(
    folder: str | Path, domains: Mapping[str, str], limit: int | None, names: Sequence[str] | None = None
) -> list[Benchmark]:
    """One benchmark for every ``*.jsonl`` of ``folder``, by name, each cut to its first ``limit`` prompts (None: all).

    Args:
        folder: holds the files; a file's stem is its benchmark's name.
        domains: benchmark name -> domain; others take the domain of their first line, else "other".
        limit: prompts each, at most.
        names: benchmarks to keep; None keeps all.

    Raises:
        ValueError: no such folder or file, no JSONL in it, an empty file, or a malformed line, with its number.
    """
    if limit is not None:
        _check_limit(limit)
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"prompts_dir: expected a folder of JSONL files, found none at {folder}")
    paths = {path.stem: path for path in sorted(folder.glob("*.jsonl"))}
    if not paths:
        raise ValueError(f'prompts_dir: no *.jsonl in {folder}; expected files with lines {{"id": …, "turns": [text]}}')
    unknown = sorted(set(names or ()) - paths.keys())
    if unknown:
        raise ValueError(f"benchmarks: {', '.join(unknown)} not found in {folder}; there are {', '.join(paths)}")
    benchmarks = []
    for name in names or paths:
        prompts = jsonl_prompts(paths[name], domain=domains.get(name, OTHER))
        domain = domains.get(name, prompts[0].domain)
        benchmarks.append(Benchmark(name, domain, tuple(prompts[:limit])))
    return benchmarks


def find_benchmarks(
    prompts_dir: str | None, names: Sequence[str] | None, domains: Mapping[str, str], limit: int | None, seed: int
) -> list[Benchmark]:
    """The files of ``prompts_dir``, else the built-in held-out prompts; what an entry script's keys of these names mean.

    Raises:
        ValueError: see :func:`folder_benchmarks`; names of files, or no limit, without a folder.
    """
    if prompts_dir is not None:
        return folder_benchmarks(prompts_dir, domains, limit, names)
    if names is not None:
        raise ValueError("benchmarks names files of prompts_dir; set prompts_dir=FOLDER, or leave benchmarks null")
    if limit is None:
        raise ValueError("limit: null (all prompts) needs prompts_dir=FOLDER; the built-in generator needs a number")
    return builtin_benchmarks(limit, seed)


def without_first(benchmarks: Sequence[Benchmark], count: int) -> list[Benchmark]:
    """The benchmarks without the first ``count`` prompts of each.

    Raises:
        ValueError: one has no prompt left.
    """
    for benchmark in benchmarks:
        if len(benchmark.prompts) <= count:
            raise ValueError(
                f"benchmark {benchmark.name} has {len(benchmark.prompts)} prompts, so none is left behind the first {count}; "
                "make skip smaller or give more prompts"
            )
    return [replace(benchmark, prompts=benchmark.prompts[count:]) for benchmark in benchmarks]


def _check_limit(limit: int) -> None:
    if not isinstance(limit, int) or limit < 1:
        raise ValueError(f"limit must be at least 1 and whole, in prompts a benchmark, got {limit!r}")
