"""Attention of draft blocks in training: every block sees context strictly before its anchor, and itself (method 2).

The rule is :func:`draftlab.blocks.attention_rule`. Evaluated as one mask over all N·I queries and T + N·I keys, most
of the work is masked away; blocks are therefore taken a few at a time, in order of their anchors, each group with the
context that its last anchor may see and its own keys only. The result is the same. A chain (Eagle3, MTP) asks with one
slot of each block at a time. :class:`FlexBlockAttention` gives the same to FlexAttention, which skips what is masked by itself and
trains on CUDA only. The module knows nothing of layers or weights.

    attention = BlockAttention(anchors, valid, num_inputs, context_mask)
    attended = attention(queries, keys, values, context_keys, context_values)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from draftlab.blocks import attention_rule

BLOCKS_PER_GROUP = 8
CHAINS_PER_GROUP = 64  # a chain asks with one slot a block at a time, so a group of the same work holds more blocks


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention [B, H, Q, head_dim] of ``queries`` over keys and values [B, Hkv, K, head_dim].

    H is a multiple of Hkv. ``mask`` is bool, broadcast to [B, H, Q, K], True where a query may look; every query must
    see some key. Where a CPU needs gradients it is float32 also under autocast: the backward pass in bfloat16 takes four times
    as long there.
    """
    grouped = queries.shape[1] != keys.shape[1]
    if queries.device.type != "cpu" or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=grouped)
    with torch.autocast("cpu", enabled=False):
        parts = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in (queries, keys, values))
        attended = F.scaled_dot_product_attention(*parts, attn_mask=mask, enable_gqa=grouped)
    return attended.to(values.dtype)


@dataclass(frozen=True)
class _Group:
    """Consecutive blocks that are attended together."""

    queries: slice  # of the N*Q queries
    inputs: slice  # of the N*I block inputs
    context: slice  # of the T context tokens: those that some block of the group may see
    mask: Tensor  # [B, 1, q, c + i] of the group's q queries, c context tokens and i inputs


class BlockAttention:
    """The attention pattern of one batch of blocks, shared by all layers.

    Args:
        anchors: [B, N] positions, best in ascending order (any order is right, ascending is fast).
        valid: bool [B, N].
        num_inputs: I, input slots of a block.
        context_mask: bool [B, T], True on real tokens.
        blocks_per_group: blocks attended together.
        num_queries: Q, inputs of a block that ask; None: all of them.
        starts: [B, N], index of the first token of each anchor's document; None: every row is one document.
    """

    def __init__(
        self,
        anchors: Tensor,
        valid: Tensor,
        num_inputs: int,
        context_mask: Tensor,
        blocks_per_group: int = BLOCKS_PER_GROUP,
        num_queries: int | None = None,
        starts: Tensor | None = None,
    ) -> None:
        num_queries = num_queries or num_inputs
        starts = torch.zeros_like(anchors) if starts is None else starts
        self.groups: list[_Group] = []
        begin = 0
        for first, last in _context_ranges(anchors, starts, valid, blocks_per_group):
            blocks = slice(begin, begin + blocks_per_group)
            mask = attention_rule(
                anchors[:, blocks] - first,
                valid[:, blocks],
                num_inputs,
                context_mask[:, first:last],
                num_queries,
                starts[:, blocks] - first,
            )
            end = min(begin + blocks_per_group, anchors.shape[1])
            queries, inputs = (slice(begin * width, end * width) for width in (num_queries, num_inputs))
            self.groups.append(_Group(queries, inputs, slice(first, last), mask.unsqueeze(1)))
            begin = end

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, context_keys: Tensor, context_values: Tensor
    ) -> Tensor:
        """Attended values [B, H, N*Q, head_dim].

        Args:
            queries: [B, H, N*Q, head_dim]; keys, values: [B, Hkv, N*I, head_dim], of the block inputs.
            context_keys, context_values: [B, Hkv, T, head_dim].
        """
        attended = []
        for group in self.groups:
            group_keys = torch.cat([context_keys[:, :, group.context], keys[:, :, group.inputs]], dim=2)
            group_values = torch.cat([context_values[:, :, group.context], values[:, :, group.inputs]], dim=2)
            attended.append(attend(queries[:, :, group.queries], group_keys, group_values, group.mask))
        return torch.cat(attended, dim=2)


