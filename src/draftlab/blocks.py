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

In a *packed* batch a row holds several documents one behind the other. Anchors are indices of the row there, s is the index at
which the anchor's document begins, and nothing crosses its ends: positions are counted from s, supervision stops at the
document's last token, context is s … a-1. Anchors are drawn for each document as if it stood in a row of its own, so that packing
changes no number but by rounding.

A *chain* (Eagle3, MTP) drafts slot after slot over pairs of a state of the target and a token, one apart:

    pair t (from 0)          the target's state at t, the token t+1, RoPE position t; it predicts token t+2
    slot 0 of anchor a       pair a-1                                        (an anchor at 0 has no state before it: zeros)
    slot k                   the chain's own state of slot k-1, the token a+k, RoPE position a-1+k
    slot k attends           causally to pairs 0 … a-2, to slot 0, and to the slots of its own block up to k

    >>> position_weights(3, decay_gamma=3.0)
    tensor([1.0000, 0.7165, 0.5134])
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlab.types import Batch, Blocks, document_places


@dataclass(frozen=True)
class BlockSpec:
    """Size and layout of a block, and how many anchors a sequence gets in training.

    Args:
        block_size: γ, drafted tokens per round.
        num_anchors: anchors per sequence, at most.
        decay_gamma: γ_w of w_k = exp(-(k-1)/γ_w); None means no decay (every weight 1).
        sample_from_anchor: True for the anchor-first layout (γ inputs), False for 1+N (anchor and γ masks).
        equal_sequences: divide the weights of a sequence by its number of anchors, so that a long one counts no more than
            a short one; False: every position counts the same.

    Raises:
        ValueError: a value outside its range.
    """

    block_size: int = 7
    num_anchors: int = 512
    decay_gamma: float | None = 7.0
    sample_from_anchor: bool = True
    equal_sequences: bool = False

    @classmethod
    def training_time_test(cls, ttt_length: int = 7, step_decay: float = 0.8, num_anchors: int = 512) -> BlockSpec:
        """The block of Eagle3's Training-Time Test: ``ttt_length`` steps, step j (from 0) of weight ``step_decay``^j.

        Every sequence weighs the same. Decoding drafts ``ttt_length`` tokens.

        Raises:
            ValueError: a value outside its range.
        """
        if not isinstance(ttt_length, int) or ttt_length < 1:
            raise ValueError(
                f"block.ttt_length must be a whole number of at least 1 (steps of the Training-Time Test), got {ttt_length!r}"
            )
        if not (isinstance(step_decay, int | float) and 0 < step_decay <= 1):
            raise ValueError(
                f"block.step_decay must lie in (0, 1], got {step_decay!r}; write 1.0 for no decay over steps"
            )
        decay_gamma = None if step_decay == 1 else -1.0 / math.log(step_decay)
        return cls(ttt_length, num_anchors, decay_gamma, equal_sequences=True)

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
        equal = ", divided by the sequence's number of anchors" if self.equal_sequences else ""
        if self.decay_gamma is None:
            return f"no decay, every position weighs 1 (block.decay_gamma=null){equal}"
        return f"exp(-(k-1)/{self.decay_gamma:g}) at position k{equal}"


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
    loss_mask: Tensor,
    num_anchors: int,
    generator: torch.Generator | None = None,
    document_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw up to ``num_anchors`` anchors a document, uniformly without replacement, sorted by position.

    Args:
        loss_mask: bool [B, T].
        num_anchors: the most anchors of one document.
        generator: CPU generator of the draw, so that a step can be repeated exactly on any device.
        document_ids: [B, T] of a packed batch, which gets the anchors that its documents would get in rows of their own; None:
            every row is one document.

    Returns:
        ``anchors`` int64 [B, N] and ``valid`` bool [B, N], where N is the most that any row has, at least 1; filler entries are
        at the right with anchor 0.
    """
    if document_ids is not None:
        return _draw_packed(loss_mask, num_anchors, generator, document_ids)
    candidates = anchor_candidates(loss_mask).cpu()
    num = int(candidates.sum(-1).amax().clamp(1, num_anchors)) if candidates.numel() else 1
    keys = torch.rand(candidates.shape, generator=generator).masked_fill(~candidates, -1.0)
    top = keys.topk(min(num, candidates.shape[1]), dim=-1)
    valid = top.values >= 0
    order = top.indices.masked_fill(~valid, candidates.shape[1]).sort(dim=-1).values
    valid = order < candidates.shape[1]
    return order.masked_fill(~valid, 0).to(loss_mask.device), valid.to(loss_mask.device)


def _draw_packed(
    loss_mask: Tensor, num_anchors: int, generator: torch.Generator | None, document_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`draw_anchors` over the documents [S, L] of rows [B, T], and what was drawn put back into the rows."""
    places = document_places(document_ids.cpu())  # flat indices of the rows
    alone = (loss_mask.cpu().flatten()[places.clamp_min(0)]) & (places >= 0)
    anchors, valid = draw_anchors(alone, num_anchors, generator)
    drawn = places.gather(1, anchors)[valid].sort().values
    rows, columns = drawn // loss_mask.shape[1], drawn % loss_mask.shape[1]
    counts = torch.bincount(rows, minlength=len(loss_mask))
    slots = torch.arange(len(drawn)) - (counts.cumsum(0) - counts)[rows]
    filled = torch.arange(max(1, int(counts.max()))) < counts.unsqueeze(-1)
    merged = torch.zeros(filled.shape, dtype=torch.int64)
    merged[rows, slots] = columns
    return merged.to(loss_mask.device), filled.to(loss_mask.device)


