"""Callback: what Sequential Temperature Scaling would make of the confidences, on held-out data after every validation (method 4).

    half of the held-out conversations   -> temperatures T_1..T_G
    the other half                       -> val/sts/{survival,conditional}_{ece,roc_auc}_{before,after}_k

Labels are the exact accept rates c*, not draws from them: a draw has the same mean, so ROC-AUC and the bins of an ECE are the
same in expectation, but its luck would add to every ECE. A slot is reached with weight Π_{i<k} c*_i, and its prefix survives
with chance Π_{i≤k} c*_i. As in the other callbacks the prefixes are the target's own tokens; src/calibrate.py measures on drafted
ones and writes what engines read.
"""

from __future__ import annotations

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from draftlab.acceptance import survival
from draftlab.calibration.sts import FEWEST, calibrated, confidence_logits, fit_survival
from draftlab.metrics import BlockSample, CalibrationError, RocAuc, reach

STREAM = 104_729  # apart from the seeds of the confidence callback, which are the numbers of the batches


class CalibrationCallback(L.Callback):
    """Logs the figures above and ``val/sts/temperature_k``; silent for a drafter without confidence head.

    With too few blocks to fit on, what comes after the fit is NaN, and a line says how many are needed.

    Args:
        blocks: of each half, so many are kept at most (a uniform sample).

    Raises:
        ValueError: fewer than a fit needs.
    """

    def __init__(self, blocks: int = 4096) -> None:
        if not isinstance(blocks, int) or blocks < FEWEST:
            raise ValueError(
                f"callbacks.calibration.blocks must be a whole number of at least {FEWEST}, got {blocks!r}"
            )
        self.blocks = blocks

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start collecting anew, on the module's device."""
        block_size = pl_module.drafter.block.block_size
        self.halves = [BlockSample(block_size, self.blocks).to(pl_module.device) for _ in range(2)]

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        """Add the rows of one batch to the halves in turn; a row's blocks, also of a packed one, stay together."""
        if outputs.confidence is None:
            return
        rank = getattr(pl_module, "global_rank", 0)
        generator = torch.Generator().manual_seed(STREAM * (rank + 1) + outputs.batch_index)
        for half, sample in enumerate(self.halves):
            rows = (torch.arange(len(outputs.confidence)) + outputs.batch_index) % 2 == half
            rows = rows.to(outputs.confidence.device)
            sample.update(outputs.confidence[rows], outputs.accept_rate[rows], outputs.proposed[rows], generator)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Fit on one half, measure on the other, log."""
        if not pl_module.drafter.has_confidence:
            return
        fitting, testing = (_rows(sample) for sample in self.halves)
        temperatures = _fit(*fitting)
        for position, value in enumerate(temperatures.tolist(), start=1):
            pl_module.log(f"val/sts/temperature_{position}", value)
        for when, used in (("before", torch.ones_like(temperatures)), ("after", temperatures)):
            for name, values in _measures(*testing, used).items():
                pl_module.log(f"val/sts/{name}_{when}", values.nanmean())
                for position, value in enumerate(values, start=1):
                    pl_module.log(f"val/sts/{name}_{when}_{position}", value)


def _rows(sample: BlockSample) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence, accept rate and proposed of a sample, [n, G] on the CPU; torchmetrics makes a scalar of a single slot."""
    return tuple(values.view(-1, sample.block_size).cpu() for values in sample.compute())


def _fit(confidence: Tensor, accept_rate: Tensor, proposed: Tensor) -> Tensor:
    """Temperatures [G] float32; NaN, and a line, where there are too few blocks. A position of too few slots keeps 1."""
    if len(confidence) < FEWEST:
        rank_zero_info(
            f"calibration: {len(confidence)} held-out blocks to fit on, but temperatures need {FEWEST}; raise data.val_samples"
        )
        return torch.full(confidence.shape[1:], torch.nan)
    enough = proposed & (proposed.sum(0) >= FEWEST)
    logits, survived = confidence_logits(confidence.numpy()), survival(accept_rate.double()).numpy()
    return torch.from_numpy(fit_survival(logits, survived, enough.numpy())).float()


def _measures(confidence: Tensor, accept_rate: Tensor, proposed: Tensor, temperatures: Tensor) -> dict[str, Tensor]:
    """ECE and ROC-AUC [G] float32 of both readings; NaN where temperatures are."""
    gamma = len(temperatures)
    if temperatures.isnan().any():
        return {
            f"{r}_{m}": torch.full((gamma,), torch.nan) for r in ("survival", "conditional") for m in ("ece", "roc_auc")
        }
    conditional = torch.from_numpy(calibrated(confidence_logits(confidence.numpy()), temperatures.numpy()))
    rate = accept_rate.double()
    readings = {
        "survival": (survival(conditional), survival(rate), proposed.double()),
        "conditional": (conditional, rate, reach(rate, proposed)),
    }
    values = {}
    for reading, slots in readings.items():
        for name, metric in (("ece", CalibrationError(gamma)), ("roc_auc", RocAuc(gamma))):
            metric.update(*slots)
            values[f"{reading}_{name}"] = metric.compute().float().view(-1)
    return values
