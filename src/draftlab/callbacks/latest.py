"""Callback: the newest whole state of a run, from which ``resume=true`` goes on, and which is there when training ends.

It is written every so many optimiser steps and once more after the last one, under a temporary name and then renamed; the
one before it is removed only then. So a kill at any moment costs at most the steps since, and what was saved stays
exact: nothing is written in the middle of a step. It knows nothing of what is trained.
"""

from __future__ import annotations

from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint


class LatestCheckpoint(ModelCheckpoint):
    """Keeps one checkpoint, ``step-<optimiser step>.ckpt`` in ``dirpath``.

    Args:
        dirpath: folder of the checkpoints. every_n_train_steps: optimiser steps between two of them.
    """

    def __init__(self, dirpath: str, every_n_train_steps: int) -> None:
        super().__init__(
            dirpath=dirpath,
            filename="step-{step}",
            auto_insert_metric_name=False,
            every_n_train_steps=every_n_train_steps,
            save_top_k=1,
            save_on_train_epoch_end=False,
        )

    def _save_checkpoint(self, trainer: L.Trainer, filepath: str) -> None:
        """Save, then remove what is older: Lightning does not know the checkpoint that an earlier process left.

        One of a later step stays, as when training went on from an older checkpoint by choice.
        """
        super()._save_checkpoint(trainer, filepath)
        for path in Path(self.dirpath).glob("step-*.ckpt"):
            step = path.stem.removeprefix("step-")
            if step.isdigit() and int(step) < trainer.global_step:
                self._remove_checkpoint(trainer, str(path))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the end of training, unless the last step was one to be saved anyway."""
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))
