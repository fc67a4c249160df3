"""Checkpoints written in their own folder: under another name first, made durable, then renamed.

Lightning's own writer goes through the system's temporary folder and a copy in memory, so that a small one fails a run whose
own disk has room, and a move between disks can be cut in two. It is handed to the trainer as a plugin (conf/trainer).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO


class DurableCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint plugin for a local folder; loading is Lightning's own."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``, whole or not at all; what stood there before stays until then.

        Raises:
            OSError, RuntimeError: the disk is full or cannot be written to; the partial file is removed.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        for left_over in path.parent.glob("*.partial"):  # of a process that was killed while it wrote
            left_over.unlink()
        partial = path.with_name(f"{path.name}.partial")
        try:
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
