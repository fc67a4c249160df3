"""What the target has processed since the drafter last looked: the new part of its context, row by row.

Each round hands over the anchor of the last one and the accepted tokens after it, at most G+1 a row; a row whose prompt
has just been read hands over the whole prompt. Rejected tokens never get here. The module knows nothing of drafters.

    context = NewContext.of(ids, positions, accepted + 1, target_output).at(anchor, anchor_position)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlab.types import Context


@dataclass(frozen=True)
class NewContext:
    """Tokens processed since the last proposal, right-padded; fields as in :class:`draftlab.types.Context`."""

    new_ids: Tensor  # [B, F]
    new_positions: Tensor  # [B, F]
    new_mask: Tensor  # [B, F] bool
    new_features: Tensor  # [B, F, M*D]
    new_last_hidden: Tensor  # [B, F, D]

    @classmethod
    def of(cls, ids: Tensor, positions: Tensor, lengths: Tensor, output) -> NewContext:
        """The first ``lengths`` [B] tokens of a forward pass over ``ids`` [B, F] with the target's ``output``."""
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(-1)
        return cls(ids, positions, mask, output.features, output.last_hidden)

    def at(self, anchor: Tensor, anchor_position: Tensor) -> Context:
        """The context of a round that drafts after ``anchor`` [B] at ``anchor_position`` [B]."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Context(anchor=anchor, anchor_position=anchor_position, **fields)

    def select(self, rows: Tensor) -> NewContext:
        """Keep ``rows`` int64 [B'], in that order."""
        return self._map(lambda value: value[rows])

    def placed(self, old: NewContext | None, rows: Tensor, num_rows: int) -> NewContext:
        """Put these rows at ``rows`` [B] of ``old`` (``num_rows`` rows; None: nothing yet), widening as needed."""

        def place(new: Tensor, before: Tensor | None) -> Tensor:
            width = new.shape[1] if before is None else max(new.shape[1], before.shape[1])
            merged = new.new_zeros(num_rows, width, *new.shape[2:])
            if before is not None:
                merged[:, : before.shape[1]] = before
            merged[rows] = torch.nn.functional.pad(new, (0, 0) * (new.dim() - 2) + (0, width - new.shape[1]))
            return merged

        names = [field.name for field in dataclasses.fields(self)]
        return NewContext(**{name: place(getattr(self, name), getattr(old, name, None)) for name in names})

    def _map(self, function) -> NewContext:
        return NewContext(**{field.name: function(getattr(self, field.name)) for field in dataclasses.fields(self)})
