"""The dataclasses that travel between stages, and the one legend of shape letters.

Shape letters, used at every function boundary of the project:

    B  batch (sequences)            G  gamma, the block size: drafted tokens per round
    T  tokens of a sequence         Q  query tokens of one forward pass
    N  anchors (blocks) a sequence  F  newly committed tokens handed to the drafter
    D  hidden size of the target    M  number of tapped target layers
    V  target vocabulary            W  draft vocabulary (W = V unless it is reduced)
    R  rank of the sequential head  I  input slots of a block (G, or G + 1 in the 1+N layout)

This module knows nothing of models, files or configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


def document_places(document_ids: Tensor) -> Tensor:
    """Where the documents of packed rows [B, T] lie: flat indices b·T + t of every document's tokens, [S, L], -1 behind its end."""
    flat = document_ids.flatten()
    places = (flat >= 0).nonzero().squeeze(-1)
    documents = flat[places]
    counts = torch.bincount(documents)
    order = torch.sort(documents, stable=True).indices  # a document's tokens stay in order
    filled = torch.arange(int(counts.max()), device=flat.device) < counts.unsqueeze(-1)
    return torch.full(filled.shape, -1, device=flat.device).masked_scatter(filled, places[order])


class _Movable:
    """Gives a dataclass of tensors a ``to`` method; non-tensors are kept as they are."""

    def to(self, *args, **kwargs):
        """Return a copy whose tensors were moved with ``Tensor.to(*args, **kwargs)``."""
        moved = {
            field.name: value.to(*args, **kwargs)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return dataclasses.replace(self, **moved)


@dataclass(frozen=True)
class Batch(_Movable):
    """Right-padded conversations and, once the target has read them, its features.

    In a *packed* batch (:mod:`draftlab.data.packing`) a row holds several conversations, its *documents*, one behind the other.
    ``document_ids`` number them over the whole batch in the order of ``sample_ids``; S documents are then more than B rows.

    ``features`` are the raw outputs of the tapped decoder layers, concatenated in the order of ``target_layer_ids``;
    ``last_hidden`` is the target's last hidden state *after* its final norm; ``log_normalizer`` is log Σ_v exp(logit_v)
    over the whole vocabulary V at temperature 1, so that p_t(v) of single tokens needs no full row of logits.
    """

    input_ids: Tensor  # [B, T] int64
    attention_mask: Tensor  # [B, T] bool; True on real tokens, which stand at the left
    loss_mask: Tensor  # [B, T] bool; True on supervised (assistant) tokens
    features: Tensor | None = None  # [B, T, M*D]
    last_hidden: Tensor | None = None  # [B, T, D]
    log_normalizer: Tensor | None = None  # [B, T] float32
    document_ids: Tensor | None = None  # [B, T] int64, 0..S-1 and -1 on padding; None where every row is one document
    sample_ids: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()

    @property
    def starts(self) -> Tensor:
        """Index in the row of the first token of every token's document, [B, T]; 0 where every row is one document."""
        if self.document_ids is None:
            return torch.zeros_like(self.input_ids)
        first = torch.ones_like(self.attention_mask)
        first[:, 1:] = self.document_ids[:, 1:] != self.document_ids[:, :-1]
        return torch.where(first, self._indices, 0).cummax(-1).values

    @property
    def positions(self) -> Tensor:
        """Token positions in their documents: [1, T] where they are the same in all rows, else (packed) [B, T].

        Padding stands at the right, so without packing a token's position is its index.
        """
        return self._indices if self.document_ids is None else self._indices - self.starts

    @property
    def _indices(self) -> Tensor:
        return torch.arange(self.input_ids.shape[1], device=self.input_ids.device).unsqueeze(0)


@dataclass(frozen=True)
class Blocks(_Movable):
    """N blocks of G draft slots a sequence, laid out by :mod:`draftlab.blocks`.

    Slot k (from 0) of anchor a drafts token a+1+k; its previous token is token a+k, and the target's hidden state at
    position a+k is its teacher. Slots without supervision hold token 0 and weight 0.
    """

    anchors: Tensor  # [B, N] int64, index in the row (the position in its document is anchors - starts)
    starts: Tensor  # [B, N] int64, index of the first token of the anchor's document; 0 where a row is one document
    valid: Tensor  # [B, N] bool; False marks a filler block of a sequence with fewer than N anchors
    input_ids: Tensor  # [B, N, I] int64; the anchor's token, then mask tokens
    positions: Tensor  # [B, N, I] int64; a, a+1, … counted in the document
    previous: Tensor  # [B, N, G] int64; true previous token of each slot (teacher forcing)
    labels: Tensor  # [B, N, G] int64
    label_mask: Tensor  # [B, N, G] bool; a contiguous prefix of every block
    teacher_positions: Tensor  # [B, N, G] int64; a+k, clamped into the sequence where unsupervised
    weights: Tensor  # [B, N, G] float32; w_k on supervised slots, 0 elsewhere (method 3)


@dataclass(frozen=True)
class DraftOutput:
    """What a drafter computes for blocks in training: the states that the heads turn into logits and confidences.

    Logits are not stored: a loss asks ``drafter.draft_logits(hidden, previous)`` for as many blocks as memory allows.
    """

    hidden: Tensor  # [B, N, G, D] h_1..h_G after the drafter's final norm
    confidence_logits: Tensor | None  # [B, N, G], before the sigmoid; None without a confidence head
    exits: Mapping[int, DraftOutput] = field(default_factory=dict)  # by layers run: the same of every early exit


@dataclass(frozen=True)
class Context(_Movable):
    """What the drafter may read at a decode round: the tokens that the target has committed *and processed*.

    Row b got ``new_mask[b].sum()`` new tokens since the last round. The anchor (the last committed token) has not gone
    through the target yet, so its features are absent: the context is strictly before the anchor (case 2).
    """

    anchor: Tensor  # [B] int64, token id
    anchor_position: Tensor  # [B] int64
    new_ids: Tensor  # [B, F] int64, token ids
    new_positions: Tensor  # [B, F] int64
    new_mask: Tensor  # [B, F] bool, right-padded
    new_features: Tensor  # [B, F, M*D]
    new_last_hidden: Tensor  # [B, F, D]


@dataclass(frozen=True)
class Proposal:
    """One drafted block a row. ``draft_probs`` is exactly the law that each token was drawn from (case 25).

    A row may have fewer than G tokens, down to none; what stands behind its ``lengths`` is never verified.
    """

    tokens: Tensor  # [B, G] int64, ids of the target's vocabulary
    draft_probs: Tensor  # [B, G, W]
    draft_ids: Tensor | None  # [W] int64 target ids of the draft vocabulary; None when W = V
    confidence: Tensor | None  # [B, G] c_k in [0, 1]
    # [B, G] max_v p_d^k(v) before temperature and cuts: like a confidence, it does not know the token that was drawn
    draft_top: Tensor | None = None
    lengths: Tensor | None = None  # [B] int64 tokens that each row has; None: G
    depth: Tensor | None = None  # [B] int64 draft layers run for each row, 0: nothing was drafted; None: all layers

    def scattered(self, rows: Tensor, num_rows: int) -> Proposal:
        """These rows at ``rows`` int64 [B] of ``num_rows``; the others have no tokens."""
        num_tokens = self.tokens.shape[1]
        lengths = self.tokens.new_zeros(num_rows).index_fill(0, rows, num_tokens)
        if len(rows) == num_rows:
            return dataclasses.replace(self, lengths=lengths)

        def scatter(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.new_zeros(num_rows, *value.shape[1:]).index_copy(0, rows, value)

        values = {
            name: scatter(getattr(self, name)) for name in ("tokens", "draft_probs", "confidence", "draft_top", "depth")
        }
        return dataclasses.replace(self, lengths=lengths, **values)


@dataclass(frozen=True)
class Verdict:
    """Outcome of one verification: ``accepted`` of the proposed tokens, then ``next_token`` (corrected or bonus)."""

    accepted: Tensor  # [B] int64, 0..G, without the bonus
    next_token: Tensor  # [B] int64
    # [B, G] c*_k = 1 - TV of the two laws at each slot, given the drafted tokens before it; also behind a rejection
    expected: Tensor | None = None
