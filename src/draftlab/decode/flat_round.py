"""One round whose rows send prefixes of their own length to the target, in one flattened pass (methods 1 and 5).

    row b sends [x_0, x_1 … x_l_b]    ->    one pass over Σ (l_b + 1) tokens    ->    verdicts, and the target's states

The module knows nothing of requests or schedules. Example:

    result = flat_round(target, cache, (anchor, anchor_position), proposal, [7, 0, 3], (Sampling(), generator))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftlab.decode.cache import RowCache
from draftlab.decode.context import NewContext
from draftlab.decode.verify import verify_flat
from draftlab.sampling import RowDraws, Sampling
from draftlab.target.flat import Flat
from draftlab.target.frozen import TargetOutput
from draftlab.types import Proposal, Verdict


@dataclass(frozen=True)
class FlatResult:
    """What a flattened pass over T tokens gave; ``output`` is [1, T, …]."""

    verdict: Verdict
    flat: Flat
    ids: Tensor  # [T]
    positions: Tensor  # [T]
    output: TargetOutput

    def context(self) -> NewContext:
        """What the drafter has not seen yet: each row's anchor and its accepted tokens."""
        pad = self.flat.pad
        padded = TargetOutput(pad(self.output.features[0]), pad(self.output.last_hidden[0]))
        return NewContext.of(pad(self.ids), pad(self.positions), self.verdict.accepted + 1, padded)


def flat_round(
    target,
    cache: RowCache,
    anchors: tuple[Tensor, Tensor],
    proposal: Proposal,
    lengths: Sequence[int],
    draw: tuple[Sampling, torch.Generator | RowDraws | None],
) -> FlatResult:
    """Send each row's anchor and the first ``lengths`` [B] tokens of its block to ``target``, and verify them.

    Args:
        cache: holds every row's tokens before its anchor.
        anchors: token ids [B] and positions [B]. draw: transforms of the target's law, and the source of draws.
    """
    anchor, anchor_position = anchors
    flat = Flat.of([int(length) + 1 for length in lengths], anchor.device)
    ids = flat.take(torch.cat([anchor.unsqueeze(-1), proposal.tokens], dim=-1))
    positions = anchor_position[flat.rows] + flat.columns
    mask = cache.place_flat(flat, positions)
    output = target.forward(ids.unsqueeze(0), positions.unsqueeze(0), mask, cache, flat)
    logits = target.logits(output.last_hidden[0])
    return FlatResult(verify_flat(proposal, logits, flat, *draw), flat, ids, positions, output)
