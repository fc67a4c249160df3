"""The chain of Eagle3 and MTP: one slot after the other, each fed with the state of the one before (methods 2.3, 2.4).

    g_t    = the target's state at position t, D wide                  what it is, the subclass says
    slot 0 of anchor a:   x = pair(g_{a-1}, embed(x_a))                the true pair a-1, RoPE position a-1
    slot k:               x = pair(y_{k-1}, embed(x_{a+k}))            RoPE position a-1+k
    y_k = layers(x) over the true pairs 0 … a-2 and slots 0 … k,       h_k = norm(y_k)

So a slot is fed with the state *before* the final norm, and logits are LMHead(h_k). In training x_{a+k} is the true token
and all N blocks take a step together: the Training-Time Test of Eagle3, at the sampled anchors. With every position an
anchor it is the whole of it. In decoding x_{a+k} is the drafted token, and the same layers run over a cache in which the
slot of a pair is its position. The module knows nothing of what g is, nor of losses.

An anchor at position 0 has no state before it: zeros stand in for it, in training and decoding alike.

    output = drafter(batch, blocks)                     # DraftOutput, hidden [B, N, G, D]
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from draftlab.blocks import BlockSpec, pair_rule, real_pairs, slot_positions
from draftlab.drafters.attention import CHAINS_PER_GROUP, ChainAttention, attend
from draftlab.drafters.cache import DraftCache
from draftlab.drafters.layered import LayeredDrafter
from draftlab.drafters.layers import Attend, kept_per_token
from draftlab.heads import Head, NoHead
from draftlab.sampling import Sampling
from draftlab.target.spec import TargetSpec
from draftlab.types import Batch, Blocks, Context, DraftOutput, Proposal


class ChainDrafter(LayeredDrafter):
    """A drafter that feeds its own states back; no sequential head, no confidences.

    Args:
        spec, block, head, draft_vocab_size, num_layers, train_head, qk_norm, sizes: see
            :class:`draftlab.drafters.layered.LayeredDrafter`.

    Raises:
        ValueError: any head but ``none``, the 1+N layout, or sizes that do not fit together.
    """

    hidden_norm = None

    def __init__(
        self,
        spec: TargetSpec,
        block: BlockSpec,
        head: Callable[..., Head],
        draft_vocab_size: int | None,
        num_layers: int,
        train_head: bool = False,
        qk_norm: bool = True,
        **sizes: int | None,
    ) -> None:
        super().__init__(spec, block, head, False, draft_vocab_size, num_layers, train_head, qk_norm, **sizes)
        self.state_size = spec.hidden_size
        if not isinstance(self.markov_head, NoHead):
            raise ValueError(
                "drafter=eagle3 and drafter=mtp feed every drafted token back into their layers, which takes head=none, "
                f"got {type(self.markov_head).__name__}; use drafter=dspark to draft with a sequential head"
            )
        if not block.sample_from_anchor:
            raise ValueError(
                "drafter=eagle3 and drafter=mtp have no mask inputs, so block.sample_from_anchor must be true, got false; "
                "use block=ttt7, block=mtp1 or another anchor-first block"
            )

    # What a family implements

    @abstractmethod
    def states(self, features: Tensor | None, last_hidden: Tensor | None) -> Tensor:
        """g [..., D] of what the target gave at positions [...], in the dtype of the drafter's weights.

        Raises:
            ValueError: what the family reads is missing or of another width.
        """

    @abstractmethod
    def pair(self, state: Tensor, embedding: Tensor) -> Tensor:
        """Input [..., D or 2D] of the first layer from a state [..., D] and the embedding [..., D] of the next token."""

    # Training

    def forward(self, batch: Batch, blocks: Blocks) -> DraftOutput:
        """h_1..h_G of all blocks, fed with the true previous tokens.

        Raises:
            ValueError: a batch without what the drafter reads of the target.
        """
        states = self.states(batch.features, batch.last_hidden)  # [B, T, D]
        positions = slot_positions(blocks.anchors - blocks.starts, self.block.block_size)  # [B, N, G], in the document
        pair_mask = real_pairs(batch)
        first = positions[..., 0] + blocks.starts
        num_slots = self.block.block_size
        pattern = ChainAttention(first, blocks.valid, num_slots, pair_mask, blocks.starts, self.attention)
        attends = [pattern.layer(*keys_values) for keys_values in self._pairs(states, batch, pair_mask)]
        state = _states_before(states, blocks.anchors, blocks.starts)
        embedded = self._embed(blocks.previous)  # [B, N, G, D]
        outputs = []
        for slot in range(self.block.block_size):
            state = self._step(state, embedded[:, :, slot], positions[..., slot], attends)
            outputs.append(state)
        return DraftOutput(self.norm(torch.stack(outputs, dim=2)), None)

    def _pairs(self, states: Tensor, batch: Batch, pair_mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [B, Hkv, T-1, head_dim] of all true pairs, in each layer, once for all blocks."""
        x = self.pair(states[:, :-1], self._embed(batch.input_ids[:, 1:]))
        pair_rotation = self._rotation(batch.positions[:, :-1])
        written: list[tuple[Tensor, Tensor]] = []
        documents = None if batch.document_ids is None else batch.document_ids[:, :-1]
        visible = pair_rule(pair_mask, documents).unsqueeze(1) if len(self.layers) > 1 else None

        def keep(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            written.append((keys, values))
            return attend(queries, keys, values, visible)

        for layer in self.layers[:-1]:
            x = layer(x, pair_rotation, keep)
        return [*written, self.layers[-1].keys_values(x, pair_rotation)]

    def _step(self, state: Tensor, embedding: Tensor, positions: Tensor, attends: Sequence[Attend]) -> Tensor:
        """State y [B, L, D] of one slot from what it is fed with, [B, L, D] both, at ``positions`` [B, L]."""
        x, slot_rotation = self.pair(state, embedding), self._rotation(positions)
        for layer, attend_layer in zip(self.layers, attends, strict=True):
            x = layer(x, slot_rotation, attend_layer)
        return x

    def kept_values(self, num_sequences: int, num_tokens: int) -> int:
        """Slots and their inputs; keys and values of pairs, and the copy of them that a group of blocks attends at each step.

        In a deeper drafter the true pairs run through all layers but the last.
        """
        num_slots, num_blocks = self.block.block_size, self.block.num_anchors
        kept, keys_values = kept_per_token(self.sizes)
        slots, pairs = num_sequences * num_blocks * num_slots, num_sequences * num_tokens
        inputs = (slots + pairs) * 3 * self.spec.hidden_size  # the state, and both parts of the pair behind their norms
        groups = -(-num_blocks // CHAINS_PER_GROUP)
        own = slots * (num_slots + 1) // 2  # at step k every block brings k slots
        copies = groups * num_slots * pairs // 2  # on average a group sees half of the sequence
        layers = len(self.layers)
        return inputs + layers * (slots * kept + (pairs + own + copies) * keys_values) + (layers - 1) * pairs * kept

    # Decoding

    @torch.no_grad()
    def propose(
        self,
        context: Context,
        cache: DraftCache,
        sampling: Sampling,
        generator: torch.Generator | None = None,
        num_tokens: int | None = None,
    ) -> Proposal:
        """Draft ``num_tokens`` tokens after each row's anchor, one pass of the layers for each.

        Raises:
            ValueError: a context with holes or with the anchor in it, a block beyond the cache, or a wrong
                ``num_tokens``.
        """
        num_tokens = self._num_tokens(num_tokens)
        self._extend(context, cache)
        attends = [partial(cache.attend, index) for index in range(len(self.layers))]
        positions = slot_positions(context.anchor_position, num_tokens)
        state, token = cache.states.to(self.norm.weight.dtype).unsqueeze(1), context.anchor
        drawn: list[Proposal] = []
        for slot in range(num_tokens):
            position = positions[:, slot : slot + 1]
            cache.place_block(position)
            state = self._step(state, self._embed(token).unsqueeze(1), position, attends)
            drawn.append(self.draw(self.norm(state), token, sampling, generator))
            token = drawn[-1].tokens[:, 0]
        tokens, laws, tops = (
            torch.cat([getattr(one, name) for one in drawn], dim=1) for name in ("tokens", "draft_probs", "draft_top")
        )
        return Proposal(tokens, laws, self.draft_ids, None, tops)

    def _extend(self, context: Context, cache: DraftCache) -> None:
        """Add the pairs of newly committed tokens to ``cache``; padding costs nothing.

        The last new state of a row has the anchor as its token. That pair is slot 0, so the state is kept for it.
        """
        rows, columns = cache.new_tokens(context)
        if len(rows) == 0:
            return
        states = self.states(context.new_features[rows, columns], context.new_last_hidden[rows, columns])  # [K, D]
        positions = context.new_positions[rows, columns]
        last = positions + 1 == context.anchor_position[rows]
        cache.states[rows[last]] = states[last].to(cache.states.dtype)
        rows, columns, positions = rows[~last], columns[~last], positions[~last]
        if len(rows) == 0:
            return
        x = self.pair(states[~last], self._embed(context.new_ids[rows, columns + 1])).unsqueeze(0)
        pair_rotation = self._rotation(positions.unsqueeze(0))
        for index, layer in enumerate(self.layers[:-1]):
            x = layer(x, pair_rotation, partial(cache.attend_new, index, rows, positions))
        keys, values = self.layers[-1].keys_values(x, pair_rotation)  # [1, Hkv, K, head_dim]
        cache.write(len(self.layers) - 1, rows, positions, keys[0].transpose(0, 1), values[0].transpose(0, 1))


def _states_before(states: Tensor, anchors: Tensor, starts: Tensor) -> Tensor:
    """g_{a-1} [B, N, D] of states [B, T, D] at anchors [B, N]; zeros where the anchor is the first token of its document."""
    index = (anchors - 1).clamp_min(0).unsqueeze(-1).expand(-1, -1, states.shape[-1])
    return states.gather(1, index).masked_fill((anchors == starts).unsqueeze(-1), 0.0)
