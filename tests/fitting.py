"""Tiny trainings: answers, a DSpark over a tiny target, and a silent Lightning trainer.

module = tiny_module(target)
silent_trainer(tmp_path, max_steps=3).fit(module, answers_data(target, write_answers(tmp_path)))
"""

from __future__ import annotations

import json

import lightning as L
import torch

from drafting import make_head
from draftlab.blocks import BlockSpec
from draftlab.data.batches import BatchMaker
from draftlab.data.datamodule import DraftDataModule
from draftlab.drafters import MTP, DSpark, Eagle3
from draftlab.losses import Confidence, CrossEntropy, DraftLoss, SoftCrossEntropy, TotalVariation
from draftlab.training import DrafterModule, OptimizerSettings
from tiny import tiny_target, tiny_tokenizer

VOCAB = 128  # of tiny_tokenizer
EVERY_ANCHOR = 100  # more than any answer has, so that the draw leaves nothing to chance
CHAINS = {
    "eagle3": (Eagle3, BlockSpec.training_time_test(3, 0.8, EVERY_ANCHOR), SoftCrossEntropy),
    "mtp": (MTP, BlockSpec(1, EVERY_ANCHOR, decay_gamma=None), CrossEntropy),
}


def fitting_target():
    """A tiny target whose vocabulary is the tokenizer's."""
    return tiny_target(vocab_size=VOCAB)


def write_answers(folder, count=14):
    """A JSONL file of conversations whose answers have 3 to 15 letters."""
    generator = torch.Generator().manual_seed(1)
    lines = []
    for i in range(count):
        length = int(torch.randint(3, 16, (), generator=generator))
        text = "".join(chr(97 + letter) for letter in torch.randint(0, 26, (length,), generator=generator).tolist())
        messages = [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": text}]
        lines.append({"id": str(i), "domain": "chat", "messages": messages, "finish_reason": "stop"})
    path = folder / "answers.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answers_data(target, path, **options):
    """The answers as a loaded datamodule, in online mode unless told otherwise."""
    options = {"batch_size": 3, "val_samples": 2, "features": "online"} | options
    data = DraftDataModule(str(path), **options).load(target.spec, tiny_tokenizer(VOCAB))
    data.compute_features(target)
    return data


def tiny_module(target, num_anchors=EVERY_ANCHOR, weights=(0.1, 0.9, 1.0), **options):
    """A module that starts from the same weights every time."""
    torch.manual_seed(5)
    block = BlockSpec(block_size=3, num_anchors=num_anchors)
    drafter = DSpark(target.spec, block, make_head("markov"), **({"num_layers": 1} | options)).attach(target.ends)
    terms = dict(zip(("ce", "tv", "confidence"), (CrossEntropy, TotalVariation, Confidence), strict=True))
    loss = DraftLoss({name: term(weight) for (name, term), weight in zip(terms.items(), weights, strict=True)})
    return DrafterModule(drafter, loss, OptimizerSettings(lr=1e-2, warmup=0.2), target=target)


def chain_module(target, name, lr=1e-2):
    """A module of one of CHAINS with its own block and loss, from the same weights every time."""
    torch.manual_seed(5)
    kind, block, term = CHAINS[name]
    drafter = kind(target.spec, block).attach(target.ends)
    return DrafterModule(drafter, DraftLoss({"term": term(1.0)}), OptimizerSettings(lr, warmup=0.2), target=target)


def named_module(target, name):
    """A module of any family: a chain, or the tiny DSpark with all losses or with that of the confidence alone."""
    weights = {"dspark": (0.1, 0.9, 1.0), "confidence alone": (0.0, 0.0, 1.0)}
    return chain_module(target, name) if name in CHAINS else tiny_module(target, weights=weights[name])


def silent_trainer(folder, callbacks=(), **options):
    """A CPU trainer that prints and logs nothing and keeps only the checkpoints of ``callbacks``."""
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": -1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "gradient_clip_val": 1.0,
        "default_root_dir": str(folder),
        "enable_checkpointing": bool(callbacks),
    }
    return L.Trainer(callbacks=list(callbacks), **(quiet | options))


class GivenBatches(L.LightningDataModule):
    """Batches of chosen training rows; ``by_rank[rank]`` lists them, and an empty one has nothing to learn."""

    def __init__(self, data, by_rank, validation=None):
        super().__init__()
        self.make = BatchMaker(data.samples, data.train_indices, None)
        self.by_rank, self.validation = by_rank, validation

    def _loader(self, by_rank):
        rows = by_rank[self.trainer.global_rank] if self.trainer.world_size > 1 else by_rank[0]
        batches = [self.make(part) for part in rows]
        order = torch.utils.data.DistributedSampler(batches, num_replicas=1, rank=0, shuffle=False)
        return torch.utils.data.DataLoader(batches, batch_size=None, sampler=order)

    def train_dataloader(self):
        return self._loader(self.by_rank)

    def val_dataloader(self):
        return [] if self.validation is None else self._loader(self.validation)


def weights_of(module):
    """Copies of the drafter's tensors."""
    return {name: tensor.detach().clone() for name, tensor in module.drafter.state_dict().items()}
