"""Optimiser and learning-rate schedule of the paper: AdamW, linear warm-up, cosine to 0 (method 3).

lr(s) = lr · min((s+1)/warm-up steps, ½ (1 + cos(π (s - warm-up) / (total - warm-up))))

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
    """AdamW with warm-up and cosine decay.

    Args:
        lr: peak learning rate. warmup: share of all steps spent on the linear rise, in [0, 1).
        weight_decay, beta1, beta2: of AdamW.

    Raises:
        ValueError: a value outside its range.
    """

    lr: float
    warmup: float = 0.04
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999

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

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> torch.optim.lr_scheduler.LambdaLR:
        """Per-step schedule over ``total_steps`` optimiser steps."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, total_steps, self.warmup))


def lr_factor(step: int, total_steps: int, warmup: float) -> float:
    """Factor in [0, 1] on the peak learning rate at optimiser step ``step`` (from 0) of ``total_steps``."""
    rise = max(1, round(warmup * total_steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - rise) / max(1, total_steps - rise))))
