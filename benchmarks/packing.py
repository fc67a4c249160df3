"""What packing saves: time of a training step per supervised block, in packed rows and in padded ones, with the same anchors.

    python benchmarks/packing.py                                            the demo's recipe, on random features
    python benchmarks/packing.py 'overrides=[experiment=demo,drafter=eagle3]' shuffled=true

Conversations have random lengths between ``shortest`` and ``longest``; a batch holds ``batch`` of them, of similar length as in
training, or (``shuffled=true``) of any. Both layouts take turns on the same batches, and medians over all are given. The last line
is JSON: seconds per 1,000 supervised blocks, padded over packed (``packing_gain``, above 1 where packing is faster), and the shares
of padding tokens and of filler blocks.
"""

from __future__ import annotations

import json
import statistics
import time

import torch
from common import arguments, training_module

from draftlab.blocks import draw_anchors
from draftlab.cli import entry
from draftlab.data.loaders import BatchPlan
from draftlab.data.packing import pack
from draftlab.training import DrafterModule
from draftlab.types import Batch

DEFAULTS = {
    "overrides": ["experiment=demo"],
    "batch": 4,
    "shortest": 60,
    "longest": 512,
    "prompt": 40,  # tokens of each conversation that are not supervised
    "tokens_per_row": 2048,
    "steps": 8,  # batches that are timed in both layouts, after two that are not
    "shuffled": False,
}
WARM_UP = 2


def padded_batches(spec, cfg, generator: torch.Generator) -> list[Batch]:
    """Batches of random conversations in padded rows, in the order of training or (shuffled) of chance."""
    count = cfg.batch * 16 * -(-(WARM_UP + cfg.steps) // 16)  # whole windows of the loader
    lengths = torch.randint(cfg.shortest, cfg.longest + 1, (count,), generator=generator).tolist()
    plan = BatchPlan(lengths, cfg.batch, seed=0, window=1 if cfg.shuffled else 16)
    chosen = [[lengths[row] for row in plan.rows(0, index)] for index in range(WARM_UP + cfg.steps)]
    return [random_batch(spec, part, cfg.prompt, generator) for part in chosen]


def random_batch(spec, lengths: list[int], prompt: int, generator: torch.Generator) -> Batch:
    """A padded batch of conversations of these lengths, with random tokens and features."""
    shape = (len(lengths), max(lengths))
    real = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(-1)
    return Batch(
        torch.randint(spec.vocab_size, shape, generator=generator),
        real,
        real & (torch.arange(shape[1]) >= prompt),
        torch.randn(*shape, spec.feature_size, generator=generator),
        torch.randn(*shape, spec.hidden_size, generator=generator),
        torch.full(shape, 20.0),
    )


def seconds_of(module: DrafterModule, adamw, layout, batch: Batch, step: int) -> tuple[float, int]:
    """Seconds of a training step, layout and optimiser included, and its supervised blocks."""
    start = time.perf_counter()
    blocks, _, report = module.compute(layout(batch), 0, step)
    (report.numerator / report.weight).backward()
    torch.nn.utils.clip_grad_norm_(module.drafter.parameters(), 1.0)
    adamw.step()
    adamw.zero_grad()
    return time.perf_counter() - start, int(blocks.valid.sum())


def measure(cfg) -> dict[str, float]:
    """All figures."""
    generator = torch.Generator().manual_seed(0)
    module, adamw = training_module(cfg.overrides, generator)
    drafter, spec = module.drafter, module.drafter.spec
    layouts = {"padded": lambda batch: batch, "packed": lambda batch: pack(batch, cfg.tokens_per_row)}
    spent: dict[str, list[float]] = {name: [] for name in layouts}
    tokens, filler = ({name: [0, 0] for name in layouts} for _ in range(2))
    for step, batch in enumerate(padded_batches(spec, cfg, generator)):
        counted = {}
        for name, layout in layouts.items():
            laid = layout(batch)
            seconds, counted[name] = seconds_of(module, adamw, layout, batch, step)
            _, valid = draw_anchors(laid.loss_mask, drafter.block.num_anchors, None, laid.document_ids)
            for pair, mask in ((tokens[name], laid.attention_mask), (filler[name], valid)):
                pair[0], pair[1] = pair[0] + int((~mask).sum()), pair[1] + mask.numel()
            if step >= WARM_UP:
                spent[name].append(1000 * seconds / counted[name])
        assert counted["padded"] == counted["packed"]
    medians = {name: statistics.median(values) for name, values in spent.items()}
    figures = {f"{name}_s_per_1000_blocks": value for name, value in medians.items()}
    figures["packing_gain"] = medians["padded"] / medians["packed"]
    for name in layouts:
        figures[f"{name}_padding"] = tokens[name][0] / tokens[name][1]
        figures[f"{name}_filler_blocks"] = filler[name][0] / filler[name][1]
    return figures


@entry
def main() -> None:
    """Time both layouts."""
    figures = measure(arguments(DEFAULTS))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
