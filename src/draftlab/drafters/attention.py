"""Attention of draft blocks in training: every block sees context strictly before its anchor, and itself (method 2.1).

The rule is :func:`draftlab.blocks.attention_rule`. Evaluated as one mask over all N·I queries and T + N·I keys, most
of the work is masked away; blocks are therefore taken a few at a time, in order of their anchors, each group with the
context that its last anchor may see and its own keys only. The result is the same. The module knows nothing of layers
or weights.

    attention = BlockAttention(anchors, valid, num_inputs, context_mask)
    attended = attention(queries, keys, values, context_keys, context_values)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from draftlab.blocks import attention_rule

BLOCKS_PER_GROUP = 8


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention [B, H, Q, head_dim] of ``queries`` over keys and values [B, Hkv, K, head_dim].

    H is a multiple of Hkv. ``mask`` is bool, broadcast to [B, H, Q, K], True where a query may look; every query must
    see some key.
    """
    grouped = queries.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=grouped)


@dataclass(frozen=True)
class _Group:
    """Consecutive blocks that are attended together."""

    inputs: slice  # of the N*I block inputs
    num_context: int  # context tokens that some block of the group may see
    mask: Tensor  # [B, 1, q, num_context + q]


class BlockAttention:
    """The attention pattern of one batch of blocks, shared by all layers.

    Args:
        anchors: [B, N] positions, best in ascending order (any order is right, ascending is fast).
        valid: bool [B, N].
        num_inputs: I, input slots of a block.
        context_mask: bool [B, T], True on real tokens.
        blocks_per_group: blocks attended together.
    """

    def __init__(
        self,
        anchors: Tensor,
        valid: Tensor,
        num_inputs: int,
        context_mask: Tensor,
        blocks_per_group: int = BLOCKS_PER_GROUP,
    ) -> None:
        self.groups: list[_Group] = []
        last_anchors = [part.amax() for part in anchors.split(blocks_per_group, dim=1)]
        begin = 0
        # One transfer tells all context lengths.
        for num_context in torch.stack(last_anchors).tolist():
            blocks = slice(begin, begin + blocks_per_group)
            mask = attention_rule(anchors[:, blocks], valid[:, blocks], num_inputs, context_mask[:, :num_context])
            inputs = slice(begin * num_inputs, begin * num_inputs + mask.shape[1])
            self.groups.append(_Group(inputs, num_context, mask.unsqueeze(1)))
            begin += blocks_per_group

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, context_keys: Tensor, context_values: Tensor
    ) -> Tensor:
        """Attended values [B, H, N*I, head_dim].

        Args:
            queries: [B, H, N*I, head_dim]; keys, values: [B, Hkv, N*I, head_dim], of the block inputs.
            context_keys, context_values: [B, Hkv, T, head_dim].
        """
        attended = []
        for group in self.groups:
            group_keys = torch.cat([context_keys[:, :, : group.num_context], keys[:, :, group.inputs]], dim=2)
            group_values = torch.cat([context_values[:, :, : group.num_context], values[:, :, group.inputs]], dim=2)
            attended.append(attend(queries[:, :, group.inputs], group_keys, group_values, group.mask))
        return torch.cat(attended, dim=2)
