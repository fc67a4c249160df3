"""Anchors, block layout, labels, attention rule and position weights: the only place with offsets (method 2.1 and 3).

An *anchor* is a position a whose own token and next token are both supervised. Its block drafts tokens a+1 … a+G:

    slot k (from 0)          0      1      …  G-1
    previous token           a      a+1       a+G-1        (slot 0: the anchor)
    teacher state at         a      a+1       a+G-1        (the target's last hidden state there predicts the label)
    label                    a+1    a+2       a+G
    input, anchor-first      x_a    MASK      MASK         at positions a … a+G-1      (``sample_from_anchor: true``)
    input, 1+N               x_a    MASK × G               at positions a … a+G        (slot k reads input k+1)

Supervision of a block is a contiguous prefix: it stops at the first unsupervised or missing label. A block attends, in
both directions, to itself and to context *strictly before* its anchor, and to nothing of other blocks.

    >>> position_weights(3, decay_gamma=3.0)
    tensor([1.0000, 0.7165, 0.5134])
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlab.types import Batch, Blocks


@dataclass(frozen=True)
class BlockSpec:
    """Size and layout of a block, and how many anchors a sequence gets in training.

    Args:
        block_size: γ, drafted tokens per round.
        num_anchors: anchors per sequence, at most.
        decay_gamma: γ_w of w_k = exp(-(k-1)/γ_w); None means no decay (every weight 1).
        sample_from_anchor: True for the anchor-first layout (γ inputs), False for 1+N (anchor and γ masks).

    Raises:
        ValueError: a value outside its range.
    """

    block_size: int = 7
    num_anchors: int = 512
    decay_gamma: float | None = 7.0
    sample_from_anchor: bool = True

    def __post_init__(self) -> None:
        for name, value in (("block_size (gamma)", self.block_size), ("num_anchors", self.num_anchors)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"block.{name} must be a whole number of at least 1, got {value!r}")
        if self.decay_gamma is not None and not (math.isfinite(self.decay_gamma) and self.decay_gamma > 0):
            raise ValueError(
                f"block.decay_gamma must be positive, got {self.decay_gamma}; write null for no decay over positions"
            )

    @property
    def num_inputs(self) -> int:
        """I, the input slots of a block."""
        return self.block_size if self.sample_from_anchor else self.block_size + 1

    @property
    def weights_text(self) -> str:
        """The position weights in words, for logs: also that there is no decay (case 5)."""
        if self.decay_gamma is None:
            return "no decay, every position weighs 1 (block.decay_gamma=null)"
        return f"exp(-(k-1)/{self.decay_gamma:g}) at position k"


def position_weights(block_size: int, decay_gamma: float | None) -> Tensor:
    """w_k = exp(-(k-1)/γ_w) for k = 1..G, float32 [G]; all 1 when ``decay_gamma`` is None (method 3)."""
    if decay_gamma is None:
        return torch.ones(block_size)
    return torch.exp(-torch.arange(block_size, dtype=torch.float32) / decay_gamma)


def anchor_candidates(loss_mask: Tensor) -> Tensor:
    """Bool [B, T]: positions whose own token and next token are both supervised (case 4)."""
    candidates = torch.zeros_like(loss_mask)
    candidates[:, :-1] = loss_mask[:, :-1] & loss_mask[:, 1:]
    return candidates


def draw_anchors(
    loss_mask: Tensor, num_anchors: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw up to ``num_anchors`` anchors a sequence, uniformly without replacement, sorted by position.

    Args:
        loss_mask: bool [B, T].
        num_anchors: the most anchors of one sequence.
        generator: CPU generator of the draw, so that a step can be repeated exactly on any device.

    Returns:
        ``anchors`` int64 [B, N] and ``valid`` bool [B, N], where N <= ``num_anchors`` is the most that any row has, at
        least 1; filler entries are at the right with anchor 0.
    """
    candidates = anchor_candidates(loss_mask).cpu()
    num = int(candidates.sum(-1).amax().clamp(1, num_anchors)) if candidates.numel() else 1
    keys = torch.rand(candidates.shape, generator=generator).masked_fill(~candidates, -1.0)
    top = keys.topk(min(num, candidates.shape[1]), dim=-1)
    valid = top.values >= 0
    order = top.indices.masked_fill(~valid, candidates.shape[1]).sort(dim=-1).values
    valid = order < candidates.shape[1]
    return order.masked_fill(~valid, 0).to(loss_mask.device), valid.to(loss_mask.device)


