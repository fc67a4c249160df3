"""Training: the LightningModule, optimiser, checkpoints, plan and the stages of a run.

What brings Lightning, which takes seconds to import, is imported when it is asked for: a plan or a refusal does without.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from draftlab.training.checkpoint import best_checkpoint, describe, load_drafter, newest_checkpoint, read_checkpoint
from draftlab.training.optim import OptimizerSettings

if TYPE_CHECKING:
    from draftlab.training.checkpoint_io import DurableCheckpointIO
    from draftlab.training.module import DrafterModule, ValidationOutput

LATE = {"DrafterModule": "module", "DurableCheckpointIO": "checkpoint_io", "ValidationOutput": "module"}

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


def __getattr__(name: str) -> Any:
    """The exports of ``LATE``, each out of its own file."""
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{LATE[name]}"), name)
