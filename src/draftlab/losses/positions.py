"""Position weights that follow acceptance: factors on the decay w_k of the block, chosen by ``loss.position_weights``.

    decay             1                                               the weights of :mod:`draftlab.blocks` as they are
    acceptance        Π_{i<k} c*_i                                    how likely position k is reached at all
    expected_length   Σ_{m≥k} Π_{i≤m} q_i,  q = (1-α) p_d(x*) + α      its share in the expected accepted length

The last is D-PACE as published (Wu et al., "D-PACE: Dynamic Position-Aware Cross-Entropy for Parallel Speculative Drafting",
2026, arXiv 2605.18810, α = 0.5), which takes it in place of a decay: ``block.decay_gamma=null``. It is ``acceptance`` times what
lies beyond the position, with the smoothed probability of the label for c*. Factors are detached: they weigh the loss and are no
part of it. The module knows nothing of terms or models.

    factor = POSITION_WEIGHTS["acceptance"].factor(rates, label_probs, supervised)     # [K, G]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SMOOTHING = 0.5  # α of D-PACE, equation 7


@dataclass(frozen=True)
class PositionWeights:
    """``factor`` [K, G] of accept rates, label probabilities and supervision, each [K, G]; ``text`` says it in words."""

    factor: Callable[[Tensor, Tensor, Tensor], Tensor]
    needs_teacher: bool
    text: str


@torch.no_grad()
def reached(rates: Tensor, label_probs: Tensor, supervised: Tensor) -> Tensor:
    """Π_{i<k} c*_i [K, G]: 1 at the first slot of a block."""
    before = torch.cat([torch.ones_like(rates[:, :1]), rates[:, :-1]], dim=-1)
    return before.cumprod(-1)


@torch.no_grad()
def length_share(rates: Tensor, label_probs: Tensor, supervised: Tensor) -> Tensor:
    """Σ_{m≥k} Π_{i≤m} q_i [K, G] over the supervised slots m of a block."""
    smoothed = (SMOOTHING + (1.0 - SMOOTHING) * label_probs) * supervised  # 0 ends the sum
    return smoothed.cumprod(-1).flip(-1).cumsum(-1).flip(-1)


@torch.no_grad()
def unchanged(rates: Tensor, label_probs: Tensor, supervised: Tensor) -> Tensor:
    """1 [K, G]."""
    return torch.ones_like(label_probs)


POSITION_WEIGHTS = {
    "decay": PositionWeights(unchanged, False, ""),
    "acceptance": PositionWeights(reached, True, "times the product of the accept rates before k"),
    "expected_length": PositionWeights(length_share, False, "times Σ_{m>=k} Π_{i<=m} (½ p_d(label_i) + ½) of D-PACE"),
}
