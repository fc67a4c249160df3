"""The straightforward loss, as a twin for benchmarks and tests: the same value, made as it is written in the paper.

Logits of every slot, supervised or not; the target's logits once a slot; a softmax wherever a law is needed, kept for the backward
pass. It uses the drafter's and the target's own products, so that what a benchmark finds is what the formulation costs.

    numerator, weight = straightforward_loss(drafter, output, blocks, batch)
    numerator, weight = straightforward_loss(drafter, output, blocks, batch, {"ce": 1.0, "tv": 0.0, "confidence": 0.0})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from draftlab.types import Batch, Blocks, DraftOutput

DSPARK = {"ce": 0.1, "tv": 0.9, "confidence": 1.0}  # conf/loss/dspark.yaml
# Tensors [slots, V] alive at the peak of the backward pass: those that autograd keeps and those just being made.
KEPT = 11


def straightforward_loss(
    drafter, output: DraftOutput, blocks: Blocks, batch: Batch, weights: Mapping[str, float] = DSPARK
) -> tuple[Tensor, Tensor]:
    """Σ_terms λ Σ w value and Σ w of 0.1 ce + 0.9 tv + 1.0 confidence, over the whole vocabulary."""
    logits = drafter.draft_logits(output.hidden.flatten(0, 1), blocks.previous.flatten(0, 1)).float()  # [B*N, G, V]
    index = blocks.teacher_positions.flatten(1).unsqueeze(-1)  # [B, N*G, 1]
    states = batch.last_hidden.gather(1, index.expand(-1, -1, batch.last_hidden.shape[-1]))
    with torch.no_grad():
        target_logits = drafter.ends.logits(states).float().view(logits.shape)
    ce = F.cross_entropy(logits.flatten(0, 1), blocks.labels.flatten(), reduction="none")
    tv = (torch.softmax(logits, -1) - torch.softmax(target_logits, -1)).abs().sum(-1).flatten()
    with torch.no_grad():
        label = 1.0 - 0.5 * (torch.softmax(logits, -1) - torch.softmax(target_logits, -1)).abs().sum(-1).flatten()
        torch.minimum(torch.softmax(logits, -1), torch.softmax(target_logits, -1)).sum(-1)  # the metric that is logged
    bce = F.binary_cross_entropy_with_logits(
        output.confidence_logits.flatten().float(), label.clamp(0.0, 1.0), reduction="none"
    )
    value = weights["ce"] * ce + weights["tv"] * tv + weights["confidence"] * bce
    slot_weights = blocks.weights.flatten()
    return (slot_weights * value).sum(), slot_weights.sum()


def estimated_gb(slots: int, vocabulary: int) -> float:
    """What the straightforward loss holds over ``slots`` at its peak, 10^9 bytes."""
    return 4e-9 * KEPT * slots * vocabulary


@dataclass(frozen=True)
class StraightforwardReport:
    """What a training step needs of a loss."""

    numerator: Tensor
    weight: Tensor


class StraightforwardLoss:
    """:func:`straightforward_loss` in the place of a DraftLoss."""

    def __call__(self, drafter, output: DraftOutput, blocks: Blocks, batch: Batch) -> StraightforwardReport:
        """Numerator and weight of a micro-batch."""
        return StraightforwardReport(*straightforward_loss(drafter, output, blocks, batch))
