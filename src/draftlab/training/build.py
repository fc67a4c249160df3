"""From a composed configuration to drafter and loss, before any weights load: impossible combinations stop here.
What passed is recorded in the run folder, where evaluation finds it.

    parts = build(cfg)                     # needs no weights and no network (but target=custom reads the model's config)
    parts.drafter.attach(load_ends(parts.spec))
    record(cfg, ["head=markov"], Path("outputs/demo"))

Entry scripts share this; nothing behind it sees a config node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from torch.overrides import TorchFunctionMode

from draftlab.blocks import BlockSpec
from draftlab.data.description import DraftData
from draftlab.data.files import write_atomically
from draftlab.losses import DraftLoss
from draftlab.target.spec import TargetSpec


@dataclass(frozen=True)
class Parts:
    """What a composed experiment is made of."""

    spec: TargetSpec
    block: BlockSpec
    drafter: object
    loss: DraftLoss


def build(cfg: DictConfig, meta: bool = False) -> Parts:
    """Instantiate target spec, block, drafter and loss.

    Args:
        cfg: with the groups target, block, head, drafter and loss, and ``seed``.
        meta: make parameters without memory, to count them.

    Raises:
        ValueError: values out of range, or choices that do not go together.
    """
    spec = hydra.utils.instantiate(cfg.target)
    block = hydra.utils.instantiate(cfg.block)
    head = hydra.utils.instantiate(cfg.head)
    torch.manual_seed(cfg.seed)
    with contextlib.ExitStack() as places:
        if meta:
            places.enter_context(torch.device("meta"))
            places.enter_context(_NoValues())
        drafter = hydra.utils.instantiate(cfg.drafter)(spec=spec, block=block, head=head)
    loss = hydra.utils.instantiate(cfg.loss)
    loss.check(drafter)
    return Parts(spec, block, drafter, loss)


class _NoValues(TorchFunctionMode):
    """Draws no first values for parameters. On the meta device there are none, yet PyTorch would import its compiler (0.9 s) to
    draw them."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Called in the place of every function of PyTorch."""
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


def describe_data(node: DictConfig) -> DraftData:
    """The data choice ``node`` with its settings checked, without the datamodule for Lightning that it names; one of another
    package is made as it is.

    Raises:
        ValueError: a value outside its range.
    """
    own = str(node.get("_target_")).startswith("draftlab.")
    return hydra.utils.instantiate(
        node, **({"_target_": f"{DraftData.__module__}.{DraftData.__name__}"} if own else {})
    )


def record(cfg: DictConfig, overrides: Sequence[str], folder: Path) -> None:
    """Write ``.hydra/`` of run ``folder``. Hydra itself would do so before the first refusal, over that of a finished run."""
    write_atomically(folder / ".hydra" / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(list(overrides))))
    write_atomically(folder / ".hydra" / "config.yaml", OmegaConf.to_yaml(cfg))
