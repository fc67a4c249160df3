"""Packing: the conversations of a batch in dense rows of at most so many tokens, instead of one padded row each (paper 5.1).

    padded [S, L]    aaaa….    packed [B, T]    aaaabbcc     document_ids  00001122
                     bb……                       ddddd…                     33333-1-1
                     cc……
                     ddddd…

Packing is a layout and nothing else: the same conversations make a step, anchors are drawn for each as before, and nothing crosses
a document's ends (:mod:`draftlab.blocks`), so loss and gradients are those of the padded batch but for rounding. What is saved is
the padding: tokens behind the end of a shorter conversation, and blocks of one that has fewer anchors than the others. A target
reads documents apart, in padded rows, which is exact for every architecture. The module knows nothing of files or drafters.

    packed = pack(batch, tokens_per_row=2048)
    padded = unpack(packed)                         # document d is row d again
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftlab.types import Batch, document_places


def fill_rows(lengths: Sequence[int], tokens_per_row: int) -> list[list[int]]:
    """Documents of every row: the longest first, each into the first row that still has room, ascending within a row.

    Args:
        lengths: tokens of every document. tokens_per_row: the most that a row may hold.

    Raises:
        ValueError: a document that is longer than a row.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for document in sorted(range(len(lengths)), key=lambda d: (-lengths[d], d)):
        if lengths[document] > tokens_per_row:
            raise ValueError(
                f"a conversation of {lengths[document]} tokens does not fit into a row of data.packing={tokens_per_row}; "
                "give at least data.max_length"
            )
        row = next((i for i, free in enumerate(room) if free >= lengths[document]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(tokens_per_row)
        rows[row].append(document)
        room[row] -= lengths[document]
    return [sorted(row) for row in rows]


def pack(batch: Batch, tokens_per_row: int) -> Batch:
    """The padded batch [S, L] in rows [B, T] of at most ``tokens_per_row`` tokens, with ``document_ids``.

    Raises:
        ValueError: a document that is longer than a row.
    """
    lengths = batch.attention_mask.sum(-1).tolist()
    rows = fill_rows(lengths, tokens_per_row)
    joined = [torch.cat([torch.full((lengths[d],), d) for d in row]) for row in rows]
    return into_rows(batch, pad_sequence(joined, batch_first=True, padding_value=-1).to(batch.input_ids.device))


def into_rows(batch: Batch, document_ids: Tensor) -> Batch:
    """The padded batch [S, L] in the rows that ``document_ids`` [B, T] say."""
    places = document_places(document_ids)  # [S, L'] flat indices of the rows; L' is the longest document
    document, place = (places >= 0).nonzero(as_tuple=True)
    source = torch.zeros_like(document_ids).flatten()
    source[places[document, place]] = document * batch.input_ids.shape[1] + place
    return dataclasses.replace(
        _taken(batch, source.view_as(document_ids), document_ids >= 0), document_ids=document_ids
    )


def unpack(batch: Batch) -> Batch:
    """The documents of a packed batch [B, T] in padded rows [S, L] of their own."""
    places = document_places(batch.document_ids)
    return dataclasses.replace(_taken(batch, places.clamp_min(0), places >= 0), document_ids=None)


def padding_share(batches: Iterable[Sequence[int]], tokens_per_row: int | None = None) -> float:
    """Share of the tokens of batches, given by their documents' lengths, that is padding; in packed rows if these are given."""
    real = whole = 0
    for lengths in batches:
        rows = [[d] for d in range(len(lengths))] if tokens_per_row is None else fill_rows(lengths, tokens_per_row)
        filled = [sum(lengths[d] for d in row) for row in rows]
        real += sum(filled)
        whole += len(filled) * max(filled, default=0)
    return 1 - real / whole if whole else 0.0


def _taken(batch: Batch, source: Tensor, real: Tensor) -> Batch:
    """The batch whose token at [i, j] is the one at flat index ``source`` [i, j], and padding where not ``real`` [i, j]."""
    moved = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor) and field.name != "document_ids":
            kept = real.view(*real.shape, *(1,) * (value.dim() - 2))
            moved[field.name] = value.flatten(0, 1)[source].masked_fill(~kept, 0)
    return dataclasses.replace(batch, **moved)
