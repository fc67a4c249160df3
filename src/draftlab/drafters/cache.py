"""Key/value cache of a drafter: one buffer a layer, rows of unequal length side by side.

    buffers [B, Hkv, L, head_dim];  the slot of a token is its position

Only committed context is kept. A block writes its own keys and values over the slots from its anchor on, and sees
every slot before the end of the block; the context of the next round overwrites them, since it reaches up to the new
anchor. So rows need no padding holes, rejected tokens need no rollback, and nothing is copied to join context and
block. The cache knows nothing of models or tokens.

    >>> cache = DraftCache(num_layers=1, num_rows=2, num_kv_heads=1, head_dim=4, max_length=16)
    >>> cache.place_block(torch.tensor([[3, 4], [7, 8]]))
    >>> cache.visible[:, 0, 0].sum(-1)
    tensor([5, 9])
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftlab.drafters.attention import attend
from draftlab.types import Context


class DraftCache:
    """Buffers of all layers.

    Args:
        num_rows: B, rows at the start; :meth:`select` keeps some of them.
        max_length: L, positions that a row may reach, its drafted block included.
    """

    def __init__(
        self,
        num_layers: int,
        num_rows: int,
        num_kv_heads: int,
        head_dim: int,
        max_length: int,
        device=None,
        dtype: torch.dtype | None = None,
    ) -> None:
        # Zeros, since a masked NaN would still spread through 0 · NaN.
        size = (num_layers, num_rows, num_kv_heads, max_length, head_dim)
        self.keys = torch.zeros(size, device=device, dtype=dtype)
        self.values = torch.zeros(size, device=device, dtype=dtype)
        self.lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.max_length = max_length
        self.positions: Tensor | None = None  # [B, I] slots of the current block
        self.visible: Tensor | None = None  # [B, 1, 1, K] slots that the current block sees

    @property
    def num_rows(self) -> int:
        """Rows in use."""
        return len(self.lengths)

    def select(self, rows: Tensor) -> None:
        """Keep ``rows`` int64 [B'] only, in that order; rows that stay where they are are not copied."""
        rows = torch.as_tensor(rows, dtype=torch.int64, device=self.lengths.device)
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(-1)
        for buffer in (self.keys, self.values):
            if len(moved):
                buffer[:, moved] = buffer[:, rows[moved]]
        self.lengths = self.lengths[rows]

    def new_tokens(self, context: Context) -> tuple[Tensor, Tensor]:
        """Row and column indices [K] of the new tokens in ``context``, which must continue each row up to its anchor.

        A row whose new tokens begin at position 0 starts afresh: a waiting prompt took its place.

        Raises:
            ValueError: a hole, a repeated token, or features at or after the anchor (case 2).
        """
        count = context.new_mask.sum(-1)
        first = context.new_positions[:, 0]
        begins = (count == 0) | (first == 0) | (first == self.lengths)
        self.lengths = torch.where(count > 0, first + count, self.lengths)
        fits = begins & (self.lengths == context.anchor_position)
        if not bool(fits.all()):
            row = int(fits.int().argmin())
            raise ValueError(
                f"the context of row {row} must hold every position before its anchor "
                f"({int(context.anchor_position[row])}) exactly once and not the anchor itself; it now ends at "
                f"{int(self.lengths[row])}"
            )
        return context.new_mask.nonzero(as_tuple=True)

    def write(self, layer: int, rows: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write ``keys`` and ``values`` [..., Hkv, head_dim] of tokens at ``rows`` and ``positions``, both [...]."""
        self.keys[layer][rows, :, positions] = keys.to(self.keys.dtype)
        self.values[layer][rows, :, positions] = values.to(self.values.dtype)

    def place_block(self, positions: Tensor) -> None:
        """Set the block slots [B, I] that the coming forward pass writes; it sees all slots up to its last one.

        Raises:
            ValueError: a block beyond ``max_length``.
        """
        width = int(positions.max()) + 1
        if width > self.max_length:
            raise ValueError(
                f"a block reaches position {width - 1}, but the draft cache was started with max_length "
                f"{self.max_length}; start it with prompt + new tokens + block size"
            )
        slots = torch.arange(width, device=positions.device)
        self.positions = positions
        self.visible = (slots <= positions[:, -1:])[:, None, None]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention [B, H, I, head_dim] of a block to its context and itself; keys and values [B, Hkv, I, head_dim]."""
        rows = torch.arange(self.num_rows, device=queries.device).unsqueeze(-1)
        self.write(layer, rows, self.positions, keys.transpose(1, 2), values.transpose(1, 2))
        width = self.visible.shape[-1]
        kept_keys = self.keys[layer, : self.num_rows, :, :width]
        kept_values = self.values[layer, : self.num_rows, :, :width]
        return attend(queries.to(kept_keys.dtype), kept_keys, kept_values, self.visible).to(queries.dtype)
