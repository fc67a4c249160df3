"""DrafterModule: the LightningModule that trains any drafter against a frozen target (method 3).

One step: features of the batch (stored, or made by the target here), anchors drawn from a generator that depends on (seed,
micro-batch, rank) alone, blocks laid out, forward, loss. The backward pass starts from the plain *sum* over slots; before the
optimiser steps, gradients are divided by Σ w over all micro-batches and ranks, which makes the global mean exact under
accumulation, DDP and FSDP2. Checkpoints hold the drafter and nothing of the target. It knows nothing of files or of decoding.

    module = DrafterModule(drafter.attach(target.ends), loss, OptimizerSettings(lr=6e-4), seed=0)
    lightning.Trainer(max_steps=600).fit(module, datamodule)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torchmetrics import MeanMetric

from draftlab.acceptance import expected_accepted_length
from draftlab.blocks import draw_anchors, lay_out
from draftlab.data.packing import into_rows, unpack
from draftlab.losses import DraftLoss, LossReport
from draftlab.training.checkpoint import describe, require_same, require_world_size
from draftlab.training.optim import OptimizerSettings
from draftlab.training.sharding import own_part, shard
from draftlab.types import Batch, Blocks, DraftOutput

TRAINING, VALIDATION = 0, 1  # streams of anchor draws


@dataclass(frozen=True)
class ValidationOutput:
    """What callbacks may measure of one validation batch."""

    accept_rate: Tensor  # [B, N, G] c*_k
    proposed: Tensor  # bool [B, N, G], supervised slots
    confidence: Tensor | None  # [B, N, G] c_k
    batch_index: int
    exits: Mapping[int, ValidationOutput] = field(default_factory=dict)  # by layers run: the same of every early exit

    def depths(self) -> dict[str, ValidationOutput]:
        """The whole drafter and its exits by the beginning of their metrics' names."""
        return {"val/": self} | {f"val/exit_{depth}/": output for depth, output in self.exits.items()}


