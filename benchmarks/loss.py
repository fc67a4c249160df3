"""Time and memory of loss and backward pass: in chunks (lean) against the straightforward formulation (plain), by V and anchors.

    python benchmarks/loss.py
    python benchmarks/loss.py vocabularies=[151936] hidden=[2560] anchors=[512] growth=false limit_gb=12

Every peak is that of a process of its own, everything in it counted; times are medians of both sides taking turns in one process.
What would not fit into ``limit_gb`` is not run: its peak is estimated from the tensors that it keeps, and the table says so. The
last line is JSON: ``lean_peak_gb``, ``plain_peak_gb`` (``plain_measured`` says whether it ran) and ``time_ratio``, lean over plain,
of the largest case, or for times of the largest in which the plain side ran; the same of every case (``…_v49152_n64``); and how the
lean side grows with tokens and anchors (``tokens_1024_over_512``).
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time

import torch
from common import arguments, peak_gb
from rich.console import Console
from rich.table import Table
from twins import DSPARK, estimated_gb, straightforward_loss

from draftlab.blocks import BlockSpec, draw_anchors, lay_out
from draftlab.cli import entry
from draftlab.drafters import DSpark
from draftlab.heads import MarkovHead
from draftlab.losses import Confidence, CrossEntropy, DraftLoss, TotalVariation
from draftlab.target import TargetEnds, TargetSpec
from draftlab.target.products import learning_products
from draftlab.types import Batch, DraftOutput

DEFAULTS = {
    "vocabularies": [49152, 151936],
    "hidden": [576, 2560],  # of each vocabulary
    "anchors": [64, 512],
    "tokens": 1024,
    "block_size": 7,
    "rank": 256,
    "chunk_gb": 1.0,
    "limit_gb": 10.0,  # for a process; what needs more is estimated
    "growth": True,
    "repeats": 3,
    "seed": 0,
    "child": "",  # lean, plain or both: measured in this very process, at the first vocabulary and number of anchors
}
GROWTH = {"tokens": [512, 1024, 2048], "anchors": [64, 128, 256, 512]}
TERMS = {"ce": CrossEntropy, "tv": TotalVariation, "confidence": Confidence}


class Case:
    """A drafter with its head only, random states, and both ways to its loss."""

    def __init__(self, cfg) -> None:
        vocabulary, hidden, anchors = cfg.vocabularies[0], cfg.hidden[0], cfg.anchors[0]
        torch.manual_seed(cfg.seed)  # of the drafter's own weights: both sides start the same
        generator = torch.Generator().manual_seed(cfg.seed)
        spec = TargetSpec(
            name="random", path="random", num_layers=4, hidden_size=hidden, intermediate_size=64, num_heads=1, num_kv_heads=1,
            head_dim=64, vocab_size=vocabulary, target_layer_ids=(1,), mask_token_id=0, rope_theta=1e4,
        )  # fmt: skip
        block = BlockSpec(block_size=cfg.block_size, num_anchors=anchors, decay_gamma=4.0)
        self.drafter = DSpark(spec, block, lambda **sizes: MarkovHead(**sizes, rank=cfg.rank), num_layers=1)
        weight = torch.empty(vocabulary, hidden).normal_(std=hidden**-0.5 * 3.0, generator=generator)
        self.drafter.attach(TargetEnds(weight))
        learning_products(self.drafter)  # both sides multiply as training does
        torch.nn.init.normal_(self.drafter.markov_head.markov_w2.weight, std=0.02, generator=generator)
        shape = (1, cfg.tokens)
        supervised = torch.ones(shape, dtype=torch.bool)
        ids = torch.randint(vocabulary, shape, generator=generator)
        states = torch.randn(*shape, hidden, generator=generator)
        self.batch = Batch(ids, supervised, supervised, None, states)
        self.blocks = lay_out(self.batch, *draw_anchors(supervised, anchors, generator), block, 0)
        slots = (1, anchors, cfg.block_size, hidden)
        self.hidden = torch.randn(slots, generator=generator).requires_grad_()
        self.loss = DraftLoss({name: TERMS[name](w) for name, w in DSPARK.items()}, "auto", chunk_gb=cfg.chunk_gb)

    def run(self, side: str) -> float:
        """Loss, backward pass; the mean loss."""
        self.drafter.zero_grad()
        self.hidden.grad = None
        confidence = self.drafter.confidence_logits(self.hidden, self.blocks.previous)
        output = DraftOutput(self.hidden, confidence)
        if side == "plain":
            numerator, weight = straightforward_loss(self.drafter, output, self.blocks, self.batch)
        else:
            report = self.loss(self.drafter, output, self.blocks, self.batch)
            numerator, weight = report.numerator, report.weight
        mean = numerator / weight
        mean.backward()
        return float(mean.detach())


def measure(cfg) -> dict[str, float]:
    """Median seconds and the mean loss of each side of ``cfg.child``, and this process's peak."""
    case = Case(cfg)
    sides = ["lean", "plain"] if cfg.child == "both" else [cfg.child]
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    losses = {}
    for turn in range(cfg.repeats + (cfg.child == "both")):
        for side in sides:
            start = time.perf_counter()
            losses[side] = case.run(side)
            if turn or cfg.child != "both":  # the first turn makes layouts and fills the C library's memory
                seconds[side].append(time.perf_counter() - start)
    figures = {f"{side}_s": statistics.median(values) for side, values in seconds.items()}
    return figures | {f"{side}_loss": loss for side, loss in losses.items()} | {"peak_gb": peak_gb()}


