"""The draft's law at supervised slots: one softmax, and the gradient of everything made of it in one go.

    p = softmax(z)          log p(x*)          c* = Σ_v min(p, p_t)
    ∂/∂z = q - p Σ_v q,     q = p ⊙ (r 1[p < p_t] + b) + e + a 1[v = x*]

with a, r, b, e the gradients in log p(x*), c*, p and log p. Autograd by itself keeps a tensor [S, W] for every step of this and
walks over each again; here p and p_t are kept, and log p only where a term reads it. The module knows nothing of terms.

    picked, rate, probs, log_probs = draft_law(logits, labels, target_probs, whole_log=False)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from draftlab.acceptance import accept_rate


def draft_law(
    logits: Tensor, labels: Tensor, target_probs: Tensor | None, whole_log: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """log p(x*) [S], c* [S], p [S, W] and log p [S, W] of draft ``logits`` [S, W].

    Args:
        logits: float32. labels: int64 [S] in 0..W-1. target_probs: p_t [S, W], a constant; None: no c*.
        whole_log: whether log p is asked for at all W tokens; otherwise it is None.
    """
    return _DraftLaw.apply(logits, labels, target_probs, whole_log)


class _DraftLaw(torch.autograd.Function):
    """Differentiable once, in ``logits`` alone."""

    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor, target_probs: Tensor | None, whole_log: bool):
        ctx.set_materialize_grads(False)
        log_probs = F.log_softmax(logits, dim=-1)
        picked = log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        probs = log_probs.exp() if whole_log else log_probs.exp_()
        rate = None if target_probs is None else accept_rate(probs, target_probs)
        ctx.save_for_backward(probs, target_probs, labels)
        return picked, rate, probs, log_probs if whole_log else None

    @staticmethod
    @once_differentiable
    def backward(ctx, of_picked, of_rate, of_probs, of_log):
        probs, target_probs, labels = ctx.saved_tensors
        if of_rate is None:
            inner = torch.zeros_like(probs)
        else:  # 1 where p < p_t, and ½ at a tie, as torch.minimum has it
            inner = torch.sub(target_probs, probs).sign_().add_(1.0).mul_(probs).mul_((0.5 * of_rate).unsqueeze(-1))
        if of_probs is not None:
            inner.addcmul_(probs, of_probs)
        if of_log is not None:
            inner.add_(of_log)
        total = inner.sum(-1)
        total = total if of_picked is None else total + of_picked
        inner.addcmul_(probs, total.unsqueeze(-1), value=-1)
        if of_picked is not None:
            inner.scatter_add_(-1, labels.unsqueeze(-1), of_picked.unsqueeze(-1))
        return inner, None, None, None
