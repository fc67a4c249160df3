"""Callback: tokens per second of training, smoothed over the last steps, shown beside loss and accepted length."""

from __future__ import annotations

import time
from collections import deque

import lightning as L


class ThroughputCallback(L.Callback):
    """Logs ``train/tokens_per_s``: real tokens of the conversations read, by this rank.

    Args:
        window: micro-batches to average over.

    Raises:
        ValueError: a window below 1.
    """

    def __init__(self, window: int = 20) -> None:
        if window < 1:
            raise ValueError(f"callbacks.throughput.window must be at least 1, got {window}")
        self.recent: deque[tuple[float, int]] = deque(maxlen=window)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock; a run that resumes within an epoch sees no start of that epoch."""
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the time spent outside training."""
        self.recent.clear()
        self.last = time.perf_counter()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Do not count validation as training time."""
        self.last = time.perf_counter()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        """Add one micro-batch."""
        now = time.perf_counter()
        self.recent.append((now - self.last, int(batch.attention_mask.sum())))
        self.last = now
        seconds, tokens = (sum(column) for column in zip(*self.recent, strict=True))
        pl_module.log("train/tokens_per_s", tokens / max(seconds, 1e-9), prog_bar=True, batch_size=1)