def child(side: str, **changes) -> dict[str, float]:
    """Figures of a process of its own."""
    words = [f"{name}={value}" for name, value in changes.items()]
    command = [sys.executable, __file__, *sys.argv[1:], *words, f"child={side}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def estimate_gb(vocabulary: int, hidden: int, anchors: int, cfg, base_gb: float) -> float:
    """Peak of the plain side, about: what it keeps a slot and token, weights and gradients, and an idle process."""
    slots = anchors * cfg.block_size
    return base_gb + estimated_gb(slots, vocabulary) + 4e-9 * vocabulary * (hidden + 4 * cfg.rank)


def compare(vocabulary: int, hidden: int, anchors: int, cfg) -> dict[str, float | None]:
    """Peaks and, where both sides fit, times of one case."""
    changes = {"vocabularies": f"[{vocabulary}]", "hidden": f"[{hidden}]", "anchors": f"[{anchors}]"}
    lean = child("lean", **changes, repeats=1)
    plain_gb = estimate_gb(vocabulary, hidden, anchors, cfg, peak_gb())
    if plain_gb > cfg.limit_gb:
        return {
            "lean_peak_gb": lean["peak_gb"],
            "plain_peak_gb": plain_gb,
            "time_ratio": None,
            "lean_s": lean["lean_s"],
        }
    plain = child("plain", **changes, repeats=1)
    if not math.isclose(plain["plain_loss"], lean["lean_loss"], rel_tol=1e-5):
        raise RuntimeError(f"both sides must give the same loss, got {plain['plain_loss']} and {lean['lean_loss']}")
    both = child("both", **changes)
    ratio = both["lean_s"] / both["plain_s"]
    return {
        "lean_peak_gb": lean["peak_gb"],
        "plain_peak_gb": plain["peak_gb"],
        "time_ratio": ratio,
        "lean_s": both["lean_s"],
        "plain_s": both["plain_s"],
    }


def growth(cfg) -> dict[str, float]:
    """How time and peak of the lean side grow with tokens at the fewest anchors, and with anchors, over the smallest case."""
    common = {"vocabularies": f"[{min(cfg.vocabularies)}]", "hidden": f"[{cfg.hidden[0]}]", "repeats": cfg.repeats}
    figures = {}
    for name, values in GROWTH.items():
        changes = [{name: f"[{v}]" if name == "anchors" else v} for v in values]
        fixed = {"tokens": 1024} if name == "anchors" else {"anchors": "[64]"}
        runs = [child("lean", **common, **fixed, **change) for change in changes]
        for value, run in zip(values[1:], runs[1:], strict=True):
            figures[f"{name}_{value}_over_{values[0]}_time"] = run["lean_s"] / runs[0]["lean_s"]
            figures[f"{name}_{value}_over_{values[0]}_peak"] = run["peak_gb"] / runs[0]["peak_gb"]
    return figures


def show(cases: dict[tuple[int, int], dict[str, float | None]], cfg) -> None:
    """Print a row a case."""
    table = Table(title=f"loss and backward, blocks of {cfg.block_size}, {cfg.tokens} tokens, float32")
    for column in ("V", "anchors", "lean GB", "plain GB", "lean s", "plain s", "lean / plain"):
        table.add_column(column, justify="right")
    for (vocabulary, anchors), case in cases.items():
        if case["time_ratio"] is None:
            plain = (f"about {case['plain_peak_gb']:.0f}", "not run", f"above limit_gb={cfg.limit_gb:g}")
        else:
            plain = (f"{case['plain_peak_gb']:.2f}", f"{case['plain_s']:.2f}", f"{case['time_ratio']:.2f}")
        lean = f"{case['lean_peak_gb']:.2f}", plain[0], f"{case['lean_s']:.2f}"
        table.add_row(f"{vocabulary:,}", str(anchors), *lean, *plain[1:])
    Console(width=110).print(table)


def summary(cases: dict[tuple[int, int], dict[str, float | None]]) -> dict[str, float | bool]:
    """The figures of the last line."""
    largest = cases[max(cases)]
    timed = [case["time_ratio"] for _, case in sorted(cases.items()) if case["time_ratio"] is not None]
    figures = {
        "lean_peak_gb": largest["lean_peak_gb"],
        "plain_peak_gb": largest["plain_peak_gb"],
        "plain_measured": largest["time_ratio"] is not None,
        "time_ratio": timed[-1] if timed else None,
    }
    for (vocabulary, anchors), case in cases.items():
        figures |= {f"{name}_v{vocabulary}_n{anchors}": value for name, value in case.items()}
    return figures


@entry
def main() -> None:
    """Measure one side, or all cases."""
    cfg = arguments(DEFAULTS)
    if len(cfg.vocabularies) != len(cfg.hidden):
        raise ValueError(f"hidden needs one size a vocabulary, got {len(cfg.hidden)} for {len(cfg.vocabularies)}")
    if cfg.child:
        print(json.dumps(measure(cfg)))
        return
    cases = {}
    for vocabulary, hidden in zip(cfg.vocabularies, cfg.hidden, strict=True):
        for anchors in cfg.anchors:
            cases[vocabulary, anchors] = compare(vocabulary, hidden, anchors, cfg)
            print(f"V = {vocabulary:,}, {anchors} anchors: done", flush=True)
    figures = summary(cases) | (growth(cfg) if cfg.growth else {})
    show(cases, cfg)
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps(rounded))


if __name__ == "__main__":
    main()
