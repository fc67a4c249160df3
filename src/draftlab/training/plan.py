"""What an experiment would take, counted before anything is loaded: parameters, memory, steps, cache sizes (method 3).

    cache bytes a token = (M + 1) · D · 2                 M tapped layers and the last hidden state, bf16

The drafter is built on the meta device, so its parameters are counted, not estimated. Memory is a model of the largest
tensors; it says which settings fit, not the last megabyte. The module knows nothing of configuration files.

    print_plan(make_plan(parts, workload), gpu_gb=80)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from draftlab.data.cache import CODEC_NAMES, IDS_AND_MASK, CacheSettings, planned_bytes
from draftlab.losses.draft_loss import AUTO

GB, TB = 1e9, 1e12
LOCAL_DISK = 4 * TB  # stored features beyond that are no advice


@dataclass(frozen=True)
class Workload:
    """How much is trained on, and how.

    Args:
        samples: conversations. tokens: of each, on average. max_length: longest sequence.
        batch_size: sequences in memory at a time, per device. accumulate: micro-batches a step. devices: ranks.
        epochs: -1 if ``max_steps`` ends training. max_steps: -1 if ``epochs`` does.
        features: data.features. mixed: bf16 compute with float32 master weights. chunk_blocks: of the loss.
        cache: data.codec and its like. window: bytes of data.window_gb.
        teachers: tokens of a conversation that an anchor can be at; None: unknown.
    """

    samples: int
    tokens: float
    max_length: int
    batch_size: int
    accumulate: int
    devices: int
    epochs: int
    max_steps: int
    features: str
    mixed: bool
    chunk_blocks: int | str | None
    cache: CacheSettings = field(default_factory=CacheSettings)
    teachers: float | None = None
    window: float = 20 * GB

    @property
    def sequences_per_step(self) -> int:
        """Global batch in sequences."""
        return self.batch_size * self.accumulate * self.devices

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        by_epochs = self.epochs * -(-self.samples // self.sequences_per_step) if self.epochs > 0 else None
        by_steps = self.max_steps if self.max_steps > 0 else None
        return min(n for n in (by_epochs, by_steps) if n is not None)


@dataclass(frozen=True)
class Plan:
    """All figures; memory in bytes, per device."""

    parts: object
    work: Workload
    trainable: Counter  # parameters by module of the drafter
    frozen: Counter  # parameters by part of the target that training needs
    memory: dict[str, float]
    cache_per_token: int
    cache_total: float

    @property
    def memory_total(self) -> float:
        """Bytes per device."""
        return sum(self.memory.values())


def workload(data, settings: Mapping[str, Any], chunk_blocks: int | str | None, mixed: bool) -> Workload:
    """Workload of a datamodule and of Lightning's trainer ``settings``.

    The size of the data is what ``data.expected`` says (``samples``, ``tokens`` of each).

    Raises:
        ValueError: the size of the data is not known.
    """
    if not {"samples", "tokens"} <= set(data.expected):
        raise ValueError("plan=true needs the size of the data: give data.expected.samples=… data.expected.tokens=…")
    devices = settings["devices"] if isinstance(settings["devices"], int) and settings["devices"] > 0 else 1
    return Workload(
        samples=int(data.expected["samples"]),
        tokens=float(data.expected["tokens"]),
        max_length=data.max_length,
        batch_size=data.batch_size,
        accumulate=settings["accumulate_grad_batches"],
        devices=devices * settings.get("num_nodes", 1),
        epochs=settings["max_epochs"],
        max_steps=settings["max_steps"],
        features=data.features,
        mixed=mixed,
        chunk_blocks=chunk_blocks,
        cache=data.cache,
        teachers=data.expected.get("teachers"),
        window=data.stream.limit,
    )


def make_plan(parts, work: Workload) -> Plan:
    """Count everything for ``parts`` (built on the meta device) under ``work``."""
    spec = parts.spec
    trainable = Counter()
    for name, parameter in parts.drafter.named_parameters():
        trainable[name.split(".")[0]] += parameter.numel()
    ends = spec.vocab_size * spec.hidden_size
    frozen = Counter({"embedding": ends, "LM head": 0 if spec.tied else ends})
    if work.features == "online":
        frozen["target layers"] = target_layer_parameters(spec)
    per_token = (spec.num_features + 1) * spec.hidden_size * 2 + IDS_AND_MASK
    total = per_token * work.samples * work.tokens
    return Plan(parts, work, trainable, frozen, memory(parts, work, trainable, frozen), per_token, total)


def target_layer_parameters(spec) -> int:
    """Parameters of the target's decoder layers (dense, gated MLP), an estimate from its sizes."""
    attention = spec.hidden_size * spec.head_dim * (2 * spec.num_heads + 2 * spec.num_kv_heads)
    return spec.num_layers * (attention + 3 * spec.hidden_size * spec.intermediate_size)


