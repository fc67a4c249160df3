"""SPS of a machine: how long the target takes for a flattened pass of B tokens, and the drafter for R rows (method 5).

The drafter is timed with whole blocks and with blocks of one token, which tells what a drafted token costs.

    SPS(B) = 1 / median over repeats of T(B tokens, at one context length)
    rows of a pass = ⌈B / tokens_per_row⌉, as unequal as B asks for, each behind ``context`` tokens it has read

Sizes take turns within a repeat, so that a machine that slows down slows all of them; the first repeat warms up and does not
count. Every repeat is on disk when it is over, so a killed profile goes on. The module knows nothing of schedulers.

    profile(target, drafter, settings, Path("outputs/demo/profile"), identity)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from draftlab.data.files import append_lines, claim, drop_torn_line, read_jsonl, seal
from draftlab.data.progress import Progress
from draftlab.decode.cache import RowCache, grouped_attention
from draftlab.sampling import Sampling
from draftlab.scheduling import Drafting, Throughput
from draftlab.target.flat import Flat
from draftlab.types import Context

TARGET, DRAFTER, ONE_TOKEN = "target", "drafter", "drafter_one_token"
MEASURED = "measured.jsonl"
NEW_TOKENS = 3  # tokens a row that a drafter reads before it drafts: about what a round commits


@dataclass(frozen=True)
class ProfileSettings:
    """Which passes to time.

    Args:
        tokens: sizes B of a pass, increasing. rows: rows R of a drafting pass, increasing.
        contexts: tokens that each row has read. main_context: the one that the tables are made of.
        tokens_per_row: tokens of one row in a pass, at most; 1 is plain decoding, gamma + 1 a whole block.
        repeats: that count; one more warms up.

    Raises:
        ValueError: sizes that are not whole, positive and increasing, fewer than two, or a main context that is not measured.
    """

    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    main_context: int
    tokens_per_row: int
    repeats: int

    def __post_init__(self) -> None:
        for name, fewest in (("tokens", 2), ("rows", 2), ("contexts", 1)):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            whole = all(isinstance(value, int) and not isinstance(value, bool) and value >= 1 for value in values)
            if len(values) < fewest or not whole or list(values) != sorted(set(values)):
                raise ValueError(
                    f"profile.{name} must be {fewest} or more whole numbers of at least 1 in ascending order, got "
                    f"{list(values)}"
                )
        for name in ("tokens_per_row", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"profile.{name} must be at least 1, got {getattr(self, name)}")
        if self.main_context not in self.contexts:
            raise ValueError(
                f"profile.main_context must be one of profile.contexts {list(self.contexts)}, got {self.main_context}"
            )

    def check(self, spec, gamma: int) -> ProfileSettings:
        """These settings, if the target has positions enough.

        Raises:
            ValueError: contexts and blocks that leave the target's positions.
        """
        longest = self.contexts[-1] + self.tokens_per_row + gamma + NEW_TOKENS + 1
        if spec.max_position is not None and longest > spec.max_position:
            raise ValueError(
                f"profile.contexts up to {self.contexts[-1]} need {longest} positions, but {spec.name} has "
                f"{spec.max_position}; make them shorter"
            )
        return self


def profile(target, drafter, settings: ProfileSettings, folder: Path, identity: dict[str, Any]) -> pd.DataFrame:
    """Time all passes into ``folder``, or go on with what it holds; one row a pass: part, tokens, rows, context, repeat, seconds.

    ``drafter`` may be None: only the target is timed.

    Raises:
        ValueError: a folder with a profile of other settings or another machine.
    """
    claim(folder, {**identity, "settings": _plain(settings)}, "an SPS profile", "profile.folder")
    path = folder / MEASURED
    drop_torn_line(path)
    done = [record for _, record in read_jsonl(path)] if path.exists() and path.stat().st_size else []
    seen = {record["repeat"] for record in done}
    missing = [repeat for repeat in range(settings.repeats + 1) if repeat not in seen]
    sizes = list(_sizes(target, drafter, settings))
    with (
        torch.inference_mode(),
        grouped_attention(target.device),
        Progress("profile", len(sizes) * (settings.repeats + 1), len(sizes) * len(seen), unit="passes") as progress,
    ):
        for repeat in missing:
            records = []
            for facts, timed in sizes:
                records.append({**facts, "repeat": repeat, "seconds": timed()})
                progress.advance(1, 1)
            append_lines(path, records)
    if not (folder / "manifest.json").exists():
        seal(folder, {"identity": {**identity, "settings": _plain(settings)}})
    frame = pd.DataFrame([record for _, record in read_jsonl(path)])
    return frame[frame["repeat"] > 0].reset_index(drop=True)


def tables(frame: pd.DataFrame, main_context: int) -> tuple[Throughput, Drafting | None]:
    """SPS of the target by tokens, and seconds of the drafter by rows where it was timed, at ``main_context``."""
    medians = {}
    for part, size in ((TARGET, "tokens"), (DRAFTER, "rows"), (ONE_TOKEN, "rows")):
        rows = frame[(frame["part"] == part) & (frame["context"] == main_context)]
        medians[part] = rows.groupby(size)["seconds"].median()
    passes, whole, one = medians.values()
    target = Throughput(passes.index.tolist(), (1.0 / passes).tolist())
    if whole.empty:
        return target, None
    drafted = frame.loc[frame["part"] == DRAFTER, ["tokens", "rows"]].iloc[0]
    block_size = int(drafted["tokens"] // drafted["rows"])
    return target, Drafting(whole.index.tolist(), whole.tolist(), block_size, None if one.empty else one.tolist())


def _sizes(target, drafter, settings: ProfileSettings) -> Iterator[tuple[dict[str, Any], Callable[[], float]]]:
    """Facts of every pass to time, and what times it."""
    for context in settings.contexts:
        for tokens in settings.tokens:
            lengths = _lengths(tokens, settings.tokens_per_row)
            facts = {"part": TARGET, "tokens": tokens, "rows": len(lengths), "context": context}
            yield facts, _timer(_target_pass, target, lengths, context)
        for rows in settings.rows if drafter is not None else ():
            whole = drafter.block.block_size
            for part, length in ((DRAFTER, whole), (ONE_TOKEN, 1)) if whole > 1 else ((DRAFTER, 1),):
                facts = {"part": part, "tokens": rows * length, "rows": rows, "context": context}
                yield facts, _timer(_draft_pass, target, drafter.shortened(length), rows, context)


def _lengths(tokens: int, per_row: int) -> list[int]:
    """``tokens`` over as few rows of at most ``per_row`` as possible, as evenly as possible."""
    rows = math.ceil(tokens / per_row)
    return [tokens // rows + (row < tokens % rows) for row in range(rows)]


def _timer(make: Callable, *arguments) -> Callable[[], float]:
    return lambda: make(*arguments)


def _target_pass(target, lengths: Sequence[int], context: int) -> float:
    flat = Flat.of(lengths, target.device)
    cache = RowCache(len(lengths))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, target.spec.vocab_size, (1, len(flat.rows)), generator=generator).to(target.device)
    positions = flat.columns + context
    seconds = 0.0
    for _ in range(2):  # the first pass makes the cache's buffers
        _wait(target.device)
        start = time.perf_counter()
        output = target.forward(ids, positions.unsqueeze(0), cache.place_flat(flat, positions), cache, flat)
        target.logits(output.last_hidden[0])
        _wait(target.device)
        seconds = time.perf_counter() - start
    return seconds


def _draft_pass(target, drafter, rows: int, context: int) -> float:
    spec, device = drafter.spec, drafter.ends.embedding.device
    length = context + NEW_TOKENS + drafter.block.block_size + 1
    cache = drafter.start(rows, length, device=device)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, spec.vocab_size, (rows, length), generator=generator).to(device)
    seconds = 0.0
    for first, end in ((0, context), (context, context + NEW_TOKENS)):
        new = _context(drafter, ids, first, end)
        # As in a step: the target's weights have just passed through the caches, and the drafter's are no longer in them.
        _target_pass(target, [1] * rows, context)
        _wait(device)
        start = time.perf_counter()
        drafter.propose(new, cache, Sampling(), None)
        _wait(device)
        seconds = time.perf_counter() - start
    return seconds


def _context(drafter, ids: torch.Tensor, first: int, end: int) -> Context:
    spec, rows, dtype = drafter.spec, len(ids), drafter.ends.embedding.dtype
    positions = torch.arange(first, end, device=ids.device).expand(rows, -1)
    return Context(
        anchor=ids[:, end],
        anchor_position=torch.full((rows,), end, device=ids.device),
        new_ids=ids[:, first:end],
        new_positions=positions,
        new_mask=torch.ones_like(positions, dtype=torch.bool),
        new_features=torch.ones(rows, end - first, spec.feature_size, device=ids.device, dtype=dtype),
        new_last_hidden=torch.ones(rows, end - first, spec.hidden_size, device=ids.device, dtype=dtype),
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _plain(settings: ProfileSettings) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()}
