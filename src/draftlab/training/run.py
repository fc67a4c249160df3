"""The stages of a training run: data, draft vocabulary, target features, fit.

    draw up  -> read conversations -> choose the draft vocabulary -> features (stored once, or online) -> fit

Each stage prints what it decided. The module knows nothing of configuration or of evaluation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from draftlab.cli import stops_as_interrupts
from draftlab.data.vocabulary import choose_draft_vocabulary
from draftlab.hardware import has_fast_bfloat16
from draftlab.target import load_target, load_tokenizer
from draftlab.training.warm_start import WarmStart, warm_start

if TYPE_CHECKING:
    import lightning as L

    from draftlab.training.module import DrafterModule


def pick_device(accelerator: str) -> str:
    """Device of the frozen target: where this rank will train.

    Raises:
        ValueError: a GPU is asked for and PyTorch sees none.
    """
    if accelerator in ("cuda", "gpu") and not torch.cuda.is_available():
        raise ValueError(
            f"trainer.settings.accelerator={accelerator} needs a GPU, but PyTorch {torch.__version__} sees none; use auto or cpu"
        )
    if accelerator in ("cuda", "gpu") or (accelerator == "auto" and torch.cuda.is_available()):
        return f"cuda:{os.environ.get('LOCAL_RANK', 0)}"  # Lightning and torchrun tell a process its device this way
    return "cpu"


def pick_precision(precision: str, device: str) -> str:
    """Lightning's word for ``auto`` and ``fast``; anything else is its own.

    ``auto`` is bf16-mixed (float32 master weights) on CUDA and float32 on the CPU; ``fast`` is bf16-mixed also on a CPU that
    has instructions for it, where a step then takes about half the time.
    """
    if precision not in ("auto", "fast"):
        return precision
    mixed = has_fast_bfloat16(device) if precision == "fast" else torch.device(device).type == "cuda"
    return "bf16-mixed" if mixed else "32-true"


def check_settings(settings: Mapping) -> None:
    """Refuse ``trainer.settings`` on which Lightning stumbles only when the target is loaded and training begins.

    Raises:
        ValueError: a number that is none or out of range, or a training without an end.
    """
    for name, least, meaning in (
        ("max_steps", -1, "-1: no limit of its own"),
        ("max_epochs", -1, "-1: no limit of its own"),
        ("num_nodes", 1, "machines"),
    ):
        value = settings.get(name, least)
        if type(value) is not int or value < least:
            raise ValueError(f"trainer.settings.{name} must be whole and at least {least} ({meaning}), got {value!r}")
    if settings.get("max_steps") == -1 and settings.get("max_epochs") == -1:
        raise ValueError(
            "trainer.settings needs max_steps or max_epochs above 0; with both at -1 training has no end, and the "
            "learning rate no schedule"
        )
    for name in ("accumulate_grad_batches", "val_check_interval"):
        value = settings.get(name)
        if value is not None and (isinstance(value, str) or value <= 0):
            raise ValueError(f"trainer.settings.{name} must be a number above 0, got {value!r}")


def load_data(data, spec) -> None:
    """Read and render the conversations, and say what was kept and skipped."""
    data.load(spec, load_tokenizer(spec))


def set_vocabulary(drafter, data) -> None:
    """Choose the reduced draft vocabulary by coverage of the supervised training tokens; no-op for the whole vocabulary."""
    if drafter.draft_ids is None:
        return
    chosen = choose_draft_vocabulary(data.token_counts(), drafter.draft_vocab_size)
    drafter.set_draft_vocabulary(chosen.ids)
    print(
        f"draft vocabulary: {len(chosen.ids):,} of {drafter.spec.vocab_size:,} tokens cover {chosen.coverage:.2%} of the "
        "supervised training tokens; the rest has draft probability 0"
    )


def prepare_target(drafter, data, device: str, start: WarmStart | None = None):
    """Load the target, attach its ends, start the drafter from it, and in memory mode make the features not kept yet.

    Args:
        drafter: built, with its draft vocabulary. data: loaded. start: what the drafter takes from the target; None keeps
            it as it is (a run that is resumed).

    Returns:
        The frozen target for online features; None where they are stored, so that its layers can be freed.
    """
    target = load_target(drafter.spec, device)
    drafter.attach(target.ends)
    if start is not None:
        warm_start(drafter, target, start)
    data.compute_features(target, drafter.draft_ids is not None, drafter.reads_last_hidden, drafter.reads_layers)
    return target if data.features == "online" else None


def fit(trainer: L.Trainer, module: DrafterModule, data, checkpoint: Path | None) -> None:
    """Train from ``checkpoint`` or from the start; Ctrl-C is passed on as such.

    Raises:
        KeyboardInterrupt: the user stopped; the last periodic checkpoint is whole.
    """
    if checkpoint is not None:
        print(f"resuming from {checkpoint}")
    with stops_as_interrupts(trainer):
        trainer.fit(
            module, datamodule=data, ckpt_path=None if checkpoint is None else str(checkpoint), weights_only=True
        )
