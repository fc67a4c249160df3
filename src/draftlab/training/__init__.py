"""Training: the LightningModule, optimiser, checkpoints, plan and the stages of a run."""

from draftlab.training.checkpoint import best_checkpoint, describe, load_drafter, newest_checkpoint, read_checkpoint
from draftlab.training.checkpoint_io import DurableCheckpointIO
from draftlab.training.module import DrafterModule, ValidationOutput
from draftlab.training.optim import OptimizerSettings

__all__ = [
    "DrafterModule",
    "DurableCheckpointIO",
    "OptimizerSettings",
    "ValidationOutput",
    "best_checkpoint",
    "describe",
    "load_drafter",
    "newest_checkpoint",
    "read_checkpoint",
]