def memory(parts, work: Workload, trainable: Counter, frozen: Counter) -> dict[str, float]:
    """Bytes per device by purpose, at the largest batch."""
    spec, block, drafter = parts.spec, parts.block, parts.drafter
    compute = 2 if work.mixed else 4
    context = work.batch_size * work.max_length  # tokens
    slots = work.batch_size * block.num_anchors * block.block_size
    activations = compute * drafter.kept_values(work.batch_size, work.max_length)
    features = 4 * context * (spec.num_features + 1) * spec.hidden_size
    blocks, num_depths = work.chunk_blocks, 1 + len(drafter.exit_layers)
    if blocks == AUTO:
        blocks = parts.loss.blocks_within(block.block_size, drafter.draft_vocab_size, num_depths)
    chunk = slots if blocks is None else min(slots, blocks * block.block_size)
    loss = 4 * parts.loss.kept_per_logit * num_depths * chunk * drafter.draft_vocab_size
    parameters = sum(trainable.values())
    return {
        "drafter weights (float32)": 4 * parameters,
        "gradients (float32)": 4 * parameters,
        "AdamW moments (float32)": 8 * parameters,
        "frozen target": compute * sum(frozen.values()),
        "activations": activations + features,
        "loss (logits of both sides)": loss,
    }


def fitting(parts, work: Workload, gpu_gb: float) -> list[tuple[str, float, bool]]:
    """Settings tried in the order in which they hurt least: what to write, bytes, and whether it fits in ``gpu_gb`` GB."""
    rows, seen = [], work
    stored = {"features": "memory"} if make_plan(parts, work).cache_total <= LOCAL_DISK else {}
    sequences = work.batch_size * work.accumulate  # a step keeps them
    single = f"data.batch_size=1 trainer.settings.accumulate_grad_batches={sequences}"
    steps = [
        ("as composed", {}),
        ("loss.chunk_blocks=auto", {"chunk_blocks": AUTO} if parts.loss.chunk_gb else {}),
        ("data.features=memory", stored),
        (single, {"batch_size": 1, "accumulate": sequences}),
        ("trainer.settings.precision=bf16-mixed", {"mixed": True}),
        ("data.max_length=2048", {"max_length": min(2048, work.max_length)}),
    ]
    for text, change in steps:
        changed = replace(seen, **change)
        if text != "as composed" and changed == seen:
            continue
        seen = changed
        size = make_plan(parts, seen).memory_total
        rows.append((text if text == "as composed" else f"and {text}", size, size <= gpu_gb * GB))
    return rows


def print_plan(plan: Plan, gpu_gb: float, console: Console | None = None) -> None:
    """Print the plan as tables.

    Raises:
        ValueError: a GPU whose memory is no positive number.
    """
    if isinstance(gpu_gb, bool) or not isinstance(gpu_gb, int | float) or not gpu_gb > 0:
        raise ValueError(f"plan_gpu_gb must be a number of gigabytes above 0, got {gpu_gb!r}")
    console = console or Console(width=110)
    for table in (_parameters(plan), _memory(plan, gpu_gb), _steps(plan), _cache(plan)):
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", min_width=100)
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    return table


