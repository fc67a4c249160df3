"""Forward passes over the tokens of many rows laid end to end, so that no row is padded to the longest.

    ids [1, T] = row 0's tokens, then row 1's, …        projections, MLPs and the LM head see T tokens and nothing else
    attention of a token                                its own row's keys and values in the cache, up to its position

Where rows stand in one cache, attention alone runs row beside row: the queries are put into [B, Q] for one kernel call, or
are asked row by row where padding them would be most of the work. Both are the target's own SDPA under an explicit mask.
The module knows nothing of drafters or schedules. Example, three rows of unequal length:

    >>> flat = Flat.of([3, 1, 2])
    >>> flat.rows.tolist(), flat.columns.tolist(), flat.width
    ([0, 0, 0, 1, 2, 2], [0, 1, 2, 0, 0, 1], 3)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

NAME = "draftlab_flat"
MOST_PADDING = 3.0  # padded over real queries, beyond which rows are asked one by one


@dataclass(frozen=True)
class Flat:
    """T tokens of B rows, row after row."""

    lengths: tuple[int, ...]  # [B], each at least 1
    rows: Tensor  # [T] int64
    columns: Tensor  # [T] int64, place in the own row
    starts: Tensor  # [B] int64, index of each row's first token

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | None = None) -> Flat:
        """Rows of ``lengths`` tokens.

        Raises:
            ValueError: no row, or one without a token.
        """
        lengths = tuple(int(length) for length in lengths)
        if not lengths or min(lengths) < 1:
            raise ValueError(f"a flattened pass needs at least one token a row, got lengths {list(lengths)}")
        counts = torch.tensor(lengths, device=device)
        starts = counts.cumsum(0) - counts
        rows = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)
        columns = torch.arange(len(rows), device=device) - starts[rows]
        return cls(lengths, rows, columns, starts)

    @property
    def width(self) -> int:
        """Q, tokens of the longest row."""
        return max(self.lengths)

    @property
    def offsets(self) -> list[int]:
        """The ``starts`` as whole numbers, without asking the device."""
        return [0, *accumulate(self.lengths[:-1])]

    @property
    def is_full(self) -> bool:
        """Whether all rows are equally long, so that padding adds nothing."""
        return len(self.lengths) * self.width == len(self.rows)

    def take(self, padded: Tensor) -> Tensor:
        """The real ones [T, …] of ``padded`` [B, ≥Q, …]."""
        return padded[self.rows, self.columns]

    def pad(self, flat: Tensor) -> Tensor:
        """[B, Q, …] of ``flat`` [T, …], right-padded with zeros."""
        if self.is_full:
            return flat.unflatten(0, (len(self.lengths), self.width))
        padded = flat.new_zeros(len(self.lengths), self.width, *flat.shape[1:])
        padded[self.rows, self.columns] = flat
        return padded


_current: ContextVar[Flat] = ContextVar("draftlab_flat")


@contextmanager
def flat_attention(config, flat: Flat) -> Iterator[None]:
    """Let the model of ``config`` attend as ``flat`` lays its tokens out, as long as the ``with`` block lasts.

    Raises:
        ValueError: a model whose attention is not PyTorch's SDPA.
    """
    from transformers import AttentionInterface  # slow to import, and at hand wherever a model is

    AttentionInterface.register(NAME, _attend)
    text = config.get_text_config(decoder=True)
    before = text._attn_implementation
    if before != "sdpa":
        raise ValueError(
            f"flattened passes need a target with attn_implementation sdpa, got {before!r}; decode without a scheduler"
        )
    token = _current.set(flat)
    text._attn_implementation = NAME
    try:
        yield
    finally:
        text._attn_implementation = before
        _current.reset(token)


def _attend(module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **options):
    """Attention [1, T, H, head_dim] of queries [1, H, T, head_dim] to the cache's keys and values [B, Hkv, K, head_dim].

    ``attention_mask`` is [B, 1, Q, K]; padding in it may hold anything that is not wholly hidden.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    flat = _current.get()
    queries = query[0].transpose(0, 1)  # [T, H, head_dim]
    if len(flat.lengths) * flat.width <= MOST_PADDING * len(flat.rows):
        padded = flat.pad(queries).transpose(1, 2)
        attended = sdpa_attention_forward(module, padded, key, value, attention_mask, **options)[0]
        return (attended.flatten(0, 1) if flat.is_full else flat.take(attended)).unsqueeze(0), None
    parts = []
    for row, own in enumerate(query[0].split(flat.lengths, dim=1)):
        mask = attention_mask[row : row + 1, :, : own.shape[1]]
        alone = sdpa_attention_forward(module, own[None], key[row : row + 1], value[row : row + 1], mask, **options)
        parts.append(alone[0])
    return torch.cat(parts, dim=1), None
