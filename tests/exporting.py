"""What tests of export and import share: a run of an untrained drafter of any kind, adopting a folder, and what a drafter says.

run = make_run(tmp_path / "run", target_folder, "drafter=dspark", "head=gated")
again = adopt(exported, tmp_path / "again", target_folder)
assert equal(said(run), said(again))
"""

from __future__ import annotations

from pathlib import Path

import torch
from omegaconf import OmegaConf

from draftlab.blocks import lay_out
from draftlab.decode.trained import open_drafter
from draftlab.export.adopt import check_target, fit, read_foreign, with_head, write_run
from draftlab.export.facts import overrides
from draftlab.export.run import ExportSettings, export_run
from draftlab.target import load_ends
from draftlab.training.build import build
from draftlab.types import Batch
from runs import composed, write_checkpoint

SMALL = ["target.target_layer_ids=[0,1,2]", "target.name=tiny", "drafter.num_layers=2"]
STYLE = (
    "drafter.style={_target_:draftlab.drafters.LayerStyle,sandwich_norms:true,keys_as_values:true,value_norm:true,"
    "attention_scale:1.0,activation:gelu_tanh,rotary_share:0.25}"
)


def randomised(drafter, seed=0):
    """The drafter with every weight random, the head's among them, so that nothing is equal by being 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 1 + 0.3 * noise)
        for name, buffer in drafter.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(0.7)
    return drafter


def make_run(folder: Path, target_folder: Path, *words: str) -> Path:
    """A run folder as training leaves it, with random weights; a reduced vocabulary leaves ids out here and there."""
    block = [] if "drafter=eagle3" in words else ["block.block_size=3"]
    config = composed(
        "train", ["target=custom", f"target.path={target_folder}", *words[:1], *SMALL, *block, *words[1:]]
    )
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")
    drafter = randomised(build(config).drafter)
    if drafter.draft_ids is not None:
        drafter.set_draft_vocabulary(torch.arange(drafter.draft_vocab_size) * 3 + 1)
    write_checkpoint(folder / "checkpoints" / "best-10.ckpt", drafter)
    return folder


def export(run: Path, out: Path, format_name: str, **settings) -> Path:
    """Export ``run`` to ``out``."""
    return export_run(run, ExportSettings(format_name, **settings), out)


def adopt(folder: Path, run: Path, target_folder: Path, **stated) -> Path:
    """What src/adopt.py does."""
    foreign = read_foreign(folder, stated)
    target = ["target=custom", f"target.path={target_folder}", "target.name=tiny"]
    spec = build(composed("train", target), meta=True).spec
    check_target(foreign, spec)
    ends = load_ends(spec)
    foreign = with_head(foreign, ends)
    words = [*target, *overrides(foreign.facts), "run_name=imported"]
    config = composed("train", words)
    drafter = build(config).drafter
    fit(foreign, drafter)
    write_run(foreign, drafter.attach(ends), config, words, run)
    return run


def said(run: Path):
    """Draft logits and confidence logits (or None) of a run's drafter over the same random features and blocks."""
    drafter = open_drafter(run).drafter
    spec = drafter.spec
    drafter.attach(load_ends(spec))
    generator = torch.Generator().manual_seed(3)
    size = (2, 11)
    mask = torch.ones(size, dtype=torch.bool)
    ids = torch.randint(4, spec.vocab_size, size, generator=generator)
    batch = Batch(
        input_ids=ids,
        attention_mask=mask,
        loss_mask=mask,
        features=torch.randn(*size, spec.feature_size, generator=generator),
        last_hidden=torch.randn(*size, spec.hidden_size, generator=generator),
    )
    anchors = torch.tensor([[2, 5], [4, 6]])
    blocks = lay_out(batch, anchors, torch.ones_like(anchors, dtype=torch.bool), drafter.block, spec.mask_token_id)
    with torch.no_grad():
        output = drafter(batch, blocks)
        logits = drafter.draft_logits(output.hidden.flatten(0, 1), blocks.previous.flatten(0, 1))
    return logits, output.confidence_logits


def equal(one, other) -> bool:
    """Whether two drafters say the same, bit for bit."""
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(one, other, strict=True))
