"""A trained run folder opened for decoding: its composed configuration, its best checkpoint, its target.

    trained = open_drafter("outputs/demo")            # no target weights yet: refusals come first
    target = trained.load_target("auto")              # a FrozenTarget with trained.drafter attached

A checkpoint of another target, layout or head is refused by what it says about itself. It knows nothing of prompts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlab.runs import read_run_config
from draftlab.target import FrozenTarget, find_device, load_target
from draftlab.target.products import freeze_products
from draftlab.training.build import build
from draftlab.training.checkpoint import best_checkpoint, describe, load_drafter, newest_checkpoint

CHOICES = {"best": best_checkpoint, "last": newest_checkpoint}


@dataclass(frozen=True)
class TrainedDrafter:
    """A drafter with its trained weights; ``identity`` says in plain types which one it is."""

    drafter: Any
    checkpoint: Path
    identity: dict[str, Any]

    def load_target(self, device: str) -> FrozenTarget:
        """Load the target that the drafter was trained for and join the two on ``device`` (auto, cpu, cuda …)."""
        device = find_device(device)
        target = load_target(self.drafter.spec, device)
        self.drafter.to(device).attach(target.ends)
        return target


def open_drafter(folder: str | Path, checkpoint: str = "best") -> TrainedDrafter:
    """The drafter of run ``folder`` with the weights of ``checkpoint``: best, last, or the path of a file.

    Raises:
        ValueError: an unknown folder or file, or a checkpoint of another target or layout.
    """
    config = read_run_config(folder)
    path = CHOICES[checkpoint](folder) if checkpoint in CHOICES else Path(checkpoint)
    drafter = load_drafter(path, build(config).drafter)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    freeze_products(drafter)
    parameters = sum(parameter.numel() for parameter in drafter.parameters())
    identity = {"checkpoint": path.name, "digest": digest, "parameters": parameters, **describe(drafter)}
    return TrainedDrafter(drafter, path, identity)
