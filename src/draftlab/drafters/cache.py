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
        state_size: width of the state of the target that a row keeps for its next block; 0: none is needed.
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
        state_size: int = 0,
    ) -> None:
        # Zeros, since a masked NaN would still spread through 0 · NaN.
        size = (num_layers, num_rows, num_kv_heads, max_length, head_dim)
        self.keys = torch.zeros(size, device=device, dtype=dtype)
        self.values = torch.zeros(size, device=device, dtype=dtype)
        self.states = torch.zeros(num_rows, state_size, device=device, dtype=dtype)  # of the token before the anchor
        self.lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.max_length = max_length
        self.positions: Tensor | None = None  # [B, I] slots of the current block
        self.visible: Tensor | None = None  # [B, 1, 1, K] slots that the current block sees
        self.block_rows: Tensor | None = None  # int64 [B'] rows that have a block now; None: all, in order

    @property
    def num_rows(self) -> int:
        """Rows in use."""
        return len(self.lengths)

    def resize(self, num_rows: int) -> None:
        """Use the first ``num_rows`` rows; further ones than before are empty.

        Raises:
            ValueError: more rows than the cache was started with.
        """
        if num_rows > self.keys.shape[1]:
            raise ValueError(f"the draft cache was started with {self.keys.shape[1]} rows, got {num_rows}")
        new = max(num_rows - self.num_rows, 0)
        self.lengths = torch.cat([self.lengths[:num_rows], self.lengths.new_zeros(new)])
        self.states = torch.cat([self.states[:num_rows], self.states.new_zeros(new, self.states.shape[1])])

    def select(self, rows: Tensor) -> None:
        """Keep ``rows`` int64 [B'] only, in that order; rows that stay where they are are not copied."""
        rows = torch.as_tensor(rows, dtype=torch.int64, device=self.lengths.device)
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(-1)
        for buffer in (self.keys, self.values):
            if len(moved):
                buffer[:, moved] = buffer[:, rows[moved]]
        self.lengths, self.states = self.lengths[rows], self.states[rows]

    def new_tokens(self, context: Context) -> tuple[Tensor, Tensor]:
        """Row and column indices [K] of the new tokens in ``context``, which must continue each row up to its anchor.

        A row whose new tokens begin at position 0 starts afresh: a waiting prompt took its place.

        Raises:
            ValueError: a hole, a repeated token, or features at or after the anchor (case 2).
        """
        count = context.new_mask.sum(-1)
        first = context.new_positions[:, :1].sum(-1)  # there is no column when no row has anything new
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

    def place_block(self, positions: Tensor, rows: Tensor | None = None) -> None:
        """Set the block slots [B, I] that the coming forward pass writes; it sees all slots up to its last one.

        With ``rows`` int64 [B], only these rows of the cache have a block.

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
        self.positions, self.block_rows = positions, rows
        self.visible = (slots <= positions[:, -1:])[:, None, None]

    def keep_of_block(self, kept: Tensor) -> None:
        """Go on with the blocks at ``kept`` (bool [B]) of those placed with ``rows``; what the others wrote in earlier layers
        is written anew by the context of their next round."""
        self.positions, self.visible, self.block_rows = self.positions[kept], self.visible[kept], self.block_rows[kept]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention [B, H, I, head_dim] of a block to its context and itself; keys and values [B, Hkv, I, head_dim]."""
        rows = torch.arange(self.num_rows, device=queries.device) if self.block_rows is None else self.block_rows
        self.write(layer, rows.unsqueeze(-1), self.positions, keys.transpose(1, 2), values.transpose(1, 2))
        width = self.visible.shape[-1]
        some = None if self.block_rows is None or len(rows) == self.num_rows else rows
        return self._attend(layer, queries, self.visible, width, some)

    def attend_new(
        self, layer: int, rows: Tensor, positions: Tensor, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Causal attention [1, H, K, head_dim] of K new context tokens at ``rows`` and ``positions`` [K], which it writes.

        Args:
            queries: [1, H, K, head_dim]; keys, values: [1, Hkv, K, head_dim].

        Only a drafter whose context runs through several layers needs it. Rows ask side by side, padded to the longest.
        """
        self.write(layer, rows, positions, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        count = torch.bincount(rows, minlength=self.num_rows)
        columns = torch.arange(len(rows), device=rows.device) - (count.cumsum(0) - count)[rows]  # rows come in order
        asked = queries.new_zeros(self.num_rows, queries.shape[1], int(count.max()), queries.shape[-1])
        asked[rows, :, columns] = queries[0].transpose(0, 1)
        width = int(positions.max()) + 1
        last = torch.zeros(self.num_rows, asked.shape[2], dtype=positions.dtype, device=rows.device)
        last[rows, columns] = positions
        visible = torch.arange(width, device=rows.device) <= last.unsqueeze(-1)  # padding sees slot 0 and is dropped
        attended = self._attend(layer, asked, visible.unsqueeze(1), width)
        return attended[rows, :, columns].transpose(0, 1).unsqueeze(0)

    def _attend(self, layer: int, queries: Tensor, visible: Tensor, width: int, rows: Tensor | None = None) -> Tensor:
        """Attention of ``queries`` [B, H, I, head_dim] to the first ``width`` slots, where ``visible`` allows it, of ``rows``
        (None: all, which are not copied)."""
        keys = self.keys[layer, : self.num_rows, :, :width]
        values = self.values[layer, : self.num_rows, :, :width]
        if rows is not None:
            keys, values = keys[rows], values[rows]
        return attend(queries.to(keys.dtype), keys, values, visible).to(queries.dtype)
