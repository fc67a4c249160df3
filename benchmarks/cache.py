"""The feature cache by codec: bytes a token as written, what a codec loses, and how fast it is written and read.

    python benchmarks/cache.py                                     smollm2_135m on 48 answers of data/demo
    python benchmarks/cache.py samples=12 codecs=[bf16,int4] target=custom target_path=<folder>

Every codec is written from the same states by ``Trainer.predict`` and read in training's order. ``plan`` is what plans say for
these tokens. Writing includes the target's own reading, reading only decoding. The last line is JSON: ``bytes_per_token``,
``ratio_to_bf16`` (to untrimmed bfloat16 of these tokens), ``plan_ratio``, ``feature_error`` and ``last_hidden_error`` (relative),
and the throughputs over those of bf16, all by codec.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import lightning as L
import torch
from common import CONF, arguments
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from rich.console import Console
from rich.table import Table

from draftlab.blocks import anchor_candidates
from draftlab.cli import entry
from draftlab.data.cache import CODEC_NAMES, CacheSettings, cache_identity, open_cache, planned_bytes
from draftlab.data.codecs import relative_error
from draftlab.data.predict import Writing, write_cache
from draftlab.data.shards import extent
from draftlab.target import load_target, load_tokenizer

DEFAULTS = {
    "target": "smollm2_135m",
    "target_path": None,
    "data": "demo",
    "data_path": None,
    "samples": 48,
    "codecs": list(CODEC_NAMES),
    "trim": "teachers",
    "rank": None,
}
WORDS = ("bytes_per_token", "ratio_to_bf16", "plan_ratio", "feature_error", "last_hidden_error", "write", "read")


def load(cfg):
    """The target, and the first ``samples`` conversations of the data choice."""
    overrides = [f"target={cfg.target}", f"data={cfg.data}", "data.val_samples=0"]
    overrides += [f"target.path={cfg.target_path}"] if cfg.target_path else []
    overrides += [f"data.path={cfg.data_path}"] if cfg.data_path else []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("train", overrides=overrides)
    spec, data = instantiate(composed.target), instantiate(composed.data)
    data.load(spec, load_tokenizer(spec))
    if len(data.samples) < cfg.samples:
        raise ValueError(f"samples is {cfg.samples}, but {data.folder} holds {len(data.samples)}; make it smaller")
    return load_target(spec, "cpu"), data.samples[: cfg.samples]


def measure(target, samples, settings: CacheSettings, exact=None) -> tuple[dict[str, float], list]:
    """Figures of one codec, and the states that it gave back; errors against ``exact``, those of bfloat16 without trimming."""
    identity = cache_identity(target, samples, settings, {})
    silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trainer = L.Trainer(accelerator="cpu", enable_checkpointing=False, **silent)
        start = time.perf_counter()
        counts = write_cache(Writing(target, samples, folder, identity, settings), trainer)["counts"]
        written = time.perf_counter()
        store = open_cache(target, samples, folder, identity, settings)
        opened = time.perf_counter()
        states = [store[index][:2] for index in range(len(samples))]
        read = time.perf_counter()
    figures = {
        "bytes_per_token": counts["bytes_per_token"],
        "plan_ratio": counts["bytes"] / planned(target, samples, settings),
    }
    figures |= {"write": counts["tokens"] / (written - start), "read": counts["tokens"] / (read - opened)}
    return figures | (errors(samples, settings.trim, exact, states) if exact else {}), states


def planned(target, samples, settings: CacheSettings) -> float:
    """What plans say for these samples: of a trimmed one, the stored tokens and those that teach."""
    kept = [extent(sample.loss_mask, settings.trim) for sample in samples]
    tokens, states = (sum(map(count, kept)) / len(samples) for count in (lambda k: k.context, lambda k: len(k.states)))
    return planned_bytes(settings, target.spec, len(samples), tokens, states)


def errors(samples, trim: str, exact: list, states: list) -> dict[str, float]:
    """Relative errors of both kinds of states at the positions that are stored."""
    kept = [extent(sample.loss_mask, trim) for sample in samples]
    features = [torch.cat([s[0][: k.context] for s, k in zip(side, kept, strict=True)]) for side in (exact, states)]
    last = [torch.cat([s[1][k.states] for s, k in zip(side, kept, strict=True)]) for side in (exact, states)]
    return {"feature_error": relative_error(*features), "last_hidden_error": relative_error(*last)}


@entry
def main() -> None:
    """Measure all codecs; print a table and the ratios."""
    cfg = arguments(DEFAULTS)
    settings = {codec: CacheSettings(codec, trim=cfg.trim, rank=cfg.rank) for codec in cfg.codecs}  # refuses first
    target, samples = load(cfg)
    print(f"{len(samples)} conversations, {sum(map(len, samples)):,} tokens, ", end="")
    print(f"{sum(int(anchor_candidates(sample.loss_mask[None]).sum()) for sample in samples):,} of them teach")
    plain, exact = measure(target, samples, CacheSettings("bf16", trim="none"))
    figures = {codec: measure(target, samples, chosen, exact)[0] for codec, chosen in settings.items()}
    table = Table(title="target features by codec (tokens/s of writing and reading)")
    for column in ("codec", *WORDS):
        table.add_column(column, justify="right")
    for codec, row in figures.items():
        row["ratio_to_bf16"] = row["bytes_per_token"] / plain["bytes_per_token"]
        table.add_row(codec, *(f"{row[word]:,.0f}" if row[word] > 100 else f"{row[word]:.3g}" for word in WORDS))
    Console(width=120).print(table)
    report = {word: {codec: round(row[word], 4) for codec, row in figures.items()} for word in WORDS[:5]}
    for word in WORDS[5:]:
        report[f"{word}_throughput_to_bf16"] = {c: round(row[word] / plain[word], 3) for c, row in figures.items()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
