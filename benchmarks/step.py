"""What the lean loss saves of a training step: against the straightforward formulation, in time and in memory.

    python benchmarks/step.py
    python benchmarks/step.py tokens=[512] anchors=[64] repeats=5

A step is anchors, forward, loss, backward, clipping and AdamW of a DSpark (5 layers, whole vocabulary, float32) over one random
conversation whose features are stored. The straightforward side makes logits of every slot, the target's once a slot, and a softmax
wherever a law is needed (:mod:`twins`); its products are PyTorch's own. ``same_products`` gives it draftlab's
(:mod:`draftlab.target.products`), so that the formulation alone differs. ``laptop`` is the recipe of experiment=laptop on the same
tokens and anchors: a reduced draft vocabulary, two layers, its precision; ``laptop_5_layers`` differs from the lean side in the
draft vocabulary alone. ``lean_small`` is the lean side with the README's settings for small memories: a loss in chunks of 0.1 GB
and an allocator that hands large freed blocks back at once; both cost time.

Every side is a process of its own, with all that it has resident as its peak; sides take turns. The last line is JSON: ``speedup``,
the straightforward side's seconds over the lean one's at the first size, ``laptop_speedup`` over the laptop's, and seconds, peaks
and ratios of every size (``…_n512``). Both sides must give the same loss and the same length of the gradient, or it stops.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time

import torch
from common import arguments, peak_gb, random_batch, training_module
from rich.console import Console
from rich.table import Table
from twins import StraightforwardLoss, estimated_gb

from draftlab.cli import entry
from draftlab.target import products
from draftlab.training.run import pick_precision

DEFAULTS = {
    "tokens": [512, 1024],
    "anchors": [64, 512],  # of each number of tokens
    "steps": 3,  # of a process, after one that is not counted
    "repeats": 3,  # processes of every side and size
    "limit_gb": 12.0,  # of a process; a straightforward side that needs more is not run
    "vocabulary": None,  # of the draft on the lean and straightforward sides; null: all tokens
    "layers": 5,
    "chunk_gb": None,  # of the lean side's loss; null: as conf/loss has it
    "child": "",  # a side to time in this very process, at the first size
}
LEAN = ["target=smollm2_135m", "block=block7", "head=markov", "loss=dspark"]
LAPTOP = ["experiment=laptop"]
SIDES = ("lean", "lean_small", "plain", "same_products", "laptop", "laptop_5_layers")
SMALL_GB = 0.1  # of logits at a time on lean_small
SMALL_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # bytes from which a freed block goes back to the system
EQUAL = ("lean_small", "plain", "same_products")  # sides that take the lean one's step
PROMPT = 0.25  # share of the conversation that is not supervised
# Relative differences that are let pass. PyTorch's softmax takes a quick exponential on CPUs: against float64, gradients of the
# straightforward side are off by some 1e-4, those of the lean one by 1e-5.
CLOSE = {"loss": 1e-5, "gradient": 1e-4}


def overrides(cfg) -> list[str]:
    """What the side ``cfg.child`` composes."""
    words = [f"trainer.num_anchors={cfg.anchors[0]}"]
    if cfg.child == "lean_small":
        words.append(f"loss.chunk_gb={SMALL_GB}")
    elif cfg.chunk_gb is not None:
        words.append(f"loss.chunk_gb={cfg.chunk_gb}")
    if cfg.child == "laptop":
        return [*LAPTOP, *words]
    words.append(f"drafter.num_layers={cfg.layers}")
    if cfg.child == "laptop_5_layers":
        return [*LAPTOP, *words]
    return [*LEAN, *words, f"drafter.draft_vocab_size={'null' if cfg.vocabulary is None else cfg.vocabulary}"]


def measure(cfg) -> dict[str, float]:
    """Median seconds of a step of the side ``cfg.child``, its first loss and gradient, and this process's peak."""
    if cfg.child == "plain":
        products.AVAILABLE = False
    generator = torch.Generator().manual_seed(0)
    module, adamw = training_module(overrides(cfg), generator)
    if cfg.child in ("plain", "same_products"):
        module.loss = StraightforwardLoss()
    mixed = cfg.child == "laptop" and pick_precision("fast", "cpu") == "bf16-mixed"
    batch = random_batch(module.drafter.spec, (1, cfg.tokens[0]), int(PROMPT * cfg.tokens[0]), generator)
    seconds, first = [], {}
    for step in range(1 + cfg.steps):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            _, _, report = module.compute(batch, 0, step)
        mean = report.numerator / report.weight
        mean.backward()
        seconds.append(time.perf_counter() - start)
        first = first or {"loss": float(mean.detach()), "gradient": length(module.drafter)}
        start = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(module.drafter.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        seconds[-1] += time.perf_counter() - start
    return first | {"s": statistics.median(seconds[1:]), "peak_gb": peak_gb()}


def length(drafter) -> float:
    """Length of the whole gradient; in float32 that of millions of numbers would be off by 1e-4."""
    lengths = [
        torch.linalg.vector_norm(p.grad, dtype=torch.float64) for p in drafter.parameters() if p.grad is not None
    ]
    return float(torch.stack(lengths).norm())


def child(side: str, tokens: int, anchors: int) -> dict[str, float]:
    """Figures of a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], f"tokens=[{tokens}]", f"anchors=[{anchors}]", f"child={side}"]
    environment = os.environ | (SMALL_ENVIRONMENT if side == "lean_small" else {})
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def compare(tokens: int, anchors: int, sides, cfg) -> dict[str, float]:
    """Median seconds and largest peak of every side, in turns.

    Raises:
        RuntimeError: sides that should be equal are not.
    """
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for turn in range(cfg.repeats):
        for side in sides:
            runs[side].append(child(side, tokens, anchors))
            shown = f"{runs[side][-1]['s']:.3f} s, {runs[side][-1]['peak_gb']:.2f} GB"
            print(f"{tokens} tokens, {anchors} anchors, turn {turn + 1} of {cfg.repeats}: {side} {shown}", flush=True)
    lean = runs["lean"][0]
    for side in [side for side in EQUAL if side in sides]:
        for name, close in CLOSE.items():
            if not math.isclose(runs[side][0][name], lean[name], rel_tol=close):
                raise RuntimeError(f"both sides must give the same {name}, got {runs[side][0][name]} and {lean[name]}")
    figures = {f"{side}_s": statistics.median(run["s"] for run in values) for side, values in runs.items()}
    return figures | {f"{side}_peak_gb": max(run["peak_gb"] for run in values) for side, values in runs.items()}


def ratios(figures: dict[str, float]) -> dict[str, float]:
    """The straightforward side over the others, where it ran."""
    if "plain_s" not in figures:
        return {}
    found = {"speedup": figures["plain_s"] / figures["lean_s"]}
    found["speedup_same_products"] = figures["same_products_s"] / figures["lean_s"]
    for side in ("lean_small", "laptop", "laptop_5_layers"):
        if f"{side}_s" in figures:
            found[f"{side}_speedup"] = figures["plain_s"] / figures[f"{side}_s"]
    return found


def show(cases: dict[tuple[int, int], dict[str, float]]) -> None:
    """Print a row a side and size."""
    table = Table(title="a training step, float32")
    for column in ("tokens", "anchors", "side", "s", "plain over it", "GB"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for (tokens, anchors), figures in cases.items():
        for side in SIDES:
            if f"{side}_s" not in figures:
                continue
            ratio = f"{figures['plain_s'] / figures[f'{side}_s']:.2f}" if "plain_s" in figures else "not run"
            row = f"{figures[f'{side}_s']:.3f}", ratio, f"{figures[f'{side}_peak_gb']:.2f}"
            table.add_row(f"{tokens:,}", str(anchors), side, *row)
    Console(width=110).print(table)


@entry
def main() -> None:
    """Time one side, or all of them in turns."""
    cfg = arguments(DEFAULTS)
    if len(cfg.tokens) != len(cfg.anchors):
        raise ValueError(f"anchors needs one number a number of tokens, got {len(cfg.anchors)} for {len(cfg.tokens)}")
    if cfg.child:
        if cfg.child not in SIDES:
            raise ValueError(f"child must be one of {', '.join(SIDES)}, got {cfg.child!r}")
        print(json.dumps(measure(cfg)))
        return
    cases = {}
    for number, (tokens, anchors) in enumerate(zip(cfg.tokens, cfg.anchors, strict=True)):
        fits = estimated_gb(anchors * 7, cfg.vocabulary or 49152) + peak_gb() <= cfg.limit_gb
        sides = [side for side in SIDES if fits or side not in ("plain", "same_products")]
        if number:
            sides = [side for side in sides if not side.startswith("laptop")]
        cases[tokens, anchors] = compare(tokens, anchors, sides, cfg)
    figures: dict[str, float] = {}
    for number, ((_, anchors), case) in enumerate(cases.items()):
        named = case | ratios(case)
        figures |= named if number == 0 else {f"{name}_n{anchors}": value for name, value in named.items()}
    show(cases)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
