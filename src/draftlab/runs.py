"""The run folder that a script is given, before anything is imported that could open it: PyTorch takes seconds.

    run = named_folder(cfg, "run", "outputs/demo")     # refuses a key that was left out
    config = read_run_config(run)                      # refuses a folder that no training wrote, and damaged YAML

The module knows nothing of checkpoints.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError


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
        ValueError: no such folder, one that no training wrote, or a configuration that cannot be read.
    """
    path = Path(folder) / ".hydra" / "config.yaml"
    if not Path(folder).is_dir():
        raise ValueError(f"run: expected a folder written by src/train.py, found none at {folder}; check the name")
    if not path.is_file():
        raise ValueError(f"run: {folder} has no .hydra/config.yaml, so it is not a run of src/train.py")
    return read_config(path)


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
