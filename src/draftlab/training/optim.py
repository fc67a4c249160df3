"""Optimiser and learning-rate schedules: AdamW, linear warm-up, then a cosine to 0 (method 3) or a plateau and a linear end.

    cosine    lr(s) = lr · min((s+1)/warm-up steps, ½ (1 + cos(π (s - warm-up) / (total - warm-up))))
    wsd       lr(s) = lr · min((s+1)/warm-up steps, 1, (total - s)/decay steps)

WSD, warm-up, stable, decay (Hu et al., "MiniCPM", 2024, arXiv 2404.06395): up to its last part the rate does not depend on when
training ends. The module knows nothing of models.

    optimizer = OptimizerSettings(lr=6e-4).build(drafter.parameters())
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, warm-up, and a schedule that ends at 0.

    Args:
        lr: peak learning rate. warmup: share of all steps spent on the linear rise, in [0, 1).
        weight_decay, beta1, beta2: of AdamW.
        schedule: what follows the warm-up, ``cosine`` or ``wsd``.
        decay: share of all steps spent on the linear fall of ``wsd``, in (0, 1]; ``cosine`` does not use it.

    Raises:
        ValueError: a value outside its range, an unknown schedule, or more than all steps for warm-up and fall of ``wsd``.
    """

    lr: float
    warmup: float = 0.04
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    schedule: str = "cosine"
    decay: float = 0.2

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"trainer.optimizer.lr must be a positive number, got {self.lr}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"trainer.optimizer.warmup is a share of all steps in [0, 1), got {self.warmup}")
        if self.weight_decay < 0:
            raise ValueError(f"trainer.optimizer.weight_decay must be at least 0, got {self.weight_decay}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"trainer.optimizer.{name} must lie in [0, 1), got {getattr(self, name)}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"trainer.optimizer.schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"trainer.optimizer.decay is a share of all steps in (0, 1], got {self.decay}")
        if self.schedule == "wsd" and self.warmup + self.decay > 1:
            raise ValueError(
                "trainer.optimizer.decay and trainer.optimizer.warmup are shares of all steps and must not exceed 1 together, "
                f"got {self.decay} and {self.warmup}"
            )

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
        """AdamW over the trainable parameters."""
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trainable, lr=self.lr, betas=(self.beta1, self.beta2), weight_decay=self.weight_decay, fused=True
        )
        # Under mixed precision Lightning refuses to clip for an optimiser that would undo a loss scale inside its step.
        # Without the mark a scaler undoes it before the step, which the fused kernel takes just as well.
        optimizer._step_supports_amp_scaling = False
        return optimizer

    def scheduler(self, optimizer: torch.optim.Optimizer, total_steps: int) -> torch.optim.lr_scheduler.LambdaLR:
        """Per-step learning rates over ``total_steps`` optimiser steps."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.lr_factor(step, total_steps))

    def lr_factor(self, step: int, total_steps: int) -> float:
        """Factor in [0, 1] on the peak learning rate at optimiser step ``step`` (from 0) of ``total_steps``."""
        rise = max(1, round(self.warmup * total_steps))
        if step < rise:
            return (step + 1) / rise
        return SCHEDULES[self.schedule](step, total_steps, rise, self.decay)


def cosine(step: int, total_steps: int, rise: int, decay: float) -> float:
    """½ (1 + cos(π x)), x from 0 after the rise to 1 at the end."""
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - rise) / max(1, total_steps - rise))))


def warmup_stable_decay(step: int, total_steps: int, rise: int, decay: float) -> float:
    """1, then a line that meets 0 after the last of ``total_steps``."""
    fall = max(1, round(decay * total_steps))
    return min(1.0, max(0, total_steps - step) / fall)


SCHEDULES = {"cosine": cosine, "wsd": warmup_stable_decay}
