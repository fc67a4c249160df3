"""Tokens per second of the decode loop at batch 16 and batch 1, on the same prompts in one run; plain decoding beside it.

    python benchmarks/decode.py                       a freshly initialised drafter (accepts almost nothing)
    python benchmarks/decode.py run=outputs/demo      a trained one
    python benchmarks/decode.py prompts=32 max_new_tokens=128 temperature=0

The sides take turns: the large batch goes before and after the small one, so that a machine that changes its speed changes
both. The last line is JSON; ``batch16_over_batch1`` is the ratio of speculative decoding.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field

import torch
from common import arguments, fresh_drafter, heldout_prompts
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from draftlab.cli import entry
from draftlab.decode.loop import Decoder, DecodeSettings
from draftlab.decode.trained import open_drafter
from draftlab.sampling import Sampling
from draftlab.target import load_target

DEFAULTS = {
    "run": None,
    "prompts": 16,
    "max_new_tokens": 64,
    "temperature": 1.0,
    "batch": 16,
    "device": "cpu",
    "seed": 0,
}


@dataclass
class Side:
    """Sums over the turns of one decoder at one batch size."""

    name: str
    drafter: object
    batch_size: int
    tokens: int = 0
    seconds: float = 0.0
    parts: Counter = field(default_factory=Counter)
    committed: int = 0
    rounds: int = 0

    @property
    def speed(self) -> float:
        """Tokens per second, prefill included."""
        return self.tokens / self.seconds

    def take_turn(self, target, prompts: list[list[int]], settings: DecodeSettings, seed: int) -> None:
        """Decode all prompts once."""
        decoder = Decoder(target, self.drafter, settings)
        start = time.perf_counter()
        generations = decoder.run(prompts, torch.Generator(device=target.device).manual_seed(seed))
        self.seconds += time.perf_counter() - start
        self.tokens += sum(len(generation.tokens) for generation in generations)
        self.parts.update(decoder.clock.seconds)
        for generation in generations:
            self.rounds += len(generation.rounds)
            self.committed += sum(counted.committed for counted in generation.rounds)


def load_pair(cfg: DictConfig):
    """The target and a drafter for it: trained if ``cfg.run`` names a run, else freshly initialised."""
    if cfg.run is not None:
        trained = open_drafter(cfg.run)
        return trained.load_target(cfg.device), trained.drafter
    drafter = fresh_drafter()
    target = load_target(drafter.spec, cfg.device)
    return target, drafter.to(cfg.device).attach(target.ends)


def measure(target, drafter, prompts: list[list[int]], cfg: DictConfig) -> list[Side]:
    """All sides, in turns: large batch, small batch, large batch again."""
    sampling = Sampling(cfg.temperature)
    sides = [
        Side(name, used, batch_size)
        for batch_size in (cfg.batch, 1)
        for name, used in (("speculative", drafter), ("plain", None))
    ]
    for side in sides:  # warm-up
        side_settings = DecodeSettings(2, sampling, target.eos_token_ids, side.batch_size)
        Decoder(target, side.drafter, side_settings).run(prompts[:2])
    for batch_size in (cfg.batch, 1, cfg.batch):
        for side in sides:
            if side.batch_size == batch_size:
                settings = DecodeSettings(cfg.max_new_tokens, sampling, target.eos_token_ids, batch_size)
                side.take_turn(target, prompts, settings, cfg.seed)
    return sides


def show(sides: list[Side], title: str) -> None:
    """Print one row a side."""
    table = Table(title=title)
    for column in ("decoding", "batch", "tokens/s", "accepted length", "prefill s", "draft s", "verify s"):
        table.add_column(column, justify="left" if column == "decoding" else "right")
    for side in sides:
        length = f"{side.committed / side.rounds:.2f}" if side.rounds else "–"
        spent = [f"{side.parts[part]:.1f}" for part in ("prefill", "draft", "verify")]
        table.add_row(side.name, str(side.batch_size), f"{side.speed:.1f}", length, *spent)
    Console().print(table)


@entry
def main() -> None:
    """Read key=value arguments, measure, print."""
    cfg = arguments(DEFAULTS)
    target, drafter = load_pair(cfg)
    prompts = heldout_prompts(target, cfg.prompts, cfg.seed)
    sides = measure(target, drafter, prompts, cfg)
    show(sides, f"{target.spec.name}, {len(prompts)} prompts, T={cfg.temperature:g}, {torch.get_num_threads()} threads")
    speed = {(side.name, side.batch_size): side.speed for side in sides}
    ratios = {
        f"batch{cfg.batch}_over_batch1": speed["speculative", cfg.batch] / speed["speculative", 1],
        f"plain_batch{cfg.batch}_over_batch1": speed["plain", cfg.batch] / speed["plain", 1],
        "speculative_over_plain_batch1": speed["speculative", 1] / speed["plain", 1],
        f"speculative_over_plain_batch{cfg.batch}": speed["speculative", cfg.batch] / speed["plain", cfg.batch],
        "tokens_per_s": speed["speculative", cfg.batch],
    }
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
