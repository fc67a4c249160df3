"""The parallel backbone of DFlash and DSpark: context features in, hidden states of whole blocks out (method 2.1).

    H_ctx = RMSNorm(W_c [H^(l1); …; H^(lm)])            once per context token
    x     = [embed(x_0), embed(MASK), …]                I inputs a block, then the draft layers over [H_ctx ; x]
    h_k   = norm(x)_k                                   G outputs a block (1+N layout: the anchor's own is dropped)

Confidences read h_k, or x_k before the norm (``confidence_input``), in training and decoding alike.

With early exits (:mod:`draftlab.drafters.exits`) training reads the states behind each exit too, in the same pass, and
decoding lets rows stop there, the others going on alone.

In training all N blocks of a sequence run side by side over one copy of the context's keys and values; in decoding
each row runs one block over its cache. Both pass the same layers. The module knows nothing of heads, logits or
losses.

    output = drafter(batch, blocks)                     # DraftOutput, hidden [B, N, G, D]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from draftlab.blocks import BlockSpec, block_inputs, output_slots
from draftlab.drafters.attention import BLOCKS_PER_GROUP, BlockAttention
from draftlab.drafters.cache import DraftCache
from draftlab.drafters.exits import Depths, Exit, LeaveOut, check_exits
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
        exits: numbers of layers after which a block may stop, below ``num_layers``.
        sizes: num_heads, num_kv_heads, head_dim, intermediate_size; what is missing or None is taken from the target.

    Raises:
        ValueError: fewer than one layer, sizes that attention cannot be built with, a confidence input of another name or
            without a confidence head, or exits that are none.
    """

    can_sit_out = True

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
        exits: Sequence[int] = (),
        **sizes: int | None,
    ) -> None:
        _check_confidence_input(confidence_input, confidence_head)
        exit_layers = check_exits(exits, num_layers, confidence_head)
        super().__init__(spec, block, head, confidence_head, draft_vocab_size, num_layers, train_head, **sizes)
        self.confidence_input = confidence_input
        self.fc = nn.Linear(spec.feature_size, spec.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self._stack([DraftLayer(self.sizes) for _ in range(num_layers)])
        self.exit_layers = exit_layers
        # Last, so that everything else starts with the random numbers that it starts with in a plain drafter.
        made = (Exit(spec.hidden_size, spec.rms_norm_eps, self.markov_head.rank) for _ in exit_layers)
        self.exits = nn.ModuleDict(dict(zip(map(str, exit_layers), made, strict=True)))

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
        exits = {}
        for depth, layer in enumerate(self.layers, start=1):
            keys, values = layer.self_attn.keys_values(context, context_rotation)
            x = layer(x, block_rotation, partial(attention, context_keys=keys, context_values=values))
            if depth in self.exit_layers:
                exits[depth] = self._training_output(x.unflatten(1, (num_blocks, num_inputs)), blocks, depth)
        whole = self._training_output(x.unflatten(1, (num_blocks, num_inputs)), blocks)
        return dataclasses.replace(whole, exits=exits)

    def _training_output(self, x: Tensor, blocks: Blocks, depth: int | None = None) -> DraftOutput:
        """Outputs of the states [B, N, I, D] behind exit ``depth``, or behind the last layer."""
        hidden, confidence_hidden = self._outputs(x, depth)
        return DraftOutput(hidden, self.confidence_logits(confidence_hidden, blocks.previous, depth))

    @torch.no_grad()
    def propose(
        self,
        context: Context,
        cache: DraftCache,
        sampling: Sampling,
        generator: torch.Generator | None = None,
        num_tokens: int | None = None,
        leaving_out: LeaveOut | None = None,
    ) -> Proposal:
        """Draft after each row's anchor; the whole block is computed, its first ``num_tokens`` slots are drawn.

        With ``leaving_out``, rows stop at exits or are not drafted; the proposal then says how deep each row went.

        Raises:
            ValueError: a context with holes or with the anchor in it, a block beyond the cache, or a wrong
                ``num_tokens``.
        """
        num_tokens = self._num_tokens(num_tokens)
        self._extend(context, cache)  # of all rows: a row that does not draft now reads its context all the same
        if leaving_out is not None:
            return self._propose_in_part(context, cache, sampling, generator, num_tokens, leaving_out)
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

    def _propose_in_part(
        self,
        context: Context,
        cache: DraftCache,
        sampling: Sampling,
        generator: torch.Generator | None,
        num_tokens: int,
        leaving_out: LeaveOut,
    ) -> Proposal:
        """The proposal of all rows, of which some stop at exits and some are not drafted."""
        rows = leaving_out.rows(len(context.anchor), context.anchor.device)
        if len(rows) == 0:
            laws = self.norm.weight.new_zeros(len(context.anchor), 0, self.draft_vocab_size)
            nothing = context.anchor.new_zeros(len(context.anchor), 0)
            confidence, nobody = nothing.float() if self.has_confidence else None, torch.zeros_like(context.anchor)
            return Proposal(nothing, laws, self.draft_ids, confidence, lengths=nobody, depth=nobody)
        anchor = context.anchor[rows]
        depths = self._run_to_exits(context, cache, rows, leaving_out.survival)
        hidden, read = depths.hidden[:, :num_tokens], depths.confidence_hidden[:, :num_tokens]
        proposal = self.draw(hidden, anchor, sampling, generator, read)
        previous = torch.cat([anchor.unsqueeze(-1), proposal.tokens[:, :-1]], dim=1)
        confidence = proposal.confidence
        for depth in self.exit_layers:  # the other confidences of a row are those of its exit, too
            left = depths.layers == depth
            logits = self.confidence_logits(read[left], previous[left], depth)
            confidence[left] = torch.sigmoid(logits.float())
        return dataclasses.replace(proposal, depth=depths.layers).scattered(rows, len(context.anchor))

    def _run_to_exits(self, context: Context, cache: DraftCache, rows: Tensor, survival: float) -> Depths:
        """Run the blocks of ``rows`` through the layers; those that an exit gives too little hope leave there."""
        anchor = context.anchor[rows]
        input_ids, positions = block_inputs(anchor, context.anchor_position[rows], self.block, self.spec.mask_token_id)
        cache.place_block(positions, rows)
        x, block_rotation = self._embed(input_ids), self._rotation(positions)
        depths = Depths(len(rows), rows.device)
        for depth, layer in enumerate(self.layers, start=1):
            x = layer(x, block_rotation, partial(cache.attend, depth - 1))
            if depth not in self.exit_layers:
                continue
            leaving = self._first_survival(x, anchor[depths.going], depth) < survival
            if not bool(leaving.any()):
                continue
            depths.leave(leaving, depth, *self._outputs(x[leaving], depth))
            x, block_rotation = x[~leaving], tuple(part[~leaving] for part in block_rotation)
            if len(x) == 0:
                return depths
            cache.keep_of_block(~leaving)
        everyone = torch.ones(len(x), dtype=torch.bool, device=x.device)
        depths.leave(everyone, len(self.layers), *self._outputs(x))
        return depths

    def _first_survival(self, x: Tensor, anchor: Tensor, depth: int) -> Tensor:
        """c_1 [B] of exit ``depth`` from block states x [B, I, D]: it reads nothing that is drafted."""
        first = output_slots(x, self.block.block_size)[:, 0]
        read = self.exits[str(depth)].norm(first) if self.confidence_input == "normed" else first
        return torch.sigmoid(self.confidence_logits(read, anchor, depth).float())

    def confidence_logits(self, hidden: Tensor, previous: Tensor, depth: int | None = None) -> Tensor | None:
        """As in :class:`draftlab.drafters.base.Drafter`, by the confidence head of exit ``depth`` if one is given."""
        if depth is None:
            return super().confidence_logits(hidden, previous)
        return self.exits[str(depth)].confidence_head(hidden, self.markov_head.previous_features(previous))

    def _outputs(self, x: Tensor, depth: int | None = None) -> tuple[Tensor, Tensor]:
        """h_1..h_G [..., G, D] of the I states [..., I, D] behind the last layer, or behind exit ``depth``, and what
        confidences read of them."""
        slots = output_slots(x, self.block.block_size)
        hidden = (self.norm if depth is None else self.exits[str(depth)].norm)(slots)
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
