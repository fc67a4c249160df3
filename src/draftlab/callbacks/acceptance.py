"""Callback: per-position conditional acceptance and expected accepted length on held-out data (method 1, Figure 2).

    val/conditional_acceptance_k      Σ Π_{i≤k} c*_i / Σ Π_{i<k} c*_i over held-out blocks, k = 1..G
    val/accepted_length               1 + Σ_k Π_{i≤k} c*_i, bonus token included

Early exits are measured in the same way, under ``val/exit_1/…`` for the exit behind the first layer.

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
        block_size, device = pl_module.drafter.block.block_size, pl_module.device
        names = ["val/", *(f"val/exit_{depth}/" for depth in pl_module.drafter.exit_layers)]
        self.conditional = {name: ConditionalAcceptance(block_size).to(device) for name in names}
        self.length = {name: AcceptedLength().to(device) for name in names}

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        """Add the blocks of one batch."""
        for name, of_depth in outputs.depths().items():
            self.conditional[name].update(of_depth.accept_rate, of_depth.proposed)
            self.length[name].update(of_depth.accept_rate, of_depth.proposed)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log; a position that no block reached is NaN."""
        for name, length in self.length.items():
            pl_module.log(f"{name}accepted_length", length.compute().float(), prog_bar=name == "val/")
            for position, value in enumerate(self.conditional[name].compute().float().view(-1), start=1):
                pl_module.log(f"{name}conditional_acceptance_{position}", value)