def lay_out(batch: Batch, anchors: Tensor, valid: Tensor, spec: BlockSpec, mask_token_id: int) -> Blocks:
    """Lay out the blocks of ``anchors`` [B, N] over ``batch``: inputs, labels, supervision, weights (cases 3, 4)."""
    num_tokens = batch.input_ids.shape[1]
    slots = torch.arange(spec.block_size, device=anchors.device)
    teacher = anchors.unsqueeze(-1) + slots  # [B, N, G], a+k
    inside = teacher + 1 < num_tokens
    supervised = _gather(batch.loss_mask, (teacher + 1).clamp_max(num_tokens - 1)) & inside & valid.unsqueeze(-1)
    starts = _gather(batch.starts, anchors).masked_fill(~valid, 0)
    if batch.document_ids is not None:
        label_document = _gather(batch.document_ids, (teacher + 1).clamp_max(num_tokens - 1))
        supervised &= label_document == _gather(batch.document_ids, anchors).unsqueeze(-1)
    label_mask = supervised.cumprod(-1).bool()
    teacher = teacher.clamp_max(num_tokens - 1)
    labels = _gather(batch.input_ids, (teacher + 1).clamp_max(num_tokens - 1))
    previous = _gather(batch.input_ids, teacher)
    weights = position_weights(spec.block_size, spec.decay_gamma).to(anchors.device) * label_mask
    if spec.equal_sequences:
        weights = weights / _anchors_of_document(starts, valid, num_tokens).unsqueeze(-1)
    first = _gather(batch.input_ids, anchors)
    input_ids, positions = block_inputs(first, anchors - starts, spec, mask_token_id)
    return Blocks(
        anchors=anchors,
        starts=starts,
        valid=valid,
        input_ids=input_ids,
        positions=positions,
        previous=previous,
        labels=labels.masked_fill(~label_mask, 0),
        label_mask=label_mask,
        teacher_positions=teacher,
        weights=weights,
    )


def _anchors_of_document(starts: Tensor, valid: Tensor, num_tokens: int) -> Tensor:
    """How many valid anchors [B, N] the document of every anchor has, at least 1."""
    counts = torch.zeros(len(starts), num_tokens, dtype=torch.int64, device=starts.device)
    return counts.scatter_add(1, starts, valid.long()).gather(1, starts).clamp_min(1)


