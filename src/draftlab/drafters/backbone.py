"""The parallel backbone of DFlash and DSpark: context features in, hidden states of whole blocks out (method 2.1).

    H_ctx = RMSNorm(W_c [H^(l1); …; H^(lm)])            once per context token
    x     = [embed(x_0), embed(MASK), …]                I inputs a block, then the draft layers over [H_ctx ; x]
    h_k   = norm(x)_k                                   G outputs a block (1+N layout: the anchor's own is dropped)

In training all N blocks of a sequence run side by side over one copy of the context's keys and values; in decoding
each row runs one block over its cache. Both pass the same layers. The module knows nothing of heads, logits or
losses.

    output = drafter(batch, blocks)                     # DraftOutput, hidden [B, N, G, D]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from draftlab.blocks import BlockSpec, block_inputs, output_slots
from draftlab.drafters.attention import BlockAttention
from draftlab.drafters.base import Drafter
from draftlab.drafters.cache import DraftCache
from draftlab.drafters.layers import DraftLayer, LayerSizes, RMSNorm, rotation
from draftlab.heads import Head
from draftlab.sampling import Sampling
from draftlab.target.spec import TargetSpec
from draftlab.types import Batch, Blocks, Context, DraftOutput, Proposal

INIT_STD = 0.02
SIZES = ("num_heads", "num_kv_heads", "head_dim", "intermediate_size")


class BlockDrafter(Drafter):
    """A drafter that computes all slots of a block in one parallel pass; DFlash and DSpark differ in what follows it.

    Args:
        spec, block, head, confidence_head, draft_vocab_size: see :class:`draftlab.drafters.base.Drafter`.
        num_layers: draft layers.
        sizes: num_heads, num_kv_heads, head_dim, intermediate_size; what is missing or None is taken from the target.

    Raises:
        ValueError: fewer than one layer, or sizes that attention cannot be built with.
    """

    def __init__(
        self,
        spec: TargetSpec,
        block: BlockSpec,
        head: Callable[..., Head],
        confidence_head: bool,
        draft_vocab_size: int | None,
        num_layers: int,
        **sizes: int | None,
    ) -> None:
        if num_layers < 1:
            raise ValueError(f"drafter.num_layers must be at least 1, got {num_layers}")
        layer_sizes = _layer_sizes(spec, sizes)
        super().__init__(spec, block, head, confidence_head, draft_vocab_size)
        self.sizes = layer_sizes
        self.fc = nn.Linear(spec.feature_size, spec.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(layer_sizes) for _ in range(num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self._initialise()

    def forward(self, batch: Batch, blocks: Blocks) -> DraftOutput:
        """h_1..h_G and confidences of all blocks; of the labels, only confidences read the true previous tokens.

        Raises:
            ValueError: a batch without features, or features of another width.
        """
        self._check_features(batch.features)
        num_blocks, num_inputs = blocks.input_ids.shape[1:]
        context = self._context(batch.features)  # [B, T, D]
        context_rotation = self._rotation(batch.positions[:1])
        x = self._embed(blocks.input_ids.flatten(1))  # [B, N*I, D]
        block_rotation = self._rotation(blocks.positions.flatten(1))
        attention = BlockAttention(blocks.anchors, blocks.valid, num_inputs, batch.attention_mask)
        for layer in self.layers:
            keys, values = layer.self_attn.keys_values(context, context_rotation)
            x = layer(x, block_rotation, partial(attention, context_keys=keys, context_values=values))
        hidden = output_slots(x.unflatten(1, (num_blocks, num_inputs)), self.block.block_size)
        hidden = self.norm(hidden)
        return DraftOutput(hidden, self.confidence_logits(hidden, blocks.previous))

    def start(self, batch_size: int, max_length: int, device=None, dtype: torch.dtype | None = None) -> DraftCache:
        """Empty cache, by default on the drafter's device and in its dtype."""
        weight = self.fc.weight
        return DraftCache(
            num_layers=len(self.layers),
            num_rows=batch_size,
            num_kv_heads=self.sizes.num_kv_heads,
            head_dim=self.sizes.head_dim,
            max_length=max_length,
            device=device or weight.device,
            dtype=dtype or weight.dtype,
        )

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
        return self.draw(self.block_hidden(context, cache)[:, :num_tokens], context.anchor, sampling, generator)

    def block_hidden(self, context: Context, cache: DraftCache) -> Tensor:
        """h_1..h_G [B, G, D] of one block a row, over what ``cache`` already holds."""
        input_ids, positions = block_inputs(
            context.anchor, context.anchor_position, self.block, self.spec.mask_token_id
        )
        cache.place_block(positions)
        x, block_rotation = self._embed(input_ids), self._rotation(positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, block_rotation, partial(cache.attend, index))
        return self.norm(output_slots(x, self.block.block_size))

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

    def _embed(self, ids: Tensor) -> Tensor:
        self._require_ready()
        return self.ends.embed(ids).to(self.fc.weight.dtype)

    def _rotation(self, positions: Tensor):
        return rotation(positions, self.sizes.head_dim, self.spec.rope_theta)

    def _check_features(self, features: Tensor | None) -> None:
        if features is None:
            raise ValueError("the batch has no target features; let the target read it first (target.read(batch))")
        if features.shape[-1] != self.spec.feature_size:
            raise ValueError(
                f"target features must be {self.spec.feature_size} wide ({self.spec.num_features} layers of "
                f"{self.spec.hidden_size}, target.target_layer_ids {list(self.spec.target_layer_ids)}), "
                f"got {features.shape[-1]}"
            )

    def _initialise(self) -> None:
        """Small normal weights; what is added to the residual stream is smaller the deeper the drafter."""
        for layer in self.layers:
            for linear in (m for m in layer.modules() if isinstance(m, nn.Linear)):
                nn.init.normal_(linear.weight, std=INIT_STD)
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                nn.init.normal_(linear.weight, std=INIT_STD / math.sqrt(2 * len(self.layers)))
        nn.init.normal_(self.fc.weight, std=INIT_STD)


def _layer_sizes(spec: TargetSpec, sizes: dict[str, int | None]) -> LayerSizes:
    """The sizes given, and the target's for the rest."""
    unknown = sorted(set(sizes) - set(SIZES))
    if unknown:
        raise ValueError(f"unknown drafter setting {', '.join(unknown)}; layer sizes are {', '.join(SIZES)}")
    chosen = {name: getattr(spec, name) if sizes.get(name) is None else sizes[name] for name in SIZES}
    return LayerSizes(hidden_size=spec.hidden_size, rms_norm_eps=spec.rms_norm_eps, **chosen)
