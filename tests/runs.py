"""A run folder as training leaves it, around a tiny target, for tests of the scripts that read one."""

from __future__ import annotations

from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict

from draftlab.training.build import build
from draftlab.training.checkpoint import PREFIX, describe

ROOT = Path(__file__).resolve().parents[1]


def composed(name, overrides):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(name, overrides)


def write_checkpoint(path, drafter, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {PREFIX + name: tensor for name, tensor in drafter.state_dict().items()}
    torch.save({"state_dict": state, "draftlab": {**describe(drafter), **changes}}, path)


def tiny_run(folder, target_folder, choices=()):
    """.hydra/config.yaml and a checkpoint of an untrained drafter; ``choices`` are further overrides."""
    overrides = ["target=custom", f"target.path={target_folder}", "target.target_layer_ids=[0,1,2]"]
    overrides += ["target.name=tiny", "head.rank=4", "drafter.num_layers=1", "block.block_size=3"]
    config = composed("train", [*overrides, *choices])
    with open_dict(config):
        config.drafter.draft_vocab_size = 40
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")
    drafter = build(config).drafter
    drafter.set_draft_vocabulary(torch.arange(4, 44))
    write_checkpoint(folder / "checkpoints" / "best-10.ckpt", drafter)
    return folder
