"""Callback: per-position conditional acceptance and expected accepted length on held-out data (method 1, Figure 2).

    val/conditional_acceptance_k      Σ Π_{i≤k} c*_i / Σ Π_{i<k} c*_i over held-out blocks, k = 1..G
    val/accepted_length               1 + Σ_k Π_{i≤k} c*_i, bonus token included

These are expectations under the exact accept rates with the true tokens as prefix; decoding measures the same on drafted
ones.
"""

from __future__ import annotations

import lightning as L

from draftlab.metrics import AcceptedLength, ConditionalAcceptance


class AcceptanceCallback(L.Callback):
    """Logs conditional acceptance by position and the accepted length after every validation."""

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting anew, on the module's device."""
        self.conditional = ConditionalAcceptance(pl_module.drafter.block.block_size).to(pl_module.device)
        self.length = AcceptedLength().to(pl_module.device)

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        """Add the blocks of one batch."""
        self.conditional.update(outputs.accept_rate, outputs.proposed)
        self.length.update(outputs.accept_rate, outputs.proposed)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log; a position that no block reached is NaN."""
        pl_module.log("val/accepted_length", self.length.compute().float(), prog_bar=True)
        for position, value in enumerate(self.conditional.compute().float().view(-1), start=1):
            pl_module.log(f"val/conditional_acceptance_{position}", value)
