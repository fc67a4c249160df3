"""Checkpoints: what they say about their drafter, which one is newest and whole, and loading without pickle's risks.

A checkpoint is Lightning's own file with one more entry, ``draftlab``: target, sizes, layer ids, block layout, head and
draft vocabulary. It is compared before a single weight is loaded, since the same tensors fit another layout and then
draft rubbish.
The module knows nothing of training or decoding.

    drafter = load_drafter(newest_checkpoint("outputs/demo"), drafter)
"""

from __future__ import annotations

import pickle
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from draftlab.drafters.layers import LayerStyle

PREFIX = "drafter."  # of the drafter's tensors in the LightningModule's state dict
# What a checkpoint means that does not name the key.
ADDED_LATER = {"confidence_input": "normed", "exits": [], "style": {}}
ANOTHER = "use another one of its run (resume=true finds the newest whole one)"
BEST = "best"  # how the name of a checkpoint begins that was chosen by validation


def describe(drafter) -> dict[str, Any]:
    """Everything that must agree for the weights of ``drafter`` to mean anything, in plain types."""
    spec, block = drafter.spec, drafter.block
    return {
        "drafter": drafter.family,
        "head": type(drafter.markov_head).__name__,
        "confidence_head": drafter.has_confidence,
        "confidence_input": getattr(drafter, "confidence_input", "normed"),
        "exits": list(drafter.exit_layers),
        "target": spec.name,
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "target_layer_ids": list(spec.target_layer_ids),
        "mask_token_id": spec.mask_token_id,
        "block_size": block.block_size,
        "sample_from_anchor": block.sample_from_anchor,
        "draft_vocab_size": drafter.draft_vocab_size,
        **_style(drafter),
    }


def _style(drafter) -> dict[str, Any]:
    """In what the draft layers are not Qwen3's, which names and shapes of tensors do not tell; nothing where they are."""
    fields = asdict(drafter.sizes.style) if hasattr(drafter, "sizes") else {}
    other = {name: value for name, value in fields.items() if value != getattr(LayerStyle, name)}
    return {"style": other} if other else {}


def require_same(drafter, found: Mapping[str, Any], what: str) -> None:
    """Compare ``found``, the description in a checkpoint, with ``drafter``.

    Raises:
        ValueError: naming every entry that differs, what was expected and what was found.
    """
    if not found:
        raise ValueError(
            f"{what} does not say which target and block layout it was trained for; it is not one of DraftLab's"
        )
    expected, found = ADDED_LATER | describe(drafter), ADDED_LATER | dict(found)
    different = [
        f"{key}: expected {expected[key]!r}, found {found.get(key)!r}"
        for key in expected
        if found.get(key) != expected[key]
    ]
    if different:
        raise ValueError(
            f"{what} was trained for something else ({'; '.join(different)}); use it with its own configuration"
        )


def require_world_size(checkpoint: Mapping[str, Any], world_size: int) -> None:
    """Refuse to go on with another number of processes than wrote ``checkpoint``; older ones do not say and were written by one.

    Raises:
        ValueError: another number.
    """
    found = checkpoint.get("world_size", 1)
    if found != world_size:
        raise ValueError(
            f"the checkpoint to resume was written by {found} process{'es' if found > 1 else ''}, this run has {world_size}: which "
            "samples are still to come in the epoch and which anchors are drawn depends on that number, so going on would repeat "
            f"some samples and leave out others; set trainer.settings.devices × num_nodes to {found}, or start anew with run_name=…"
        )


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint's contents on the CPU; tensors and plain types only.

    Raises:
        ValueError: no such file, cut short, or holding more than tensors and plain types.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"checkpoint {path}: no such file; expected a .ckpt file or a run folder with checkpoints/")
    if not is_complete(path):
        raise ValueError(f"checkpoint {path} is cut short or damaged; {ANOTHER}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))  # the rest of its text advises to load it all the same
        raise ValueError(
            f"checkpoint {path} holds more than tensors and plain types{f' ({named[1]})' if named else ''} and is not loaded, "
            "since that could run any program; use a checkpoint of DraftLab's own training"
        ) from None
    except Exception as error:  # what a damaged archive raises depends on where it is damaged
        raise ValueError(f"checkpoint {path} cannot be read ({type(error).__name__}: {error}); {ANOTHER}") from error
    if not isinstance(content, dict):
        raise ValueError(f"checkpoint {path} holds {type(content).__name__}, not a training's state; {ANOTHER}")
    return content


def is_complete(path: Path) -> bool:
    """Whether the file is a whole archive: its directory stands at the very end, and every entry's checksum holds."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError):
        return False


def newest_checkpoint(run: str | Path) -> Path:
    """The newest whole checkpoint of run folder ``run`` (or ``run`` itself if it is a file); cut ones are named and passed over.

    Raises:
        ValueError: there is none.
    """
    return _first_whole(run, key=lambda path: path.stat().st_mtime_ns)


def best_checkpoint(run: str | Path) -> Path:
    """The checkpoint with the longest accepted length in validation, else the newest whole one.

    Raises:
        ValueError: there is none.
    """
    best = _first_whole(run, key=lambda path: (path.name.startswith(BEST), path.stat().st_mtime_ns))
    if not best.name.startswith(BEST) or _was_measured(best):
        return best
    newest = newest_checkpoint(run)
    print(f"{best.name} is merely the first one: no held-out block had a whole accepted length; taking {newest.name}")
    return newest


def load_drafter(path: str | Path, drafter, any_target: bool = False):
    """Load the drafter's weights from checkpoint ``path`` into ``drafter`` and return it in evaluation mode.

    ``any_target`` lets the target have another name, as a fine-tuned one has; sizes, layers and mask token must agree.

    Raises:
        ValueError: a damaged file, or one of another target, layout, head or size.
    """
    checkpoint = read_checkpoint(path)
    found, tensors = checkpoint.get("draftlab", {}), checkpoint.get("state_dict")
    if not (isinstance(found, dict) and isinstance(tensors, dict) and all(map(torch.is_tensor, tensors.values()))):
        raise ValueError(f"checkpoint {path} holds no state_dict of tensors, so no drafter; {ANOTHER}")
    if any_target and found:
        found = {**found, "target": drafter.spec.name}
    require_same(drafter, found, f"checkpoint {path}")
    state = {k.removeprefix(PREFIX): v for k, v in tensors.items() if k.startswith(PREFIX)}
    try:
        drafter.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"checkpoint {path} does not fit the drafter of this configuration: {error}") from error
    return drafter.eval()


def _was_measured(path: Path) -> bool:
    """False if what checkpoint ``path`` was chosen by was NaN, which Lightning writes as -inf."""
    states = read_checkpoint(path).get("callbacks", {}).values()
    scores = [state.get("best_model_score") for state in states if isinstance(state, dict)]
    return all(score is None or bool(torch.isfinite(torch.as_tensor(score))) for score in scores)


def _first_whole(run: str | Path, key) -> Path:
    run = Path(run)
    if run.is_file():
        return run
    found = sorted((run / "checkpoints").glob("*.ckpt"), key=key, reverse=True)
    for path in found:
        if is_complete(path):
            return path
        print(f"checkpoint {path} is cut short or damaged; taking the one before it")
    raise ValueError(
        f"no whole checkpoint in {run / 'checkpoints'}; let its training go on (the same command, with resume=true), "
        "or name another run folder"
    )
