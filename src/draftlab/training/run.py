"""The stages of a training run: data, draft vocabulary, target features, fit.

    draw up  -> read conversations -> choose the draft vocabulary -> features (stored once, or online) -> fit

Each stage prints what it decided. The module knows nothing of configuration or of evaluation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import lightning as L
import torch
from omegaconf import DictConfig, OmegaConf

from draftlab.data.vocabulary import choose_draft_vocabulary
from draftlab.hardware import has_fast_bfloat16
from draftlab.target import load_target, load_tokenizer
from draftlab.training.checkpoint import load_drafter, newest_checkpoint, read_checkpoint, require_world_size
from draftlab.training.module import DrafterModule
from draftlab.training.warm_start import WarmStart, warm_start

FIT_OUTPUTS = ("checkpoints/*.ckpt", "metrics.csv")


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
        ValueError: an interval or a number of batches that is not positive, or a training without an end.
    """
    if settings.get("max_steps") == -1 and settings.get("max_epochs") == -1:
        raise ValueError(
            "trainer.settings needs max_steps or max_epochs above 0; with both at -1 training has no end, and the "
            "learning rate no schedule"
        )
    for name in ("accumulate_grad_batches", "val_check_interval"):
        value = settings.get(name)
        if value is not None and (isinstance(value, str) or value <= 0):
            raise ValueError(f"trainer.settings.{name} must be a number above 0, got {value!r}")


def find_resume(folder: Path, resume: bool | str) -> Path | None:
    """Checkpoint to go on from, or None to start.

    Args:
        folder: run folder. resume: True goes on if there is a checkpoint; a path names one; False starts anew.

    Raises:
        ValueError: starting anew would overwrite the checkpoints of an earlier run, or the named file is missing.
    """
    if isinstance(resume, str):
        return newest_checkpoint(resume)
    if not list(folder.glob(FIT_OUTPUTS[0])):
        return None
    if resume:
        return newest_checkpoint(folder)
    raise ValueError(
        f"{folder} already holds the checkpoints of a run; give resume=true to go on with it, run_name=… for another "
        "folder, or remove it"
    )


def check_resume(drafter, checkpoint: Path, world_size: int) -> None:
    """Refuse a checkpoint that ``drafter`` and ``world_size`` processes cannot go on from, before anything else is loaded.

    Raises:
        ValueError: the checkpoint is damaged, of another target, layout, head or size, or written by another number of processes.
    """
    require_world_size(read_checkpoint(checkpoint), world_size)
    load_drafter(checkpoint, drafter).train()  # the mode that a new drafter has


# What trains a drafter; and of it what may change while a run goes on: how long, where and how often, never what is learned.
TRAINING = ("target", "drafter", "head", "loss", "block", "data", "trainer", "seed")
MAY_CHANGE = ("trainer.settings.", "trainer.attention", "trainer.compile", "trainer.warm_start.", "target.path")
LEARNED_FROM = ("trainer.settings.accumulate_grad_batches", "trainer.settings.gradient_clip_val")
MAY_CHANGE_OF_DATA = (
    "features",
    "cache_dir",
    "num_workers",
    "expected",
    "prompts",
    "path",
    "more_paths",
    "shard_tokens",
)


def check_same_training(folder: Path, cfg: DictConfig) -> None:
    """Refuse to go on with the run in ``folder`` under another configuration than it was begun with.

    Keys that only one of the two has are those of another version, and count as unchanged.

    Raises:
        ValueError: something that trains the drafter differs; what, and from what to what.
    """
    path = folder / ".hydra" / "config.yaml"
    if not path.is_file():
        return
    before, now = (_training_values(config) for config in (OmegaConf.load(path), cfg))
    changed = [key for key in before if key in now and before[key] != now[key]]
    if changed:
        told = "; ".join(f"{key} was {before[key]}, now it is {now[key]}" for key in changed[:6])
        more = f"; and {len(changed) - 6} more" if len(changed) > 6 else ""
        raise ValueError(
            f"{folder} was trained with other settings: {told}{more}. Going on would mix two trainings under one name; give "
            "the values it began with, or run_name=… for a training of its own"
        )


def _training_values(cfg: DictConfig) -> dict[str, str]:
    """The values of ``cfg`` that must not change, by dotted key; interpolations as they are written."""
    tree = OmegaConf.to_container(cfg, resolve=False)
    values = dict(_leaves({name: tree[name] for name in TRAINING if name in tree}))
    exempt = (*MAY_CHANGE, *(f"data.{name}" for name in MAY_CHANGE_OF_DATA))
    return {key: str(value) for key, value in values.items() if key in LEARNED_FROM or not key.startswith(exempt)}


def _leaves(tree, prefix: str = ""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


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
    data.compute_features(target, drafter.draft_ids is not None, drafter.reads_last_hidden)
    return target if data.features == "online" else None


def fit(trainer: L.Trainer, module: DrafterModule, data, checkpoint: Path | None) -> None:
    """Train from ``checkpoint`` or from the start; Ctrl-C is passed on as such.

    Raises:
        KeyboardInterrupt: the user stopped; the last periodic checkpoint is whole.
    """
    if checkpoint is not None:
        print(f"resuming from {checkpoint}")
    try:
        trainer.fit(
            module, datamodule=data, ckpt_path=None if checkpoint is None else str(checkpoint), weights_only=True
        )
    except SystemExit:
        if trainer.interrupted:
            raise KeyboardInterrupt from None
        raise
    if trainer.interrupted:
        raise KeyboardInterrupt
