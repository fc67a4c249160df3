"""What a drafting round is made of: parallel stage, sequential stage of each head, verification by the target, by batch size.

    python benchmarks/round.py                                   the default target and drafter, freshly initialised
    python benchmarks/round.py batches=[1,16] repeats=9 context=256

The sequential stage is what a head adds to a parallel drafter that draws its tokens from the base logits alone: its biases,
slot by slot, and the confidences (the paper: 0.2 to 1.3 % of a round at batch 128 on a GPU). All parts take turns and
medians are given, so that a machine that changes its speed changes all. The last line is JSON: for each head and batch the
share of the whole round (``markov_share_batch16``) and of the parallel stage (``markov_over_parallel_batch16``).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from common import arguments, fresh_drafter
from rich.console import Console
from rich.table import Table

from draftlab.cli import entry
from draftlab.decode.cache import RowCache, grouped_attention
from draftlab.decode.context import NewContext
from draftlab.sampling import Sampling
from draftlab.target import load_target

DEFAULTS = {
    "batches": [1, 16, 64],
    "context": 256,  # tokens that every row has read
    "heads": ["markov", "gated", "rnn", "domino"],
    "repeats": 7,
    "temperature": 1.0,
    "device": "cpu",
    "seed": 0,
}
BASE = "none"  # draws from the base logits alone


def sides(target, drafters: dict[str, object], batch: int, cfg) -> dict[str, Callable[[], object]]:
    """What is timed at batch size ``batch``, by name; ``drafters`` by head share sizes, ``none`` is among them."""
    generator = torch.Generator(target.device).manual_seed(cfg.seed)
    sampling, base = Sampling(cfg.temperature), drafters[BASE]
    rows = torch.arange(batch, device=target.device)
    vocabulary, width = target.spec.vocab_size, cfg.context + base.block.block_size + 1
    ids = torch.randint(vocabulary, (batch, width), generator=generator, device=target.device)
    cache = RowCache(batch)
    mask = cache.place_prompts(rows, cfg.context)
    read = ids[:, : cfg.context]
    output = target.forward(read, cache.positions, mask, cache)
    lengths = torch.full((batch,), cfg.context, device=target.device)
    context = NewContext.of(read, cache.positions, lengths, output).at(ids[:, cfg.context], lengths)
    draft_cache = base.start(batch, width + base.block.block_size, device=target.device)
    base.propose(context, draft_cache, sampling, generator)
    hidden, confidence_hidden = base.block_states(context, draft_cache)

    def verify() -> torch.Tensor:
        positions = torch.arange(cfg.context, width, device=target.device).expand(batch, -1)
        new = ids[:, cfg.context :]
        return target.logits(target.forward(new, positions, cache.place(positions), cache).last_hidden)

    def drawing(drafter) -> Callable[[], object]:
        return lambda: drafter.draw(hidden, context.anchor, sampling, generator, confidence_hidden)

    timed = {"parallel stage": lambda: base.block_states(context, draft_cache), "verification": verify}
    return timed | {head: drawing(drafter) for head, drafter in drafters.items()}


def medians(timed: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each side; they take turns, after one turn that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(repeats + 1):
        for name, run in timed.items():
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def shares(spent: dict[str, float], heads: list[str], batch: int) -> dict[str, float]:
    """What each head adds, as a share of its round and of the parallel stage with its drawing; never below 0."""
    figures = {}
    parallel = spent["parallel stage"] + spent[BASE]
    for head in heads:
        added = max(0.0, spent[head] - spent[BASE])
        figures[f"{head}_share_batch{batch}"] = added / (parallel + added + spent["verification"])
        figures[f"{head}_over_parallel_batch{batch}"] = added / parallel
    return figures


def show(spent: dict[int, dict[str, float]], figures: dict[str, float], heads: list[str], title: str) -> None:
    """Print milliseconds of the parts, and of what each head adds with its share of the round, a row a batch size."""
    table = Table(title=title)
    for column in (
        "batch",
        "parallel stage ms",
        "drawing ms",
        "verification ms",
        *(f"{head} adds ms" for head in heads),
    ):
        table.add_column(column, justify="right")
    for batch, parts in spent.items():
        cells = [f"{1000 * parts[name]:.1f}" for name in ("parallel stage", BASE, "verification")]
        for head in heads:
            added = max(0.0, parts[head] - parts[BASE])
            cells.append(f"{1000 * added:.1f} ({figures[f'{head}_share_batch{batch}']:.1%})")
        table.add_row(str(batch), *cells)
    Console(width=120).print(table)


@entry
@torch.inference_mode()
def main() -> None:
    """Read key=value arguments, measure, print."""
    cfg = arguments(DEFAULTS)
    heads = list(cfg.heads)
    drafters = {head: fresh_drafter([f"head={head}"]).to(cfg.device) for head in (BASE, *heads)}
    target = load_target(drafters[BASE].spec, cfg.device)
    for drafter in drafters.values():
        drafter.attach(target.ends)
    spent, figures = {}, {}
    with grouped_attention(target.device):
        for batch in cfg.batches:
            spent[batch] = medians(sides(target, drafters, batch, cfg), cfg.repeats, target.device)
            figures |= shares(spent[batch], heads, batch)
    threads = torch.get_num_threads()
    show(spent, figures, heads, f"{target.spec.name}, {cfg.context} tokens of context, {cfg.device}, {threads} threads")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
