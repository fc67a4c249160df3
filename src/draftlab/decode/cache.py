"""Key/value cache of the target whose rows advance on their own (transformers' ``Cache`` interface).

The slot of a token is its position: buffers are [B, H, L, head_dim] and token t of row b stands in slot t. Rows of
unequal accepted lengths need no padding holes, and a rejected token needs no rollback: a query at position t sees slots
<= t only, and the next round overwrites what was rejected before it can be seen. Sliding-window layers keep all slots
too; their window is a matter of the mask. Rows can be refilled in place (a new prompt starts at slot 0) and moved. The
cache knows nothing of tokens or models. Example, three new tokens for each of two rows at unequal positions:

    >>> cache = RowCache(num_rows=2)
    >>> mask = cache.place(torch.tensor([[4, 5, 6], [9, 10, 11]]))
    >>> mask.shape, mask[0, 0, 0].sum()
    (torch.Size([2, 1, 3, 12]), tensor(5))
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from draftlab.target.flat import Flat

FORCE_GQA = "TRANSFORMERS_SDPA_FORCE_GQA"  # transformers reads it at every call
GROWTH = 256  # slots; buffers grow by whole multiples, so that growing is rare


class RowCache(Cache):
    """Per-row key/value cache: call :meth:`place` or :meth:`place_prompts`, then the model with the mask they return.

    Args:
        num_rows: B, the most rows at a time; buffers are made at the first forward pass.
    """

    def __init__(self, num_rows: int):
        super().__init__(layer_class_to_replicate=partial(_RowLayer, self))
        self.num_rows = num_rows  # rows in use; buffers may hold more
        self.capacity = num_rows
        self.width = 0  # slots that the coming forward pass may see
        self.positions: Tensor | None = None  # [B, Q] slots that it writes; [1, T] of a flattened pass
        self.rows: Tensor | None = None  # [B, 1] rows that it writes, or [1, T]
        self.reads_prompts = False  # prompts see nothing but themselves

    def place(self, positions: Tensor) -> Tensor:
        """Set where the coming forward pass writes: one token of each row at ``positions`` [B, Q].

        Returns:
            Bool [B, 1, Q, K]: which of the K slots each query sees, those at or before its own position.
        """
        if len(positions) != self.num_rows:
            raise ValueError(f"positions must have {self.num_rows} rows, as the cache, got {len(positions)}")
        self.rows, self.positions = torch.arange(self.num_rows, device=positions.device).unsqueeze(-1), positions
        self.width, self.reads_prompts = int(positions.max()) + 1, False
        slots = torch.arange(self.width, device=positions.device)
        return (slots <= positions.unsqueeze(-1)).unsqueeze(1)

    def place_flat(self, flat: Flat, positions: Tensor) -> Tensor:
        """Set where a pass over rows laid end to end writes: tokens of ``flat`` at ``positions`` [T].

        Returns:
            Bool [B, 1, Q, K]: which of the K slots each query sees, as :meth:`place`; padding sees slot 0.
        """
        if len(flat.lengths) != self.num_rows:
            raise ValueError(f"the pass must have {self.num_rows} rows, as the cache, got {len(flat.lengths)}")
        self.rows, self.positions = flat.rows.unsqueeze(0), positions.unsqueeze(0)
        self.width, self.reads_prompts = int(positions.max()) + 1, False
        slots = torch.arange(self.width, device=positions.device)
        return (slots <= flat.pad(positions).unsqueeze(-1)).unsqueeze(1)

    def place_prompts(self, rows: Tensor, num_tokens: int) -> Tensor:
        """Set that the coming pass reads right-padded prompts [P, ``num_tokens``] into ``rows`` [P], from slot 0 on.

        Returns:
            Bool [P, 1, Q, Q], causal: no real token sees the padding at its right, whose slots are overwritten later.
        """
        slots = torch.arange(num_tokens, device=rows.device)
        self.rows, self.positions = rows.unsqueeze(-1), slots.expand(len(rows), -1)
        self.width, self.reads_prompts = num_tokens, True
        return (slots <= slots.unsqueeze(-1)).expand(len(rows), 1, -1, -1)

    def select(self, rows: list[int]) -> None:
        """Keep ``rows`` only, as rows 0, 1, …: row i of the result is row ``rows[i]``.

        Only rows from beyond the new size are moved (see :func:`survivors`), so that most of the cache stays in place.
        """
        moves = [(source, target) for target, source in enumerate(rows) if source != target]
        assert all(source >= len(rows) for source, _ in moves), "a moved row would be overwritten before it is read"
        for layer in self.layers:
            for source, target in moves:
                layer.keys[target].copy_(layer.keys[source])
                layer.values[target].copy_(layer.values[source])
        self.num_rows = len(rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions and mask are always given; nothing may be derived from one length of all rows."""
        return 0


def survivors(alive: list[bool]) -> list[int]:
    """Order in which to keep the rows that are ``alive``: they stay where they are, or fill a hole from the end.

    >>> survivors([True, False, True, True])
    [0, 3, 2]
    """
    size = sum(alive)
    movers = [row for row in range(size, len(alive)) if alive[row]]
    return [row if alive[row] else movers.pop() for row in range(size)]


@contextmanager
def grouped_attention(device: torch.device) -> Iterator[None]:
    """Let transformers hand SDPA keys and values once per key/value head, as long as the ``with`` block lasts.

    Given a mask it otherwise copies the cache for every query head in every layer, which at batch 16 takes as long as the
    model itself. The CPU kernel groups heads under a mask; CUDA's would fall back to a slow one, so nothing changes there.
    """
    before = os.environ.get(FORCE_GQA)
    if device.type == "cpu":
        os.environ[FORCE_GQA] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(FORCE_GQA, None)
        else:
            os.environ[FORCE_GQA] = before


class _RowLayer(CacheLayerMixin):
    """Buffers of one decoder layer; where to write is asked of the cache that owns it."""

    is_sliding = False

    def __init__(self, owner: RowCache):
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make zero buffers [B, H, 0, head_dim] (zero, since a masked NaN would still spread through 0 · NaN)."""
        self.keys = key_states.new_zeros(self.owner.capacity, key_states.shape[1], 0, key_states.shape[3])
        self.values = value_states.new_zeros(self.owner.capacity, value_states.shape[1], 0, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write [B, H, Q, head_dim] at the owner's slots; return views [B, H, K, head_dim] of what queries may read."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner = self.owner
        self._reserve(owner.width)
        self.keys.transpose(1, 2)[owner.rows, owner.positions] = key_states.transpose(1, 2)
        self.values.transpose(1, 2)[owner.rows, owner.positions] = value_states.transpose(1, 2)
        if owner.reads_prompts:
            return key_states, value_states
        return self.keys[: owner.num_rows, :, : owner.width], self.values[: owner.num_rows, :, : owner.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Slots of the coming forward pass and their offset (transformers' interface; our masks are explicit)."""
        return self.owner.width, 0

    def get_seq_length(self) -> int:
        """See :meth:`RowCache.get_seq_length`."""
        return 0

    def get_max_length(self) -> int:
        """-1: buffers grow."""
        return -1

    def _reserve(self, width: int) -> None:
        missing = width - self.keys.shape[2]
        if missing > 0:
            missing = -(-missing // GROWTH) * GROWTH
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, missing))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, missing))
