"""Callback: ROC-AUC and ECE of the confidence head on held-out data, by position and overall (method 4).

Each held-out slot is tested as a real round would: outcomes are drawn with the exact accept rate c*, and a slot counts if
all slots before it were accepted. Confidences are *conditional* ones. Draws are seeded, so two validations differ by the
drafter alone.
"""

from __future__ import annotations

import lightning as L
import torch

from draftlab.metrics import CalibrationError, RocAuc, reach


class ConfidenceCallback(L.Callback):
    """Logs ``val/roc_auc[_k]`` and ``val/ece[_k]``; silent for a drafter without confidence head."""

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting anew, on the module's device."""
        block_size, device = pl_module.drafter.block.block_size, pl_module.device
        self.by_position = {"roc_auc": RocAuc(block_size).to(device), "ece": CalibrationError(block_size).to(device)}
        self.overall = {"roc_auc": RocAuc(1).to(device), "ece": CalibrationError(1).to(device)}

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        """Draw the outcome of every slot and add the reached ones."""
        if outputs.confidence is None:
            return
        generator = torch.Generator().manual_seed(outputs.batch_index)
        draws = torch.rand(outputs.accept_rate.shape, generator=generator).to(outputs.accept_rate.device)
        accepted = (draws < outputs.accept_rate).double()
        reached = reach(accepted, outputs.proposed)
        slots = (outputs.confidence, accepted, reached)
        for name in self.by_position:
            self.by_position[name].update(*slots)
            self.overall[name].update(*(slot.unsqueeze(-1) for slot in slots))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log; a position without both outcomes has no ROC-AUC (NaN)."""
        if not pl_module.drafter.has_confidence:
            return
        for name, metric in self.by_position.items():
            for position, value in enumerate(metric.compute().float().view(-1), start=1):
                pl_module.log(f"val/{name}_{position}", value)
            pl_module.log(f"val/{name}", self.overall[name].compute().float().squeeze())
