"""The parallel backbone of DFlash and DSpark: context features in, hidden states of whole blocks out (method 2.1).

    H_ctx = RMSNorm(W_c [H^(l1); …; H^(lm)])            once per context token
    x     = [embed(x_0), embed(MASK), …]                I inputs a block, then the draft layers over [H_ctx ; x]
    h_k   = norm(x)_k                                   G outputs a block (1+N layout: the anchor's own is dropped)

Confidences read h_k, or x_k before the norm (``confidence_input``), in training and decoding alike.

In training all N blocks of a sequence run side by side over one copy of the context's keys and values; in decoding
each row runs one block over its cache. Both pass the same layers. The module knows nothing of heads, logits or
losses.

    output = drafter(batch, blocks)                     # DraftOutput, hidden [B, N, G, D]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from draftlab.blocks import BlockSpec, block_inputs, output_slots
from draftlab.drafters.attention import BLOCKS_PER_GROUP, BlockAttention
from draftlab.drafters.cache import DraftCache
from draftlab.drafters.layered import LayeredDrafter
from draftlab.drafters.layers import DraftLayer, RMSNorm, kept_per_token
from draftlab.heads import Head
from draftlab.sampling import Sampling
from draftlab.target.spec import TargetSpec
from draftlab.types import Batch, Blocks, Context, DraftOutput, Proposal

CONFIDENCE_INPUTS = ("normed", "unnormed")


class BlockDrafter(LayeredDrafter):
    """A drafter that computes all slots of a block in one parallel pass; DFlash and DSpark differ in what follows it.

    Args:
        spec, block, head, confidence_head, draft_vocab_size: see :class:`draftlab.drafters.base.Drafter`.
        num_layers: draft layers.
        train_head: see :class:`draftlab.drafters.base.Drafter`.
        confidence_input: whether confidences read the states after the final norm (``normed``) or before (``unnormed``).
        sizes: num_heads, num_kv_heads, head_dim, intermediate_size; what is missing or None is taken from the target.

    Raises:
        ValueError: fewer than one layer, sizes that attention cannot be built with, or a confidence input of another name
            or without a confidence head.
    """

    def __init__(
        self,
        spec: TargetSpec,
        block: BlockSpec,
        head: Callable[..., Head],
        confidence_head: bool,
        draft_vocab_size: int | None,
        num_layers: int,
        train_head: bool = False,
        confidence_input: str = "normed",
        **sizes: int | None,
    ) -> None:
        _check_confidence_input(confidence_input, confidence_head)
        super().__init__(spec, block, head, confidence_head, draft_vocab_size, num_layers, train_head, **sizes)
        self.confidence_input = confidence_input
        self.fc = nn.Linear(spec.feature_size, spec.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self._stack([DraftLayer(self.sizes) for _ in range(num_layers)])

    @property
    def projection(self) -> nn.Linear:
        """fc [D, M*D]; the deepest tapped layer stands last."""
        return self.fc

    def kept_values(self, num_sequences: int, num_tokens: int) -> int:
        """Of each layer: all of its block slots; keys and values of the context, and the copy of them and of its slots'
        that a group of blocks attends."""
        slots = num_sequences * self.block.num_anchors * self.block.block_size
        kept, keys_values = kept_per_token(self.sizes)
        context = num_sequences * num_tokens
        groups = -(-self.block.num_anchors // BLOCKS_PER_GROUP)
        copies = slots + groups * context // 2  # on average a group sees half of the sequence
        return len(self.layers) * (slots * kept + (context + copies) * keys_values)

    def forward(self, batch: Batch, blocks: Blocks) -> DraftOutput:
        """h_1..h_G and confidences of all blocks; of the labels, only confidences read the true previous tokens.

        Raises:
            ValueError: a batch without features, or features of another width.
        """
        self._check_features(batch.features)
        num_blocks, num_inputs = blocks.input_ids.shape[1:]
        context = self._context(batch.features)  # [B, T, D]
        context_rotation = self._rotation(batch.positions)
        x = self._embed(blocks.input_ids.flatten(1))  # [B, N*I, D]
        block_rotation = self._rotation(blocks.positions.flatten(1))
        attention = (self.attention or BlockAttention)(
            blocks.anchors, blocks.valid, num_inputs, batch.attention_mask, starts=blocks.starts
        )
        for layer in self.layers:
            keys, values = layer.self_attn.keys_values(context, context_rotation)
            x = layer(x, block_rotation, partial(attention, context_keys=keys, context_values=values))
        hidden, confidence_hidden = self._outputs(x.unflatten(1, (num_blocks, num_inputs)))
        return DraftOutput(hidden, self.confidence_logits(confidence_hidden, blocks.previous))

    @torch.no_grad()
    def propose(
        self,
        context: Context,
        cache: DraftCache,
        sampling: Sampling,
        generator: torch.Generator | None = None,
        num_tokens: int | None = None,
    ) -> Proposal:
        """Draft after each row's anchor; the whole block is computed, its first ``num_tokens`` slots are drawn.

        Raises:
            ValueError: a context with holes or with the anchor in it, a block beyond the cache, or a wrong
                ``num_tokens``.
        """
        num_tokens = self._num_tokens(num_tokens)
        self._extend(context, cache)
        hidden, confidence_hidden = (states[:, :num_tokens] for states in self.block_states(context, cache))
        return self.draw(hidden, context.anchor, sampling, generator, confidence_hidden)

    def block_states(self, context: Context, cache: DraftCache) -> tuple[Tensor, Tensor]:
        """h_1..h_G [B, G, D] of one block a row and the states [B, G, D] that confidences read, over what ``cache`` holds."""
        input_ids, positions = block_inputs(
            context.anchor, context.anchor_position, self.block, self.spec.mask_token_id
        )
        cache.place_block(positions)
        x, block_rotation = self._embed(input_ids), self._rotation(positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, block_rotation, partial(cache.attend, index))
        return self._outputs(x)

    def _outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """h_1..h_G [..., G, D] of the I states [..., I, D] behind the last layer, and what confidences read of them."""
        slots = output_slots(x, self.block.block_size)
        hidden = self.norm(slots)
        return hidden, hidden if self.confidence_input == "normed" else slots

    def _extend(self, context: Context, cache: DraftCache) -> None:
        """Add the keys and values of newly committed tokens to ``cache``; padding costs nothing."""
        self._check_features(context.new_features)
        rows, columns = cache.new_tokens(context)
        if len(rows) == 0:
            return
        hidden = self._context(context.new_features[rows, columns]).unsqueeze(0)  # [1, K, D]
        positions = context.new_positions[rows, columns]
        context_rotation = self._rotation(positions.unsqueeze(0))
        for index, layer in enumerate(self.layers):
            keys, values = layer.self_attn.keys_values(hidden, context_rotation)  # [1, Hkv, K, head_dim]
            cache.write(index, rows, positions, keys[0].transpose(0, 1), values[0].transpose(0, 1))

    def _context(self, features: Tensor) -> Tensor:
        """H_ctx [..., D] of target features [..., M*D]."""
        return self.hidden_norm(self.fc(features.to(self.fc.weight.dtype)))


def _check_confidence_input(confidence_input: str, confidence_head: bool) -> None:
    if confidence_input not in CONFIDENCE_INPUTS:
        raise ValueError(
            f"drafter.confidence_input must be one of {', '.join(CONFIDENCE_INPUTS)}, got {confidence_input!r}"
        )
    if confidence_input != "normed" and not confidence_head:
        raise ValueError(
            f"drafter.confidence_input={confidence_input} is of no use to a drafter without confidence head; leave it out, or "
            "use drafter=dspark with drafter.confidence_head=true"
        )
