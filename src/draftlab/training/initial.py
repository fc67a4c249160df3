"""Starting from a drafter that is trained already (``init_from=``): fine-tuning it, for its own target or a changed one.

    inherit(cfg, overrides)                  drafter, head, block layout and tapped layers are those of the run to start from
    start_from(drafter, "outputs/released")  its weights and draft vocabulary; optimizer, schedule and data position are new

Nothing else is taken over: loss, data and trainer are those of the command. Both refuse before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from draftlab.runs import read_config
from draftlab.training.checkpoint import best_checkpoint, load_drafter

WHOLE = ("drafter", "head")  # groups that are taken as they are
PARTS = {"block": ("block_size", "ttt_length", "sample_from_anchor"), "target": ("target_layer_ids", "mask_token_id")}


def inherit(cfg: DictConfig, given: Sequence[str]) -> None:
    """Set in ``cfg`` what a drafter like that of run ``cfg.init_from`` is made of.

    Args:
        given: the overrides of the command; one that asks for something else is refused.

    Raises:
        ValueError: no such run, a drafter of another family, or an override that contradicts the run.
    """
    theirs = _run_config(Path(cfg.init_from))
    wanted = {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in given)}
    for group in WHOLE:
        ours, found = cfg[group].get("_target_"), theirs[group].get("_target_")
        if ours != found and (group == "drafter" or group in wanted):
            raise ValueError(
                f"init_from={cfg.init_from} is a {_name(found)}, and this command trains a {_name(ours)} ({group}); give "
                f"{group}={_choice(group, found)}"
            )
        for key, value in theirs[group].items():
            _require_agreement(f"{group}.{key}", wanted, cfg[group].get(key), value, cfg.init_from)
        cfg[group] = theirs[group]
    for group, keys in PARTS.items():
        for key in keys:
            value = OmegaConf.select(theirs, f"{group}.{key}")
            if value is None or key not in cfg[group]:
                continue
            _require_agreement(f"{group}.{key}", wanted, cfg[group][key], value, cfg.init_from)
            cfg[group][key] = value


def start_from(drafter, source: str | Path) -> None:
    """Load the weights of the best checkpoint of run ``source`` into ``drafter``, and leave it in training mode.

    Raises:
        ValueError: no whole checkpoint, or one of other sizes, layout or head; only the target's name may differ.
    """
    path = best_checkpoint(source)
    load_drafter(path, drafter, any_target=True).train()
    print(f"starting from {path}")


def _run_config(source: Path) -> DictConfig:
    path = source / ".hydra" / "config.yaml"
    if not path.is_file():
        raise ValueError(
            f"init_from={source} is no run folder (there is no {path}); name one of src/train.py, or adopt a checkpoint of another "
            "trainer with src/adopt.py"
        )
    return read_config(path)


def _require_agreement(key: str, wanted: dict[str, str], ours: Any, theirs: Any, source: str) -> None:
    if key in wanted and ours != theirs:
        raise ValueError(
            f"{key}={wanted[key]} was given, but the drafter of init_from={source} has {theirs}, and its weights fit nothing else; "
            "leave it out"
        )


def _name(target: str | None) -> str:
    return str(target).rpartition(".")[2]


def _choice(group: str, target: str | None) -> str:
    """The option that makes ``target``; options are named after their classes."""
    name = _name(target)
    return name.lower() if group == "drafter" else name.removesuffix("Head").replace("No", "none").lower()
