"""The run folder that a script is given, before anything is imported that could open it: PyTorch takes seconds.

    run = named_folder(cfg, "run", "outputs/demo")     # refuses a key that was left out
    config = read_run_config(run)                      # refuses what no training wrote, damaged YAML and programs

The module knows nothing of checkpoints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from draftlab.signatures import PACKAGE, defines

CONSTRUCTED = ("target", "block", "head", "drafter", "loss", "data")  # groups of a run that others build again


def named_folder(cfg: DictConfig, key: str, example: str, what: str = "the folder of a trained drafter") -> Path:
    """The folder that ``key`` of ``cfg`` names.

    Raises:
        ValueError: none was named; with ``example``.
    """
    if OmegaConf.is_missing(cfg, key) or cfg[key] is None:
        raise ValueError(f"{key}: name {what}, as in {key}={example}")
    return Path(cfg[key])


def read_run_config(folder: str | Path) -> DictConfig:
    """The composed configuration of run ``folder``.

    Raises:
        ValueError: no such folder, one that no training wrote, or a configuration that cannot be read or would call something
            else than parts of a drafter.
    """
    path = Path(folder) / ".hydra" / "config.yaml"
    if not Path(folder).is_dir():
        raise ValueError(f"run: expected a folder written by src/train.py, found none at {folder}; check the name")
    if not path.is_file():
        raise ValueError(f"run: {folder} has no .hydra/config.yaml, so it is not a run of src/train.py")
    config = read_config(path)
    for key, name in _calls(OmegaConf.to_container(config, resolve=False)):
        if not _is_a_part(name):
            raise ValueError(
                f"{path}: {key} is to be made by {name}, which is neither DraftLab's nor a module of your own; whoever wrote this "
                "run folder could run any program with it. If it is a part of yours, let its distribution require draftlab"
            )
    return config


def _calls(tree: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Keys and names of everything that constructing the parts of a run would call."""
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if not where and key not in CONSTRUCTED:
            continue
        path = f"{where}.{key}".lstrip(".")
        if key == "_target_":
            yield where, str(value)
        yield from _calls(value, path)


def _is_a_part(name: str) -> bool:
    """Whether a run may call ``name``: what DraftLab itself defines, or a module of the user's own, which is not installed or
    installed by something that requires DraftLab."""
    package = name.partition(".")[0]
    if package == PACKAGE:
        return defines(name)
    if not package or package in sys.stdlib_module_names:
        return False
    from importlib.metadata import packages_distributions, requires

    owners = packages_distributions().get(package, [])
    return all(any(line.startswith(PACKAGE) for line in requires(owner) or ()) for owner in owners)


def read_config(path: Path) -> DictConfig:
    """The configuration in the YAML file ``path``.

    Raises:
        ValueError: it cannot be read, or is no tree of keys.
    """
    try:
        config = OmegaConf.load(path)
    except (OSError, ValueError, YAMLError, RecursionError, OmegaConfBaseException) as error:
        raise ValueError(
            f"{path} cannot be read as YAML: {' '.join(str(error).split())}; it was damaged or edited"
        ) from None
    if not isinstance(config, DictConfig):
        raise ValueError(
            f"{path}: expected keys with values, got {type(config).__name__}; it was damaged or is another file"
        )
    return config
