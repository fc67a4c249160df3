"""The folder of a checkpoint on disk: written whole or not at all, and read without pickles.

    draftlab.json          what the folder is an export of: written last inside a hidden folder, which is then renamed
    model.safetensors      its header repeats the block layout, so that a config.json edited later is found out (case 17)

An existing folder is left alone if it holds this very export. One that differs in what stands beside the weights only (a card
with another licence, a calibration made since) is written anew, unless somebody edited its card; any other is refused. The
module knows nothing of layouts.

    with staged(Path("outputs/demo/export/deepspec"), identity) as stage:
        if stage is not None:                                     # None: it is there already
            save_tensors(stage, tensors, stamp)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftlab.data.files import digest, first_difference, read_object, write_json
from draftlab.target.weights import weight_map

STAMP, WEIGHTS, INDEX, CONFIG = "draftlab.json", "model.safetensors", "model.safetensors.index.json", "config.json"
CARD = "README.md"
BESIDE, FILES = ("card", "extras"), "files"  # keys of a stamp that name no weights; what was written with it
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@contextmanager
def staged(out: Path, identity: Mapping[str, Any]) -> Iterator[Path | None]:
    """A hidden folder beside ``out`` to write into; it becomes ``out`` when the block ends. None: ``out`` holds this already.

    What a killed export left is cleared away first, and what ``out`` held before is removed last.

    Raises:
        ValueError: ``out`` is a file, or holds something else.
    """
    if is_written(out, identity):
        yield None
        return
    stage = out.with_name(f".{out.name}.partial")
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    try:
        yield stage
        write_json(stage / STAMP, {**identity, FILES: sorted(path.name for path in stage.iterdir())})
        replaced = out.with_name(f".{out.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        if out.is_dir():
            out.rename(replaced)  # it is empty or an export with other words beside the same weights, see is_written
        stage.rename(out)
        _keep_others(replaced, out)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


def is_written(out: Path, identity: Mapping[str, Any]) -> bool:
    """Whether ``out`` holds the export of ``identity``; False if there is nothing, or one that may be written anew.

    Raises:
        ValueError: it is a file, or holds another export, one whose card was edited, or anything else.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is to be a folder, but it is a file; give another path")
    if not out.is_dir() or not any(out.iterdir()):
        return False
    if not (out / STAMP).is_file():
        raise ValueError(f"{out} holds something that was not written by this command; give another folder")
    wanted, found = json.loads(json.dumps(dict(identity))), read_object(out / STAMP)
    found.pop(FILES, None)
    if wanted == found:
        return True
    weights = [{key: value for key, value in side.items() if key not in BESIDE} for side in (wanted, found)]
    difference = first_difference(*weights)
    if difference:
        key, ours, theirs = difference
        raise ValueError(
            f"{out} holds another drafter or other settings: {key} is {theirs!r} there and would be {ours!r} now. Give another "
            "folder, or remove it"
        )
    card = out / CARD
    if "card" in found and card.is_file() and digest(card.read_text(encoding="utf-8")) != found["card"]:
        raise ValueError(
            f"{card} was edited since it was written, and this command would write it anew; keep it elsewhere and remove it, or "
            "give another folder"
        )
    return False


def _keep_others(replaced: Path, out: Path) -> None:
    """Take along what somebody put into a folder that was written anew."""
    if not (replaced / STAMP).is_file():
        return
    ours = set(read_object(replaced / STAMP).get(FILES, [path.name for path in replaced.iterdir()])) | {STAMP}
    for path in replaced.iterdir():
        if path.name not in ours and not (out / path.name).exists():
            path.rename(out / path.name)


def save_tensors(folder: Path, tensors: Mapping[str, Tensor], stamp: Mapping[str, str]) -> None:
    """Write ``model.safetensors``; ``stamp`` goes into its header."""
    save_file(dict(tensors), folder / WEIGHTS, metadata={"format": "pt", **stamp})
    (folder / WEIGHTS).chmod(0o644)  # safetensors writes it for the owner alone


def read_tensors(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of ``model.safetensors`` or of the files that its index names, and the header's stamp.

    Raises:
        ValueError: there are none, a file is missing, damaged or outside the folder, or the weights are pickled.
    """
    index = folder / INDEX
    names = sorted(set(weight_map(index).values())) if index.is_file() else [WEIGHTS]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        pickled = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        if pickled:
            raise ValueError(
                f"{folder} has pickled weights only ({', '.join(pickled[:4])}), and loading a pickle can run any program; convert "
                f"them to {WEIGHTS} where you trust them"
            )
        raise ValueError(f"{folder}: {', '.join(missing)} is missing; expected a checkpoint with {WEIGHTS}")
    tensors: dict[str, Tensor] = {}
    stamp: dict[str, str] = {}
    for name in names:
        try:
            with safe_open(folder / name, framework="pt") as opened:
                tensors |= {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
                stamp |= opened.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{folder / name} is damaged or cut short ({error}); fetch it again") from None
    return tensors, stamp


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
        ValueError: no such folder or file, or no JSON object.
    """
    if not folder.is_dir():
        raise ValueError(
            f"checkpoint: {folder} is no folder; expected one with {CONFIG} and {WEIGHTS}, downloaded beforehand"
        )
    return read_object(folder / CONFIG)