def _context_ranges(anchors: Tensor, starts: Tensor, valid: Tensor, blocks_per_group: int) -> list[tuple[int, int]]:
    """First and one past the last context token that some block of each group may see. One transfer tells all of them."""
    last = torch.where(valid, anchors, 0)
    first = torch.where(valid, torch.minimum(starts, anchors), torch.iinfo(anchors.dtype).max)
    ends = torch.stack([part.amax() for part in last.split(blocks_per_group, dim=1)])
    begins = torch.stack([part.amin() for part in first.split(blocks_per_group, dim=1)])
    return torch.stack([torch.minimum(begins, ends), ends], dim=-1).tolist()


class FlexBlockAttention:
    """The pattern of :class:`BlockAttention`, with the same arguments, through FlexAttention.

    It has no backward pass on a CPU; there its forward pass makes all scores, and serves to compare.
    """

    def __init__(
        self,
        anchors: Tensor,
        valid: Tensor,
        num_inputs: int,
        context_mask: Tensor,
        num_queries: int | None = None,
        starts: Tensor | None = None,
    ) -> None:
        num_queries = num_queries or num_inputs
        starts = torch.zeros_like(anchors) if starts is None else starts
        num_rows, num_tokens = context_mask.shape

        def rule(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            block = query // num_queries
            seen = (key >= starts[row, block]) & (key < anchors[row, block]) & valid[row, block]
            own = (key >= num_tokens) & ((key - num_tokens) // num_inputs == block)
            return (seen & context_mask[row, key.clamp_max(num_tokens - 1)]) | own

        lengths = anchors.shape[1] * num_queries, num_tokens + anchors.shape[1] * num_inputs
        self.mask = create_block_mask(rule, num_rows, None, *lengths, device=anchors.device)

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, context_keys: Tensor, context_values: Tensor
    ) -> Tensor:
        """Attended values [B, H, N*Q, head_dim]; arguments as of :class:`BlockAttention`."""
        values = torch.cat([context_values, values], dim=2)
        # Under autocast the norms of queries and keys are float32; FlexAttention wants one dtype.
        keys = torch.cat([context_keys, keys], dim=2).to(values.dtype)
        run = _compiled_flex() if queries.device.type == "cuda" else flex_attention
        grouped = queries.shape[1] != keys.shape[1]
        return run(queries.to(values.dtype), keys, values, block_mask=self.mask, enable_gqa=grouped)


@cache
def _compiled_flex():
    return torch.compile(flex_attention, dynamic=True)


class ChainAttention:
    """The attention pattern of one batch of chains, slot after slot, shared by all layers.

    Slot k of a block sees the true pairs strictly before the pair of its anchor, and the slots of its own block up to k.

    Args:
        first: [B, N], index of the pair that slot 0 is.
        valid: bool [B, N].
        num_slots: G.
        pair_mask: bool [B, P], True on real pairs.
        starts: [B, N], index of the first pair of each anchor's document; None: every row is one document.
        kind: attention of one slot, with the arguments of :class:`BlockAttention`; None: that, in groups of many blocks.
    """

    def __init__(
        self,
        first: Tensor,
        valid: Tensor,
        num_slots: int,
        pair_mask: Tensor,
        starts: Tensor | None = None,
        kind: Callable | None = None,
    ) -> None:
        kind = kind or partial(BlockAttention, blocks_per_group=CHAINS_PER_GROUP)
        self.slots = [
            kind(first, valid, slot + 1, pair_mask, num_queries=1, starts=starts) for slot in range(num_slots)
        ]

    def layer(self, pair_keys: Tensor, pair_values: Tensor) -> ChainLayerAttention:
        """The same for one layer, with its keys and values [B, Hkv, P, head_dim] of the true pairs."""
        return ChainLayerAttention(self, pair_keys, pair_values)


class ChainLayerAttention:
    """Attention of one layer; it keeps what the slots before have written, so it is called once a slot, in order."""

    def __init__(self, pattern: ChainAttention, pair_keys: Tensor, pair_values: Tensor) -> None:
        self.pattern, self.pairs = pattern, (pair_keys, pair_values)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attended values [B, H, N, head_dim] of the next slot of N blocks; keys and values [B, Hkv, N, head_dim]."""
        self.keys.append(keys)
        self.values.append(values)
        attention = self.pattern.slots[len(self.keys) - 1]
        own_keys, own_values = (torch.stack(written, dim=3).flatten(2, 3) for written in (self.keys, self.values))
        return attention(queries, own_keys, own_values, *self.pairs)
