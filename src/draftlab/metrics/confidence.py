"""How good confidences are: expected calibration error and ROC-AUC by position, with fixed-size sum states (method 4).

    ECE_k = Σ_bins n_b/n |mean confidence_b - mean outcome_b|         ROC-AUC_k = P(c of an accepted > c of a rejected)

Scores live in [0, 1]. The histogram of ROC-AUC has enough bins that its value differs from the exact one by less than
noise; ties within a bin count one half. For one value over all positions, hand the slots over as [..., 1]
to a metric of block size 1. Nothing here knows drafters or targets.

    metric = CalibrationError(block_size=7)
    metric.update(confidence, accepted, reached)           # [..., G] each
    metric.compute()                                       # [G]; torchmetrics makes a scalar of G = 1
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


def _bins(score: Tensor, num_bins: int) -> Tensor:
    return (score * num_bins).long().clamp(0, num_bins - 1)


class _BinnedByPosition(Metric):
    """States [G, bins] filled by position and score bin."""

    full_state_update = False

    def __init__(self, block_size: int, num_bins: int, states: tuple[str, ...]) -> None:
        super().__init__()
        if num_bins < 1:
            raise ValueError(f"num_bins must be at least 1, got {num_bins}")
        self.num_bins = num_bins
        for state in states:
            self.add_state(state, torch.zeros(block_size, num_bins, dtype=torch.float64), dist_reduce_fx="sum")

    def _add(self, state: str, score: Tensor, value: Tensor, reached: Tensor) -> None:
        """Add ``value`` [..., G] of reached slots to the bin of their ``score`` [..., G]."""
        table = getattr(self, state)
        score, value = score.flatten(0, -2).double(), (value.double() * reached).flatten(0, -2)
        table.scatter_add_(1, _bins(score, self.num_bins).T, value.T)


class CalibrationError(_BinnedByPosition):
    """Expected calibration error [G] over equal-width bins; NaN at a position never reached."""

    higher_is_better = False

    def __init__(self, block_size: int, num_bins: int = 15) -> None:
        super().__init__(block_size, num_bins, ("count", "confidence", "outcome"))

    def update(self, confidence: Tensor, accepted: Tensor, reached: Tensor) -> None:
        """Add slots [..., G]: confidence in [0, 1], outcome 1/0 (or its chance), and whether the slot was reached."""
        self._add("count", confidence, torch.ones_like(confidence), reached)
        self._add("confidence", confidence, confidence, reached)
        self._add("outcome", confidence, accepted, reached)

    def compute(self) -> Tensor:
        """[G] float64."""
        return (self.confidence - self.outcome).abs().sum(-1) / self.count.sum(-1)


class RocAuc(_BinnedByPosition):
    """Area under the ROC curve [G]; NaN at a position without both outcomes."""

    higher_is_better = True

    def __init__(self, block_size: int, num_bins: int = 2000) -> None:
        super().__init__(block_size, num_bins, ("positives", "negatives"))

    def update(self, confidence: Tensor, accepted: Tensor, reached: Tensor) -> None:
        """Add slots [..., G]: score in [0, 1], outcome 1/0, and whether the slot was reached."""
        self._add("positives", confidence, accepted, reached)
        self._add("negatives", confidence, 1 - accepted.double(), reached)

    def compute(self) -> Tensor:
        """[G] float64."""
        return _area(self.positives, self.negatives)


def _area(positives: Tensor, negatives: Tensor) -> Tensor:
    """P(score of a positive > score of a negative) + ½ P(equal bin), of histograms [..., bins]."""
    below = negatives.cumsum(-1) - negatives
    wins = (positives * (below + 0.5 * negatives)).sum(-1)
    return wins / (positives.sum(-1) * negatives.sum(-1))
