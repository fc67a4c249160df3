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
    """Logs ``val/roc_auc[_k]`` and ``val/ece[_k]``, and those of early exits; silent for a drafter without confidence head."""

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting anew, on the module's device."""
        block_size, device = pl_module.drafter.block.block_size, pl_module.device
        kinds = {"roc_auc": RocAuc, "ece": CalibrationError}
        prefixes = ["val/", *(f"val/exit_{depth}/" for depth in pl_module.drafter.exit_layers)]
        names = {f"{prefix}{name}": kind for prefix in prefixes for name, kind in kinds.items()}
        self.by_position = {name: kind(block_size).to(device) for name, kind in names.items()}
        self.overall = {name: kind(1).to(device) for name, kind in names.items()}

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        """Draw the outcome of every slot and add the reached ones."""
        if outputs.confidence is None:
            return
        generator = torch.Generator().manual_seed(outputs.batch_index)
        draws = torch.rand(outputs.accept_rate.shape, generator=generator).to(outputs.accept_rate.device)
        for prefix, of_depth in outputs.depths().items():
            accepted = (draws < of_depth.accept_rate).double()
            slots = (of_depth.confidence, accepted, reach(accepted, of_depth.proposed))
            for name in (f"{prefix}roc_auc", f"{prefix}ece"):
                self.by_position[name].update(*slots)
                self.overall[name].update(*(slot.unsqueeze(-1) for slot in slots))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log; a position without both outcomes has no ROC-AUC (NaN)."""
        if not pl_module.drafter.has_confidence:
            return
        for name, metric in self.by_position.items():
            for position, value in enumerate(metric.compute().float().view(-1), start=1):
                pl_module.log(f"{name}_{position}", value)
            pl_module.log(name, self.overall[name].compute().float().squeeze())
