"""Progress display: rich in a terminal, one plain line now and then where the output is a file."""

from __future__ import annotations

import sys
import time

import lightning as L
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar

SHOWN = {"train/loss": "loss", "train/accepted_length": "accepted length", "train/tokens_per_s": "tokens/s"}


def progress_bar(every_seconds: float = 15.0) -> ProgressBar:
    """Rich's bar on a terminal; :class:`ProgressLines` elsewhere, since a redrawn bar fills a log file with rubbish."""
    return RichProgressBar() if sys.stdout.isatty() else ProgressLines(every_seconds)


class ProgressLines(ProgressBar):
    """A line every ``every_seconds`` with step, loss, expected accepted length, tokens per second and time left."""

    def __init__(self, every_seconds: float = 15.0) -> None:
        super().__init__()
        self.every_seconds = every_seconds
        self.enabled = True

    def disable(self) -> None:
        """Called by Lightning on ranks that should stay silent."""
        self.enabled = False

    def enable(self) -> None:
        """Called by Lightning to show progress again."""
        self.enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self.began = self.shown = time.monotonic()
        self.first_step = trainer.global_step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        """Print when the last line is old enough, and at the last step."""
        now, step, total = time.monotonic(), trainer.global_step, int(trainer.estimated_stepping_batches)
        if not self.enabled or (now - self.shown < self.every_seconds and step < total) or step == self.first_step:
            return
        self.shown = now
        left = (now - self.began) / (step - self.first_step) * (total - step)
        print(f"step {step}/{total}  {_values(trainer, SHOWN)}  {left / 60:.1f} min left", flush=True)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print what the held-out data say."""
        if self.enabled and not trainer.sanity_checking:
            names = {
                "val/loss": "loss",
                "val/accepted_length": "accepted length",
                "val/roc_auc": "ROC-AUC",
                "val/ece": "ECE",
            }
            print(f"held-out at step {trainer.global_step}:  {_values(trainer, names)}", flush=True)


def _values(trainer: L.Trainer, names: dict[str, str]) -> str:
    metrics = trainer.callback_metrics
    return "  ".join(f"{label} {float(metrics[key]):.4g}" for key, label in names.items() if key in metrics)