class DrafterModule(L.LightningModule):
    """Trains ``drafter`` with ``loss``.

    Args:
        drafter: attached to the target's ends. loss: checked against the drafter here.
        optimizer: AdamW and its schedule. seed: of all anchor draws.
        target: reads batches that come without features (online mode); None where features are stored.

    Raises:
        ValueError: a loss term that the drafter cannot give.
    """

    def __init__(self, drafter, loss: DraftLoss, optimizer: OptimizerSettings, seed: int = 0, target=None) -> None:
        super().__init__()
        loss.check(drafter)
        self.drafter, self.loss, self.optimizer_settings, self.seed = drafter, loss, optimizer, seed
        object.__setattr__(self, "target", target)  # not a submodule: frozen weights stay out of DDP and checkpoints
        self.micro_step = 0  # micro-batches seen by this rank; part of the checkpoint
        self._weight: Tensor | float = 0.0  # Σ w since the last optimiser step
        self._val_loss = MeanMetric()

    # Computation

    def compute(self, batch: Batch, stream: int, index: int) -> tuple[Blocks, DraftOutput, LossReport]:
        """Features, anchors, forward and loss of one batch; ``index`` names the draw within ``stream``."""
        batch = self._with_features(batch)
        generator = torch.Generator().manual_seed(self._draw_seed(stream, index))
        num_anchors = self.drafter.block.num_anchors
        anchors, valid = draw_anchors(batch.loss_mask, num_anchors, generator, batch.document_ids)
        blocks = lay_out(batch, anchors, valid, self.drafter.block, self.drafter.spec.mask_token_id)
        output = self.drafter(batch, blocks)
        return blocks, output, self.loss(self.drafter, output, blocks, batch)

    def _with_features(self, batch: Batch) -> Batch:
        if batch.features is not None:
            return batch
        if self.target is None:
            raise ValueError(
                "the batch has no target features and no target is at hand; use data.features=memory or online"
            )
        normalizer = self.drafter.draft_ids is not None
        if batch.document_ids is None:
            return self.target.read(batch, log_normalizer=normalizer)
        # Documents are read apart: exact for every architecture, whatever it makes of positions and masks.
        return into_rows(self.target.read(unpack(batch), log_normalizer=normalizer), batch.document_ids)

    def _draw_seed(self, stream: int, index: int) -> int:
        """One 63-bit seed per (seed, stream, rank, index); SplitMix64's odd constant spreads neighbours apart."""
        key = ((self.seed * 2 + stream) * 65_537 + self.global_rank) * 1_000_003 + index
        return (key * 0x9E3779B97F4A7C15) % 2**63

    def configure_model(self) -> None:
        """Shard the drafter's weights over the ranks where the strategy brings a mesh of them (trainer=fsdp)."""
        if self.device_mesh is not None:
            shard(self.drafter, self.device_mesh["data_parallel"])

    # Training

    def on_fit_start(self) -> None:
        """Bring the target to this rank's device; the drafter's ends are its own and come along."""
        if self.target is not None:
            self.target.to(self.device)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Sum of the loss over the supervised slots of one micro-batch."""
        blocks, _, report = self.compute(batch, TRAINING, self.micro_step)
        self.micro_step += 1
        self._weight = self._weight + report.weight
        self._log_step(batch, blocks, report)
        return report.numerator

    def _log_step(self, batch: Batch, blocks: Blocks, report: LossReport) -> None:
        size = len(batch.input_ids)
        for name, value in report.means().items():
            self.log(f"train/{name}", value, prog_bar=name == "loss", batch_size=size)
        whole = blocks.label_mask.all(-1)
        if whole.any():
            length = expected_accepted_length(report.accept_rate[whole]).mean()
            self.log("train/accepted_length", length, prog_bar=True, batch_size=size)
        if self.drafter.draft_ids is not None:
            self.log("train/labels_outside", report.outside.float() / report.num_slots.clamp_min(1), batch_size=size)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Turn summed gradients into those of the global mean, before they are clipped.

        Lightning has divided each micro-batch's loss by the number of micro-batches, and DDP or FSDP2 averaged over ranks.
        """
        weight = torch.as_tensor(self._weight, dtype=torch.float32, device=self.device)
        total = self.trainer.strategy.reduce(weight, reduce_op="sum")
        shrunk = self.trainer.accumulate_grad_batches * self.trainer.world_size
        factor = torch.where(total > 0, shrunk / total.clamp_min(torch.finfo(torch.float32).tiny), 0.0)
        params = (p for group in optimizer.param_groups for p in group["params"])
        gradients = [own_part(p.grad) for p in params if p.grad is not None]
        torch._foreach_mul_(gradients, factor)
        self._weight = 0.0

    # Validation

    def validation_step(self, batch: Batch, batch_idx: int) -> ValidationOutput:
        """Loss on held-out conversations with anchors that are the same at every validation."""
        blocks, output, report = self.compute(batch, VALIDATION, batch_idx)
        mean = report.numerator / report.weight.clamp_min(torch.finfo(torch.float32).tiny)
        self._val_loss.update(mean, report.weight)
        exits = {
            depth: _measurable(output.exits[depth], of_exit, blocks, batch_idx)
            for depth, of_exit in report.exits.items()
        }
        return replace(_measurable(output, report, blocks, batch_idx), exits=exits)

    def on_validation_epoch_end(self) -> None:
        """Log the loss averaged over all supervised slots; every rank takes part, also one without a slot (case 7)."""
        self.log("val/loss", self._val_loss.compute())
        self._val_loss.reset()

    # Optimiser and checkpoints

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW over the drafter, stepped once per optimiser step."""
        optimizer = self.optimizer_settings.build(self.drafter.parameters())
        schedule = self.optimizer_settings.scheduler(optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the drafter is made for, so that a wrong target or layout never loads silently."""
        checkpoint["draftlab"] = describe(self.drafter)
        checkpoint["text"] = dict(
            getattr(self.trainer.datamodule, "text_identity", {})
        )  # tokenizer, template, max_length
        checkpoint["micro_step"], checkpoint["world_size"] = self.micro_step, self.trainer.world_size

    def on_load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of another target or layout; go on with the next anchor draw."""
        require_same(self.drafter, checkpoint.get("draftlab", {}), "the checkpoint to resume")
        require_world_size(checkpoint, self.trainer.world_size)
        self.micro_step = int(checkpoint["micro_step"])
        self._weight = 0.0


def _measurable(output: DraftOutput, report: LossReport, blocks: Blocks, batch_index: int) -> ValidationOutput:
    """What callbacks may measure of one depth."""
    confidence = output.confidence_logits
    confidence = None if confidence is None else torch.sigmoid(confidence.float())
    return ValidationOutput(report.accept_rate, blocks.label_mask, confidence, batch_index)
