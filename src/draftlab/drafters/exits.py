"""Early exits: layers after which a block drafter can stop, each with a norm and a confidence head of its own.

    h_k^(i) = norm^(i)(x_k^(i))                             x^(i): the block's states behind draft layer i < n
    c_k^(i) = σ(w^(i)T [h_k^(i) ; W_1[x_{k-1}]] + b^(i))    LM head and sequential head are those of the whole drafter

A row stops at the first exit whose confidence in the *first* token is below a threshold. c_1^(i) reads the context and the
anchor, both committed: the depth is known before x_1 is drawn, so the block's law given all that was committed is that of
the exit taken, and stating that law in ``draft_probs`` keeps the output law exactly. A decision that read the drafted tokens,
say to draw again one layer deeper, would keep tokens of a law that is not the one they were drawn from.

A row that stops leaves nothing missing in the draft cache: keys and values of the context come from H_ctx in every layer,
never from the layer below, and a block's own are overwritten by the context of the next round. So the next block of the row
may go deeper. Without ``exits.*`` a drafter is the plain one, name by name. The module knows nothing of rounds or requests.

    drafter = DSpark(spec, block, head, num_layers=3, exits=[1, 2])
    proposal = drafter.propose(context, cache, sampling, generator, leaving_out=LeaveOut(survival=0.2))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from draftlab.drafters.layers import RMSNorm
from draftlab.heads import ConfidenceHead

PREFIX = "exits."  # of the tensors that a drafter without exits has not


@dataclass(frozen=True)
class LeaveOut:
    """What the drafting of one round may leave out; both fields depend on committed tokens only.

    Args:
        survival: a row stops at an exit that expects its first token to survive with less than this; 0: none stops.
        drafts: bool [B]; a row with False is not drafted at all. None: all are.
    """

    survival: float
    drafts: Tensor | None = None

    def rows(self, num_rows: int, device: torch.device) -> Tensor:
        """Indices int64 of the rows to draft."""
        return torch.arange(num_rows, device=device) if self.drafts is None else self.drafts.nonzero().squeeze(-1)


class Exit(nn.Module):
    """Norm and confidence head behind one draft layer."""

    def __init__(self, hidden_size: int, rms_norm_eps: float, rank: int) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size, rms_norm_eps)
        self.confidence_head = ConfidenceHead(hidden_size, rank)


def check_exits(exits: Sequence[int], num_layers: int, confidence_head: bool) -> tuple[int, ...]:
    """The exits as layer counts.

    Raises:
        ValueError: no ascending whole numbers from 1 to below ``num_layers``, or exits without confidence head.
    """
    if isinstance(exits, str) or not isinstance(exits, Sequence):
        raise ValueError(f"drafter.exits must be a list of layers, as in [1, 2], got {exits!r}")
    exits = tuple(exits)
    whole = all(isinstance(layer, int) and not isinstance(layer, bool) for layer in exits)
    if not whole or any(exits[i] >= exits[i + 1] for i in range(len(exits) - 1)):
        raise ValueError(f"drafter.exits must be whole numbers of layers in ascending order, got {list(exits)}")
    if exits and not 1 <= exits[0] <= exits[-1] < num_layers:
        raise ValueError(
            f"drafter.exits must lie in 1..{num_layers - 1}, since the drafter has {num_layers} layers (drafter.num_layers) and "
            f"behind the last one it ends anyway; got {list(exits)}"
        )
    if exits and not confidence_head:
        raise ValueError(
            f"drafter.exits={list(exits)} needs a confidence head, which says where to stop; use drafter=dspark_exits with "
            "drafter.confidence_head=true, or leave the exits out"
        )
    return exits


def plain_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the same drafter without its exits, as engines know it."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(PREFIX)}


class Depths:
    """Collects the outputs of rows that leave the stack at different depths, in the order of the rows."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.layers = torch.zeros(num_rows, dtype=torch.int64, device=device)  # draft layers run for each row
        self.going = torch.arange(num_rows, device=device)  # rows that have not left
        self.hidden: Tensor | None = None  # [B, G, D]
        self.confidence_hidden: Tensor | None = None

    def leave(self, leaving: Tensor, layer: int, hidden: Tensor, confidence_hidden: Tensor) -> None:
        """The going rows at ``leaving`` (bool) have outputs ``hidden`` and ``confidence_hidden`` [B', G, D] behind ``layer``."""
        if self.hidden is None:
            size = (len(self.layers), *hidden.shape[1:])
            self.hidden, self.confidence_hidden = hidden.new_empty(size), hidden.new_empty(size)
        rows, self.going = self.going[leaving], self.going[~leaving]
        self.layers[rows] = layer
        self.hidden[rows], self.confidence_hidden[rows] = hidden, confidence_hidden