def block_inputs(anchor: Tensor, anchor_position: Tensor, spec: BlockSpec, mask_token_id: int) -> tuple[Tensor, Tensor]:
    """Input ids and positions [..., I] of blocks from anchor tokens [...] and their positions [...]."""
    input_ids = torch.full((*anchor.shape, spec.num_inputs), mask_token_id, dtype=anchor.dtype, device=anchor.device)
    input_ids[..., 0] = anchor
    return input_ids, anchor_position.unsqueeze(-1) + torch.arange(spec.num_inputs, device=anchor.device)


def output_slots(hidden: Tensor, block_size: int) -> Tensor:
    """The G slots that predict, [..., G, D], of the I computed ones [..., I, D]: all, or (1+N) all but the anchor's."""
    return hidden[..., hidden.shape[-2] - block_size :, :]


def slot_positions(anchors: Tensor, block_size: int) -> Tensor:
    """RoPE positions [..., G] of a chain's slots after anchors [...]: a-1, a, …; an anchor at 0, without a pair, starts at 0."""
    return (anchors - 1).clamp_min(0).unsqueeze(-1) + torch.arange(block_size, device=anchors.device)


def attention_rule(
    anchors: Tensor,
    valid: Tensor,
    num_inputs: int,
    context_mask: Tensor,
    num_queries: int | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """Who may attend whom in training: bool [B, N*Q, T + N*I], keys ordered context first, then all block inputs.

    Args:
        anchors: [B, N]; valid: bool [B, N]; num_inputs: I; context_mask: bool [B, T], True on real tokens.
        num_queries: Q, inputs of a block that ask; None: all of them.
        starts: [B, N], index of the first token of each anchor's document; None: every row is one document.

    A filler block still sees itself, so that its softmax is finite.
    """
    num_rows, num_anchors = anchors.shape
    num_queries = num_queries or num_inputs
    positions = torch.arange(context_mask.shape[1], device=anchors.device)
    context = (positions < anchors.unsqueeze(-1)) & context_mask.unsqueeze(1) & valid.unsqueeze(-1)  # [B, N, T]
    if starts is not None:
        context &= positions >= starts.unsqueeze(-1)
    context = context.repeat_interleave(num_queries, dim=1)
    blocks = torch.arange(num_anchors, device=anchors.device)
    asking, asked = blocks.repeat_interleave(num_queries), blocks.repeat_interleave(num_inputs)
    own = (asking.unsqueeze(1) == asked.unsqueeze(0)).expand(num_rows, -1, -1)
    return torch.cat([context, own], dim=-1)


def real_pairs(batch: Batch) -> Tensor:
    """Bool [B, T-1]: pairs (state at t, token t+1) of two real tokens of one document."""
    pairs = batch.attention_mask[:, :-1] & batch.attention_mask[:, 1:]
    return pairs if batch.document_ids is None else pairs & (batch.document_ids[:, :-1] == batch.document_ids[:, 1:])


def pair_rule(pair_mask: Tensor, document_ids: Tensor | None = None) -> Tensor:
    """Which pairs a chain's true pairs may attend, causally: bool [B, P, P] from ``pair_mask`` [B, P], True on real ones.

    ``document_ids`` [B, P] of the pairs' states, in a packed batch, keep them inside their document. A pair that is not real
    still sees itself, so that its softmax is finite.
    """
    index = torch.arange(pair_mask.shape[1], device=pair_mask.device)
    causal = index <= index.unsqueeze(-1)
    if document_ids is not None:
        causal = causal & (document_ids.unsqueeze(1) == document_ids.unsqueeze(2))
    return (causal & pair_mask.unsqueeze(1)) | (index == index.unsqueeze(-1))


def _gather(values: Tensor, index: Tensor) -> Tensor:
    """values [B, T] at index [B, ...] -> [B, ...]."""
    return values.gather(1, index.reshape(index.shape[0], -1)).reshape(index.shape)
