"""What the benchmark scripts share: key=value arguments, a target with a drafter, and prompts."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from draftlab.data.chat import Chat
from draftlab.data.prompts import builtin_prompts
from draftlab.target import load_tokenizer
from draftlab.target.ends import TargetEnds
from draftlab.target.products import freeze_products, learning_products
from draftlab.training import DrafterModule
from draftlab.training.build import build
from draftlab.types import Batch

CONF = Path(__file__).resolve().parents[1] / "conf"


def arguments(defaults: dict[str, Any]) -> DictConfig:
    """The key=value words of the command line over ``defaults``.

    Raises:
        ValueError: an unknown key.
    """
    cfg = OmegaConf.merge(OmegaConf.create(defaults), OmegaConf.from_cli(sys.argv[1:]))
    unknown = sorted(set(cfg) - set(defaults))
    if unknown:
        raise ValueError(f"unknown argument {', '.join(unknown)}; there are {', '.join(defaults)}")
    return cfg


def peak_gb() -> float:
    """The most memory (10^9 bytes) that this process has had resident.

    What getrusage says of a child includes its parent's at the time of its birth; Linux has the process's own.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def fresh_parts(overrides: Sequence[str] = ()):
    """The parts of a run and its optimiser's settings, composed as by src/train.py.

    Which tokens the drafter can draft does not matter for speed.
    """
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", overrides=list(overrides))
    parts = build(cfg)
    if parts.drafter.draft_ids is not None:
        parts.drafter.set_draft_vocabulary(torch.arange(parts.drafter.draft_vocab_size))
    return parts, instantiate(cfg.trainer.optimizer)


def training_module(overrides: Sequence[str], generator: torch.Generator):
    """A module that trains a fresh drafter beside random ends of a target, and its optimiser."""
    parts, settings = fresh_parts(overrides)
    spec = parts.drafter.spec
    parts.drafter.attach(TargetEnds(torch.randn(spec.vocab_size, spec.hidden_size, generator=generator) * 0.05))
    learning_products(parts.drafter)  # as accelerate does on a CPU
    return DrafterModule(parts.drafter, parts.loss, settings), settings.build(parts.drafter.parameters())


def random_batch(spec, shape: tuple[int, int], prompt: int, generator: torch.Generator) -> Batch:
    """A batch [B, T] of random tokens and features, of which the first ``prompt`` of each row are not supervised."""
    supervised = torch.zeros(shape, dtype=torch.bool)
    supervised[:, prompt:] = True
    return Batch(
        torch.randint(spec.vocab_size, shape, generator=generator),
        torch.ones(shape, dtype=torch.bool),
        supervised,
        torch.randn(*shape, spec.feature_size, generator=generator),
        torch.randn(*shape, spec.hidden_size, generator=generator),
        torch.full(shape, 20.0),
    )


def fresh_drafter(overrides: Sequence[str] = ()):
    """A freshly initialised drafter of :func:`fresh_parts`, for decoding."""
    drafter = fresh_parts(overrides)[0].drafter.eval()
    freeze_products(drafter)
    return drafter


def heldout_prompts(target, count: int, seed: int) -> list[list[int]]:
    """Token ids of ``count`` built-in held-out prompts in the target's chat format."""
    chat = Chat(load_tokenizer(target.spec), target.spec.thinking, target.eos_token_ids)
    return [chat.prompt_ids(list(prompt.messages)) for prompt in builtin_prompts(count, seed, split="heldout")]
