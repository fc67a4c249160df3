"""A uniform sample of held-out blocks, as a torchmetric with states of fixed size: for what no sum of fixed size can tell.

    every block gets a random key; the ``size`` blocks with the smallest keys are the sample, of one rank or of several

Temperatures that are fitted one after the other need the blocks themselves, since the fit of a position depends on those before
it. Nothing here knows drafters or temperatures.

    metric = BlockSample(block_size=7, size=4096)
    metric.update(confidence, accept_rate, proposed, generator)       # [..., G] each
    confidence, accept_rate, proposed = metric.compute()              # [n, G] each, n <= size
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class BlockSample(Metric):
    """At most ``size`` blocks of ``block_size`` slots, each kept whole.

    Raises:
        ValueError: a size below 1.
    """

    full_state_update = False

    def __init__(self, block_size: int, size: int) -> None:
        super().__init__()
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"the sample needs at least 1 block and a whole number of them, got {size!r}")
        self.block_size, self.size = block_size, size
        self.add_state("keys", torch.full((size,), torch.inf, dtype=torch.float64), dist_reduce_fx="cat")
        self.add_state("slots", torch.zeros(size, 3, block_size, dtype=torch.float32), dist_reduce_fx="cat")

    def update(self, confidence: Tensor, accept_rate: Tensor, proposed: Tensor, generator: torch.Generator) -> None:
        """Add blocks [..., G]; those without a proposed slot are left out. ``generator`` (CPU) draws the keys."""
        slots = torch.stack([values.float() for values in (confidence, accept_rate, proposed)], dim=-2)
        slots = slots.reshape(-1, 3, self.block_size)
        keys = torch.rand(len(slots), generator=generator, dtype=torch.float64).to(slots.device)
        filled = slots[:, 2].any(-1)
        self.keys, self.slots = self._smallest(
            torch.cat([self.keys, keys[filled]]), torch.cat([self.slots, slots[filled]])
        )

    def compute(self) -> tuple[Tensor, Tensor, Tensor]:
        """Confidence and accept rate [n, G] float32, and proposed [n, G] bool."""
        keys, slots = self._smallest(self.keys.flatten(), self.slots.reshape(-1, 3, self.block_size))
        confidence, accept_rate, proposed = slots[keys.isfinite()].unbind(1)
        return confidence, accept_rate, proposed.bool()

    def _smallest(self, keys: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        kept = keys.topk(self.size, largest=False)
        return kept.values, slots[kept.indices]