def _parameters(plan: Plan) -> Table:
    drafter, spec, block = plan.parts.drafter, plan.parts.spec, plan.parts.block
    layout = "anchor-first" if block.sample_from_anchor else "1+N"
    table = _table(
        f"{type(drafter).__name__} ({type(drafter.markov_head).__name__}) for {spec.name}: block {block.block_size} "
        f"({layout}; weights {block.weights_text}), target layers {list(spec.target_layer_ids)}, mask id {spec.mask_token_id}, "
        f"draft vocabulary {drafter.draft_vocab_size:,} of {spec.vocab_size:,}",
        "parameters",
        "trainable",
        "frozen",
    )
    for name, count in plan.trainable.items():
        table.add_row(name, f"{count:,}", "")
    for name, count in plan.frozen.items():
        if count:
            table.add_row(f"target: {name}", "", f"{count:,}")
    table.add_section()
    table.add_row("total", f"{sum(plan.trainable.values()):,}", f"{sum(plan.frozen.values()):,}")
    return table


def _memory(plan: Plan, gpu_gb: float) -> Table:
    table = _table(f"memory per device, longest batch (GPU of {gpu_gb:g} GB)", "purpose", "GB")
    for name, size in plan.memory.items():
        table.add_row(name, f"{size / GB:,.2f}")
    table.add_section()
    for text, size, fits in fitting(plan.parts, plan.work, gpu_gb):
        table.add_row(f"{text}: {'fits' if fits else 'does not fit'}", f"{size / GB:,.2f}")
    return table


def _steps(plan: Plan) -> Table:
    work = plan.work
    table = _table("steps and tokens", "quantity", "value")
    table.add_row("conversations × tokens", f"{work.samples:,} × {work.tokens:,.0f}")
    table.add_row("tokens in the data", f"{work.samples * work.tokens:,.0f}")
    batch = f"{work.sequences_per_step:,} = {work.batch_size} × {work.accumulate} × {work.devices}"
    table.add_row("sequences a step (batch × accumulation × devices)", batch)
    table.add_row("optimiser steps", f"{work.steps:,}")
    table.add_row("tokens read in training", f"{work.steps * work.sequences_per_step * work.tokens:,.0f}")
    blocks = work.steps * work.sequences_per_step * plan.parts.block.num_anchors
    table.add_row("blocks drafted in training, at most", f"{blocks:,}")
    return table


def _cache(plan: Plan) -> Table:
    spec, work = plan.parts.spec, plan.work
    table = _table(
        "target features by mode (bf16 hidden states; logits are never stored)", "mode", "bytes/token", "total"
    )
    hidden = (spec.num_features + 1) * spec.hidden_size * 2
    table.add_row("online (target inside training)", "0", "0")
    table.add_row(
        "memory (computed once, kept on the local disk)", f"{plan.cache_per_token:,}", _size(plan.cache_total)
    )
    for codec, total in codec_totals(spec, work).items():
        text = f"cache, data.codec={codec}"
        if codec == "bf16":
            text += f": {spec.num_features} + 1 states × {spec.hidden_size:,} × 2 B = {hidden:,} B, and ids and mask"
        per_token = total / (work.samples * work.tokens)
        table.add_row(text, f"{per_token:,.0f}", _size(total))
        if codec == work.cache.codec:
            shard = per_token * work.cache.shard_tokens
            stream = f"stream, data.codec={codec}: a window of about {work.window // shard:,.0f} shards, filled anew every epoch"
            streamed = f"{per_token:,.0f}", _size(min(total, work.window))
    table.add_row(stream, *streamed)
    trimmed = "no token trimmed" if work.teachers is None else f"{work.teachers:,.0f} tokens of each can teach"
    table.caption = f"chosen: data.features={work.features} data.codec={work.cache.codec}; {trimmed}"
    return table


def codec_totals(spec, work: Workload) -> dict[str, float]:
    """Bytes of the whole cache by ``data.codec``; the chosen one with its own ``last_codec`` and rank."""
    chosen = work.cache
    return {
        codec: planned_bytes(
            chosen
            if codec == chosen.codec
            else CacheSettings(codec, trim=chosen.trim, shard_tokens=chosen.shard_tokens),
            spec,
            work.samples,
            work.tokens,
            work.teachers,
        )
        for codec in CODEC_NAMES
    }


def _size(size: float) -> str:
    return f"{size / TB:,.0f} TB" if size >= 10 * TB else f"{size / GB:,.2f} GB"
