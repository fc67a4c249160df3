"""Conditional acceptance by position and accepted length, as torchmetrics with sum states of fixed size (method 1).

    conditional acceptance at k = Σ [1..k accepted] / Σ [1..k-1 accepted]          accepted length τ = 1 + Σ_k a_k

Both take counts of real rounds or, in training, expectations under the accept rates c*: a round then reaches position k
with weight Π_{i<k} c*_i. A position never reached is NaN with count 0, never 0.0. Nothing here knows drafters or targets.

    metric = ConditionalAcceptance(block_size=7)
    metric.update(accept_rate, label_mask)                 # [..., G], bool [..., G]
    metric.compute()                                       # [G]; torchmetrics makes a scalar of G = 1
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from draftlab.acceptance import expected_accepted_length, survival


def reach(conditional: Tensor, proposed: Tensor) -> Tensor:
    """Weight [..., G] with which a round reaches each position: all earlier ones accepted, this one proposed."""
    before = torch.cat([torch.ones_like(conditional[..., :1]), survival(conditional)[..., :-1]], dim=-1)
    return before * proposed


class ConditionalAcceptance(Metric):
    """Share of rounds that pass position k among those that reach it, [G]; NaN where none does."""

    full_state_update = False
    higher_is_better = True

    def __init__(self, block_size: int) -> None:
        super().__init__()
        self.add_state("reached", torch.zeros(block_size, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("accepted", torch.zeros(block_size, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, conditional: Tensor, proposed: Tensor) -> None:
        """Add rounds.

        Args:
            conditional: [..., G], accept rates c*_k in [0, 1], or outcomes 1.0/0.0 of real rounds.
            proposed: bool [..., G], a contiguous prefix: positions that were drafted, verified and before a stop.
        """
        weight = reach(conditional.double(), proposed).flatten(0, -2)
        self.reached += weight.sum(0)
        self.accepted += (weight * conditional.double().flatten(0, -2)).sum(0)

    def compute(self) -> Tensor:
        """[G] float64."""
        return self.accepted / self.reached  # 0/0 is NaN


class AcceptedLength(Metric):
    """Mean accepted length τ of a round, bonus token included; NaN without rounds.

    Only rounds whose G positions were all proposed count: a sequence that ends within the block would be too short by
    no fault of the drafter.
    """

    full_state_update = False
    higher_is_better = True

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("rounds", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, conditional: Tensor, proposed: Tensor) -> None:
        """Add rounds: arguments as :meth:`ConditionalAcceptance.update`."""
        whole = proposed.all(-1)
        self.total += (expected_accepted_length(conditional.double()) * whole).sum()
        self.rounds += whole.sum()

    def compute(self) -> Tensor:
        """Scalar float64."""
        return self.total / self.rounds
