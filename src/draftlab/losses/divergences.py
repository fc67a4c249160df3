"""Terms that compare the whole draft law with the target's: KL both ways, Jensen-Shannon, -log acceptance, LK.

    kl                   Σ_v p_t (log p_t - log p_d)
    reverse_kl           Σ_v p_d (log p_d - log p_t)
    jsd                  ½ KL(p_t ‖ m) + ½ KL(p_d ‖ m),  m = ½ (p_t + p_d)                      in [0, log 2]
    neg_log_acceptance   -log c*                                                               (LK losses, α form)
    lk                   λ · kl + (1 - λ) (1 - c*),  λ = exp(-η · stop-grad c*)                   (LK losses, λ form)

c* = Σ_v min(p_d, p_t) = 1 - TV is the accept rate. LK losses: Samarin et al., "LK Losses: Direct Acceptance Rate Optimization
for Speculative Decoding", 2026, arXiv 2602.23881: KL trains while the laws are far apart, where TV has next to no gradient, and
gives way to TV as acceptance grows.

Over a reduced draft vocabulary p_t sums to less than 1 and p_d is 0 on the rest. Reverse KL, c* and JSD have an exact value then
(the outside mass adds ½ log 2 times itself to JSD). KL would be infinite whatever the drafter does: its sum runs over the draft
vocabulary only, so it is least, and below 0, where p_d is p_t renormalised. The module knows nothing of models or batches.

    terms = {"kl": KL(weight=1.0)}
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from draftlab.losses.terms import Slots, Term

SMALLEST = torch.finfo(torch.float32).tiny  # logarithms are taken of nothing less: a float32 softmax rounds to 0 there


def kl_divergence(slots: Slots) -> Tensor:
    """Σ_v p_t (log p_t - log p_d) [S] over the draft vocabulary."""
    return (slots.target_probs * (_log(slots.target_probs) - slots.log_draft_probs)).sum(-1)


class KL(Term):
    """KL(p_t ‖ p_d) over the draft vocabulary; its gradient is that of the soft cross-entropy."""

    needs_teacher = needs_log_law = True
    kept = 2

    def __call__(self, slots: Slots) -> Tensor:
        return kl_divergence(slots)


class ReverseKL(Term):
    """KL(p_d ‖ p_t); probabilities of the target below the smallest float32 count as that."""

    needs_teacher = needs_log_law = True
    kept = 2

    def __call__(self, slots: Slots) -> Tensor:
        return (slots.draft_probs * (slots.log_draft_probs - _log(slots.target_probs))).sum(-1)


class JensenShannon(Term):
    """JSD of the two laws in [0, log 2], the target's mass outside a reduced draft vocabulary included."""

    needs_teacher = needs_log_law = True
    kept = 6

    def __call__(self, slots: Slots) -> Tensor:
        draft, target = slots.draft_probs, slots.target_probs
        log_middle = _log(0.5 * (draft + target))
        of_draft = (draft * (slots.log_draft_probs - log_middle)).sum(-1)
        of_target = (target * (_log(target) - log_middle)).sum(-1)
        outside = (1.0 - target.sum(-1)).clamp_min(0.0) * math.log(2.0)  # p_d = 0, m = ½ p_t
        return 0.5 * (of_draft + of_target + outside)


class NegLogAcceptance(Term):
    """-log c*, whose gradient is that of TV over c*; no acceptance below the smallest float32 is told from it."""

    needs_teacher = True

    def __call__(self, slots: Slots) -> Tensor:
        return -_log(slots.accept_rate)


class LK(Term):
    """Adaptive blend of KL and total variation (half the L1 distance): λ kl + (1 - λ) (1 - c*), λ = exp(-η c*).

    Args:
        weight: of the term. eta: how soon TV takes over as acceptance grows; 0 is KL alone, the paper's best is 3.

    Raises:
        ValueError: an ``eta`` that is negative or not finite.
    """

    needs_teacher = needs_log_law = True
    kept = 2

    def __init__(self, weight: float, eta: float) -> None:
        super().__init__(weight)
        if not (math.isfinite(eta) and eta >= 0):
            raise ValueError(f"loss.terms.lk.eta must be a number >= 0, got {eta}; the paper's best is 3")
        self.eta = float(eta)

    def __call__(self, slots: Slots) -> Tensor:
        share = torch.exp(-self.eta * slots.accept_rate.detach())
        return share * kl_divergence(slots) + (1.0 - share) * (1.0 - slots.accept_rate)


def _log(probs: Tensor) -> Tensor:
    return probs.clamp_min(SMALLEST).log()
