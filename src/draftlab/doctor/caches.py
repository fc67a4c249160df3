"""Caches: where they are, how large, and which of the targets in conf/target lie there.

caches()      # DraftLab's own by kind, and the hub's
targets()     # name, path, and whether the files are at hand
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from omegaconf import OmegaConf

from draftlab.doctor.finding import Finding, size_text

KINDS = {"targets": "converted targets", "wheels": "wheels put there by hand", "features": "target features"}
QUICK_START = "smollm2_135m"
CONF = Path(__file__).resolve().parents[3] / "conf" / "target"  # of a source checkout


def caches() -> list[Finding]:
    """The folders that grow, with their sizes."""
    from draftlab.target.source import cache_dir

    own, hub, models = cache_dir(), _hub_folder(), hub_models()
    parts = [f"{size_text(size)} {kind}" for name, kind in KINDS.items() if (size := folder_size(own / name))]
    note = ", ".join(parts) or "empty"
    return [
        Finding("DraftLab ($DRAFTLAB_CACHE)", size_text(folder_size(own)), f"{own}: {note}"),
        Finding(
            "Hugging Face hub ($HF_HOME)",
            size_text(sum(models.values())),
            f"{hub}: {len(models)} model{'' if len(models) == 1 else 's'}",
        ),
    ]


def targets(folder: Path = CONF) -> list[Finding]:
    """Every named target of the project, and where its files are."""
    from draftlab.target.source import WHEEL_PREFIX

    models = hub_models()
    found = []
    for file in sorted(folder.glob("*.yaml")):
        path = OmegaConf.select(OmegaConf.load(file), "target.path")
        if path is None:  # target=custom: the user's own
            continue
        if str(path).startswith(WHEEL_PREFIX):
            found.append(_wheel(file.stem, path))
        elif path in models:
            found.append(Finding(file.stem, size_text(models[path]), f"{path}, in the hub's cache"))
        else:
            found.append(Finding(file.stem, "not here", f"{path}, fetched from the hub by what needs it"))
    return found


def hub_models() -> Mapping[str, int]:
    """Bytes of every model in the hub's cache by its id."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(_hub_folder()).repos
    except CacheNotFound:
        return {}
    return {one.repo_id: one.size_on_disk for one in repositories if one.repo_type == "model" and one.size_on_disk}


def folder_size(folder: Path) -> int:
    """Bytes of all files in ``folder``, links not followed; 0 where there is none."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _hub_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _wheel(name: str, path: str) -> Finding:
    """A target that comes from a package index: converted already, or to be downloaded with pip."""
    import importlib.util

    from draftlab.target.source import WHEEL_PREFIX, is_there

    package = path.removeprefix(WHEEL_PREFIX)
    if folder := is_there(package):
        return Finding(name, size_text(folder_size(folder)), f"{path}, in {folder}")
    if importlib.util.find_spec("pip") is None:
        remedy = "python -m ensurepip, which downloads it on first use"
        return Finding(name, "not here", path, f"target={name}", remedy, needed=name == QUICK_START)
    return Finding(name, "not here", f"{path}, downloaded from the package index on first use")
