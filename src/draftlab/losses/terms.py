"""The terms of the drafter's loss, each a value per supervised slot (method 3).

    ce          -log p_d^k(x*_k)
    tv          ‖p_d^k - p_t^k‖_1 = 2 (1 - c*_k)
    confidence  BCE(c_k, stop-grad c*_k)

A term sees :class:`Slots`, where softmax work is done once for all terms, and returns one number a slot; weighting over
positions and averaging happen in :mod:`draftlab.losses.draft_loss`. Terms know nothing of models or batches.

    terms = {"ce": CrossEntropy(weight=0.1), "tv": TotalVariation(weight=0.9), "confidence": Confidence(weight=1.0)}
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Slots:
    """What terms may use of S supervised slots; everything in float32."""

    log_draft_probs: Tensor  # [S, W]
    labels: Tensor  # [S] int64, index into the draft vocabulary; -1 for a label outside it
    accept_rate: Tensor | None  # [S] c*_k, differentiable; None without teacher states
    confidence_logits: Tensor | None  # [S]; None without a confidence head


class Term(ABC):
    """One named, weighted term of the loss.

    Raises:
        ValueError: a weight that is negative or not finite.
    """

    needs_teacher = False
    needs_confidence = False
    trains_law = True  # whether its gradient reaches the draft logits

    def __init__(self, weight: float) -> None:
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"the weight of loss term {type(self).__name__} must be a number >= 0, got {weight}")
        self.weight = float(weight)

    @abstractmethod
    def __call__(self, slots: Slots) -> Tensor:
        """Value [S] of the term at every slot."""


class CrossEntropy(Term):
    """-log p_d(x*). A label outside the draft vocabulary cannot be drafted whatever the logits: it adds 0."""

    def __call__(self, slots: Slots) -> Tensor:
        picked = slots.log_draft_probs.gather(-1, slots.labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        return -torch.where(slots.labels >= 0, picked, torch.zeros_like(picked))


class TotalVariation(Term):
    """‖p_d - p_t‖_1 in [0, 2], from the accept rate: 2 (1 - Σ min(p_d, p_t))."""

    needs_teacher = True

    def __call__(self, slots: Slots) -> Tensor:
        return 2.0 * (1.0 - slots.accept_rate)


class Confidence(Term):
    """BCE of the confidence against the accept rate, which it must not push: stop-grad on c*."""

    needs_teacher = True
    needs_confidence = True
    trains_law = False

    def __call__(self, slots: Slots) -> Tensor:
        label = slots.accept_rate.detach().clamp(0.0, 1.0)  # rounding may leave 1 + 1e-7, which BCE refuses
        return F.binary_cross_entropy_with_logits(slots.confidence_logits, label, reduction="none")
