"""Going on with a run: from which checkpoint, and only as the training that it was begun as.

    checkpoint = find_resume(folder, cfg.resume)            # None: start anew
    check_resume(drafter, checkpoint, world_size=1)
    check_same_training(folder, cfg)

Everything is refused before data or weights of the target load.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from draftlab.configuration import leaves
from draftlab.runs import read_config
from draftlab.training.checkpoint import load_drafter, newest_checkpoint, read_checkpoint, require_world_size

FIT_OUTPUTS = ("checkpoints/*.ckpt", "metrics.csv")
TRAINING = ("target", "drafter", "head", "loss", "block", "data", "trainer", "seed")  # groups that train a drafter
# What may change in them while a run goes on: how long, where and how fast, never what is learned. Answers may move to another
# place; that they are the same ones is the user's word.
MAY_CHANGE = (
    *("trainer.settings.", "trainer.attention", "trainer.compile", "trainer.warm_start.", "target.path"),
    *("data.features", "data.cache_dir", "data.num_workers", "data.expected", "data.prompts", "data.path"),
    *("data.more_paths", "data.shard_tokens", "data.window_gb", "data.producer_seconds"),
)
LEARNED_FROM = ("trainer.settings.accumulate_grad_batches", "trainer.settings.gradient_clip_val")
MOST = 6  # changed keys that a refusal names


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
        ValueError: the checkpoint is damaged or imported, of another target, layout, head or size, or written by another number
            of processes.
    """
    content = read_checkpoint(checkpoint)
    if "global_step" not in content:
        raise ValueError(
            f"{checkpoint} holds a drafter and no state of a training, so there is nothing to go on with; start one from it with "
            f"init_from={checkpoint.parent.parent} run_name=…"
        )
    require_world_size(content, world_size)
    load_drafter(checkpoint, drafter).train()  # the mode that a new drafter has


def check_same_training(folder: Path, cfg: DictConfig) -> None:
    """Refuse to go on with the run in ``folder`` under another configuration than it was begun with.

    Keys that only one of the two has are those of another version, and count as unchanged.

    Raises:
        ValueError: something that trains the drafter differs; what, and from what to what.
    """
    path = folder / ".hydra" / "config.yaml"
    if not path.is_file():
        return
    before, now = (_training_values(config) for config in (read_config(path), cfg))
    changed = [key for key in before if key in now and before[key] != now[key]]
    if changed:
        told = "; ".join(f"{key} was {before[key]}, now it is {now[key]}" for key in changed[:MOST])
        more = f"; and {len(changed) - MOST} more" if len(changed) > MOST else ""
        raise ValueError(
            f"{folder} was trained with other settings: {told}{more}. Going on would mix two trainings under one name; give "
            "the values it began with, or run_name=… for a training of its own"
        )


def _training_values(cfg: DictConfig) -> dict[str, str]:
    """The values of ``cfg`` that must not change, by dotted key; interpolations as they are written."""
    tree = OmegaConf.to_container(cfg, resolve=False)
    values = leaves({name: tree[name] for name in TRAINING if name in tree})
    return {key: value for key, value in values if key in LEARNED_FROM or not key.startswith(MAY_CHANGE)}