def lay_out(batch: Batch, anchors: Tensor, valid: Tensor, spec: BlockSpec, mask_token_id: int) -> Blocks:
    """Lay out the blocks of ``anchors`` [B, N] over ``batch``: inputs, labels, supervision, weights (cases 3, 4)."""
    num_tokens = batch.input_ids.shape[1]
    slots = torch.arange(spec.block_size, device=anchors.device)
    teacher = anchors.unsqueeze(-1) + slots  # [B, N, G], a+k
    inside = teacher + 1 < num_tokens
    supervised = _gather(batch.loss_mask, (teacher + 1).clamp_max(num_tokens - 1)) & inside & valid.unsqueeze(-1)
    label_mask = supervised.cumprod(-1).bool()
    teacher = teacher.clamp_max(num_tokens - 1)
    labels = _gather(batch.input_ids, (teacher + 1).clamp_max(num_tokens - 1))
    previous = _gather(batch.input_ids, teacher)
    weights = position_weights(spec.block_size, spec.decay_gamma).to(anchors.device) * label_mask
    first = _gather(batch.input_ids, anchors)
    input_ids, positions = block_inputs(first, anchors, spec, mask_token_id)
    return Blocks(
        anchors=anchors,
        valid=valid,
        input_ids=input_ids,
        positions=positions,
        previous=previous,
        labels=labels.masked_fill(~label_mask, 0),
        label_mask=label_mask,
        teacher_positions=teacher,
        weights=weights,
    )


def block_inputs(anchor: Tensor, anchor_position: Tensor, spec: BlockSpec, mask_token_id: int) -> tuple[Tensor, Tensor]:
    """Input ids and positions [..., I] of blocks from anchor tokens [...] and their positions [...]."""
    input_ids = torch.full((*anchor.shape, spec.num_inputs), mask_token_id, dtype=anchor.dtype, device=anchor.device)
    input_ids[..., 0] = anchor
    return input_ids, anchor_position.unsqueeze(-1) + torch.arange(spec.num_inputs, device=anchor.device)


def output_slots(hidden: Tensor, block_size: int) -> Tensor:
    """The G slots that predict, [..., G, D], of the I computed ones [..., I, D]: all, or (1+N) all but the anchor's."""
    return hidden[..., hidden.shape[-2] - block_size :, :]


def attention_rule(anchors: Tensor, valid: Tensor, num_inputs: int, context_mask: Tensor) -> Tensor:
    """Who may attend whom in training: bool [B, N*I, T + N*I], keys ordered context first, then all block inputs.

    Args:
        anchors: [B, N]; valid: bool [B, N]; num_inputs: I; context_mask: bool [B, T], True on real tokens.

    A filler block still sees itself, so that its softmax is finite.
    """
    num_rows, num_anchors = anchors.shape
    positions = torch.arange(context_mask.shape[1], device=anchors.device)
    context = (positions < anchors.unsqueeze(-1)) & context_mask.unsqueeze(1) & valid.unsqueeze(-1)  # [B, N, T]
    context = context.repeat_interleave(num_inputs, dim=1)
    block_of = torch.arange(num_anchors, device=anchors.device).repeat_interleave(num_inputs)
    own = (block_of.unsqueeze(0) == block_of.unsqueeze(1)).expand(num_rows, -1, -1)
    return torch.cat([context, own], dim=-1)


def _gather(values: Tensor, index: Tensor) -> Tensor:
    """values [B, T] at index [B, ...] -> [B, ...]."""
    return values.gather(1, index.reshape(index.shape[0], -1)).reshape(index.shape)
