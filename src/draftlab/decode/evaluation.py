"""Evaluation: decode benchmarks with a drafter, time it against plain decoding, keep every finished part.

    for each temperature and benchmark: speculative decoding -> outputs and rounds
    for each temperature:               the same prompts plain and speculative, in turns -> tokens per second

A finished part is kept at once as one file in ``evaluation.partial/`` of the run folder, under a digest of everything
it depends on; a killed evaluation takes it up again, another drafter or setting does not. A whole evaluation is not
made twice, and one with other settings sets the earlier one aside. No statistics are made here.

    Evaluation(target, drafter, chat, settings, Path("outputs/demo"), identity).run(benchmarks)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from draftlab.data.files import digest, read_object, write_json
from draftlab.decode.budget import Budget
from draftlab.decode.exits import ExitPolicy
from draftlab.decode.loop import Decoder, DecodeSettings
from draftlab.decode.records import ROUNDS, Result, read_evaluation, rows_of, set_aside, write_evaluation
from draftlab.decode.speed import compare_speed
from draftlab.decode.suites import Benchmark
from draftlab.sampling import Sampling

BONUS = "accepted: without the bonus or corrected token; committed: with it"


@dataclass(frozen=True)
class SpeedSettings:
    """How speed is measured: ``prompts`` in all (0: not at all), taken from the benchmarks in turn."""

    prompts: int
    max_new_tokens: int
    batch_size: int


@dataclass(frozen=True)
class EvaluationSettings:
    """What to decode with; one temperature may stand alone. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 keep every token.

    Raises:
        ValueError: no temperature, one given twice, or a value outside its range.
    """

    temperatures: tuple[float, ...]
    top_k: int
    top_p: float
    min_p: float
    max_new_tokens: int
    batch_size: int
    seed: int
    speed: SpeedSettings
    exit: ExitPolicy | None = None

    def __post_init__(self) -> None:
        given = self.temperatures if isinstance(self.temperatures, list | tuple) else [self.temperatures]
        object.__setattr__(self, "temperatures", tuple(map(float, given)))
        if not self.temperatures or len(set(self.temperatures)) < len(self.temperatures):
            raise ValueError(f"temperatures must be one or more different numbers, got {list(self.temperatures)}")
        if self.speed.prompts < 0:
            raise ValueError(f"speed.prompts must be at least 0 (0 skips the comparison), got {self.speed.prompts}")
        for temperature in self.temperatures:
            self.decode(temperature, ())
            if self.speed.prompts:
                self.speed_decode(temperature, ())

    def check(self, drafter) -> None:
        """Refuse a drafter that cannot be evaluated so.

        Raises:
            ValueError: exits that it does not have, or more tokens than its target has positions for.
        """
        if self.exit is not None:
            self.exit.check(drafter)
        limit, block = drafter.spec.max_position, drafter.block.block_size + 1
        if limit is not None and self.max_new_tokens + block >= limit:
            raise ValueError(
                f"max_new_tokens {self.max_new_tokens} leaves no room for a prompt: {drafter.spec.name} has {limit} "
                f"positions, and a block takes {block}; lower max_new_tokens"
            )

    def decode(self, temperature: float, eos_token_ids: Sequence[int]) -> DecodeSettings:
        """Settings of the benchmarks at ``temperature``."""
        sampling = Sampling(temperature, self.top_k, self.top_p, self.min_p)
        return DecodeSettings(self.max_new_tokens, sampling, tuple(eos_token_ids), self.batch_size, exit=self.exit)

    def speed_decode(self, temperature: float, eos_token_ids: Sequence[int]) -> DecodeSettings:
        """Settings of the speed comparison at ``temperature``."""
        settings = self.decode(temperature, eos_token_ids)
        return replace(settings, max_new_tokens=self.speed.max_new_tokens, batch_size=self.speed.batch_size)


class Evaluation:
    """Evaluates one drafter into one run folder.

    Args:
        target: a FrozenTarget. drafter: attached to the target's ends.
        chat: renders prompts and decodes answers (:class:`draftlab.data.chat.Chat`).
        settings: see :class:`EvaluationSettings`.
        folder: run folder; ``identity``: names the checkpoint, so that no part of another one is taken up.
        budget: chooses how much of each block is verified; None: all of it.
    """

    def __init__(
        self,
        target,
        drafter,
        chat,
        settings: EvaluationSettings,
        folder: Path,
        identity: dict[str, Any],
        budget: Budget | None = None,
    ):
        self.target, self.drafter, self.chat, self.budget = target, drafter, chat, budget
        self.settings, self.folder, self.identity = settings, folder, identity
        self.partial = folder / "evaluation.partial"
        self.console = Console()

    def run(self, benchmarks: Sequence[Benchmark], command: str | None = None) -> dict[str, Any]:
        """Decode what is not done yet, write the files of :mod:`draftlab.decode.records`, return evaluation.json.

        Raises:
            ValueError: not one prompt fits the target's context.
        """
        prompts = [self._render(benchmark) for benchmark in benchmarks]
        if not any(prompts):
            raise ValueError(
                f"every prompt is too long for the target's {self.target.spec.max_position} positions with "
                f"max_new_tokens {self.settings.max_new_tokens}; lower max_new_tokens"
            )
        rendered = [[b.name, b.domain, kept] for b, kept in zip(benchmarks, prompts, strict=True)]
        key = self._key({"settings": described(self.settings), "thinking": self.chat.thinking, "prompts": rendered})
        earlier = read_evaluation(self.folder)
        if earlier is not None and earlier.get("key") == key and (self.folder / "rounds.parquet").is_file():
            self.console.print(
                f"{self.folder} holds this evaluation already; nothing is decoded again", highlight=False
            )
            return earlier
        results, speed = [], []
        with _progress(self.console) as progress:
            task = progress.add_task("", speed="", total=len(self.settings.temperatures) * sum(map(len, prompts)))
            for temperature in self.settings.temperatures:
                for benchmark, kept in zip(benchmarks, prompts, strict=True):
                    progress.update(task, description=f"T={temperature:g} {benchmark.name}")
                    step = _advance(progress, task)
                    results.append(self._result(temperature, benchmark, kept, step))
                if self.settings.speed.prompts:
                    progress.update(task, description=f"T={temperature:g} speed")
                    speed.append(self._speed(temperature, prompts))
        if earlier is not None:
            place = set_aside(self.folder)
            self.console.print(f"the earlier evaluation is now in {place}", highlight=False)
        evaluation = {"settings": self._facts(benchmarks, results), "speed": speed, "command": command, "key": key}
        write_evaluation(self.folder, results, evaluation)
        shutil.rmtree(self.partial, ignore_errors=True)
        return read_evaluation(self.folder)

    def _render(self, benchmark: Benchmark) -> dict[str, list[int]]:
        """Token ids of the prompts that fit the target's context, by prompt id."""
        rendered = {p.id: self.chat.prompt_ids(list(p.messages), tools=p.tools) for p in benchmark.prompts}
        room = self.target.spec.max_position - self.settings.max_new_tokens - self.drafter.block.block_size - 1
        return {name: ids for name, ids in rendered.items() if len(ids) <= room}

    # Benchmarks

    def _result(self, temperature: float, benchmark: Benchmark, prompts: dict[str, list[int]], on_round) -> Result:
        settings = self.settings.decode(temperature, self.target.eos_token_ids)
        depends_on = {"settings": described(settings), "prompts": prompts, "domain": benchmark.domain}

        def decode() -> dict[str, Any]:
            start = time.perf_counter()
            generator = self._generator(benchmark.name, temperature)
            decoder = Decoder(self.target, self.drafter, settings, self.budget)
            generations = decoder.run(list(prompts.values()), generator, on_round)
            result = self._records(temperature, benchmark, prompts, generations)
            tokens = sum(len(generation.tokens) for generation in generations)
            self.console.print(
                f"T={temperature:g} {benchmark.name}: {len(prompts)} prompts, {tokens} tokens, accepted length "
                f"{result.accepted_length():.2f}, {tokens / (time.perf_counter() - start):.0f} tokens/s",
                highlight=False,
            )
            return asdict(result)

        return Result(**self._kept(f"{benchmark.name}-T{temperature:g}", depends_on, decode, on_round, len(prompts)))

    def _records(self, temperature: float, benchmark: Benchmark, prompts, generations) -> Result:
        outputs, rounds = [], []
        base = {"temperature": temperature, "benchmark": benchmark.name, "domain": benchmark.domain}
        for (prompt_id, ids), generation in zip(prompts.items(), generations, strict=True):
            key = {**base, "prompt_id": prompt_id}
            text = self.chat.tokenizer.decode(generation.tokens, skip_special_tokens=True)
            facts = {"prompt_tokens": len(ids), "num_tokens": len(generation.tokens)}
            outputs.append({**key, **facts, "finish_reason": generation.finish_reason, "text": text})
            rounds += rows_of(key, generation)
        return Result(**base, outputs=outputs, rounds=rounds, skipped=len(benchmark.prompts) - len(prompts))

    # Speed

    def _speed(self, temperature: float, prompts: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
        settings = self.settings.speed_decode(temperature, self.target.eos_token_ids)
        in_turn = chain.from_iterable(zip_longest(*(kept.values() for kept in prompts)))
        chosen = [ids for ids in in_turn if ids is not None][: self.settings.speed.prompts]
        depends_on = {"settings": described(settings), "prompts": chosen}
        return self._kept(
            f"speed-T{temperature:g}",
            depends_on,
            lambda: compare_speed(self.target, self.drafter, chosen, settings, self.budget),
        )

    # Parts

    def _kept(self, name: str, depends_on: dict, compute, on_round=None, finished: int = 0) -> dict[str, Any]:
        """The part ``name`` from disk if it was made from the same things, else computed and kept."""
        path, key = self.partial / f"{name}.json", self._key({**depends_on, "seed": self.settings.seed})
        if path.is_file():
            part = read_object(path)
            if part.get("key") == key and "value" in part:
                if on_round is not None:
                    on_round(finished, 0)
                return part["value"]
        value = compute()
        write_json(path, {"key": key, "value": value})
        return value

    def _key(self, depends_on: dict) -> str:
        # With the columns: rounds of an earlier version lack some, and the same command is to give the same file.
        schedule = {} if self.budget is None else {"schedule": self.budget.identity()}
        return digest({**depends_on, **schedule, "identity": self.identity, "columns": ROUNDS.names})

    def _generator(self, name: str, temperature: float) -> torch.Generator:
        """Draws of one part depend on nothing else, so that a resumed evaluation equals an uninterrupted one."""
        seed = int(digest([self.settings.seed, name, temperature])[:15], 16)
        return torch.Generator(device=self.target.device).manual_seed(seed)

    def _facts(self, benchmarks: Sequence[Benchmark], results: Sequence[Result]) -> dict[str, Any]:
        """Everything without which an accepted length means nothing (case 24)."""
        return {
            **described(self.settings),
            "temperatures": list(self.settings.temperatures),
            "thinking": self.chat.thinking,
            "bonus": BONUS,
            "gamma": self.drafter.block.block_size,
            "target": self.target.spec.name,
            "target_dtype": str(self.target.dtype).removeprefix("torch."),
            "device": str(self.target.device),
            "eos_token_ids": list(self.target.eos_token_ids),
            "drafter": self.identity,
            **({} if self.budget is None else {"schedule": self.budget.identity()}),
            "benchmarks": [benchmark.name for benchmark in benchmarks],
            "prompts": sum(len(result.outputs) for result in results) // len(self.settings.temperatures),
        }


def described(settings: EvaluationSettings | DecodeSettings) -> dict[str, Any]:
    """The settings in plain types; an exit policy that is off is not named, since nothing is decoded otherwise for it."""
    plain = asdict(settings)
    return {name: value for name, value in plain.items() if name != "exit" or value is not None}


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[speed]}"), console=console)


def _advance(progress: Progress, task):
    """Callback of the loop: moves the bar and shows tokens per second of the running part."""
    start, done = time.perf_counter(), 0

    def on_round(finished: int, committed: int) -> None:
        nonlocal done
        done += committed
        speed = done / max(time.perf_counter() - start, 1e-9)
        progress.update(task, advance=finished, speed=f"{speed:.0f} tokens/s" if done else "")

    return on_round
