"""The terms of the drafter's loss, each a value per supervised slot (method 3).

    ce          -log p_d^k(x*_k)
    soft_ce     -Σ_v p_t^k(v) log p_d^k(v)
    tv          ‖p_d^k - p_t^k‖_1 = 2 (1 - c*_k)
    confidence  BCE(c_k, c*_k), with or without stop-grad on c*_k

Divergences between the two laws stand in :mod:`draftlab.losses.divergences`.

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
    """What terms may use of S supervised slots; everything in float32. Without teacher states accept rate and laws are None."""

    log_draft_probs: Tensor | None  # [S, W], differentiable; None where no term reads it (Term.needs_log_law)
    labels: Tensor  # [S] int64, index into the draft vocabulary; -1 for a label outside it
    accept_rate: Tensor | None  # [S] c*_k, differentiable
    confidence_logits: Tensor | None  # [S]; None without a confidence head
    target_probs: Tensor | None = None  # [S, W] p_t at the draft vocabulary, not renormalised
    draft_probs: Tensor | None = None  # [S, W] exp(log_draft_probs), made once for accept rate and terms
    picked: Tensor | None = None  # [S] log p_d at the label (at 0 for one outside); None: read from log_draft_probs

    @property
    def label_log_probs(self) -> Tensor:
        """log p_d(x*) [S]; 0 for a label outside the draft vocabulary."""
        picked = self.picked
        if picked is None:
            picked = self.log_draft_probs.gather(-1, self.labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        return torch.where(self.labels >= 0, picked, torch.zeros_like(picked))


class Term(ABC):
    """One named, weighted term of the loss.

    Raises:
        ValueError: a weight that is negative or not finite.
    """

    needs_teacher = False  # the target's last hidden states: c*_k and p_t
    needs_log_law = False  # log p_d at all W tokens, not the label's alone
    kept = 0  # tensors [S, W] that it adds to what a chunk of the loss holds at its peak, by measurement
    needs_confidence = False

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
        return -slots.label_log_probs


class SoftCrossEntropy(Term):
    """-Σ_v p_t(v) log p_d(v) over the draft vocabulary: what lies outside cannot be drafted whatever the logits."""

    needs_teacher = needs_log_law = True
    kept = 1

    def __call__(self, slots: Slots) -> Tensor:
        return -(slots.target_probs * slots.log_draft_probs).sum(-1)


class TotalVariation(Term):
    """‖p_d - p_t‖_1 in [0, 2], from the accept rate: 2 (1 - Σ min(p_d, p_t))."""

    needs_teacher = True

    def __call__(self, slots: Slots) -> Tensor:
        return 2.0 * (1.0 - slots.accept_rate)


class Confidence(Term):
    """BCE of the confidence against the accept rate.

    Args:
        weight: of the term. stop_gradient: True takes c* as a mere label (the paper); False lets the term move the draft
            law too, towards what the confidence expects of it.
    """

    needs_teacher = True
    needs_confidence = True

    def __init__(self, weight: float, stop_gradient: bool = True) -> None:
        super().__init__(weight)
        self.stop_gradient = stop_gradient

    def __call__(self, slots: Slots) -> Tensor:
        rate = slots.accept_rate.detach() if self.stop_gradient else slots.accept_rate
        label = rate.clamp(0.0, 1.0)  # rounding may leave 1 + 1e-7, which BCE refuses
        return F.binary_cross_entropy_with_logits(slots.confidence_logits, label, reduction="none")
