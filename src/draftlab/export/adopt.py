"""Adopting a foreign checkpoint: from a folder of another trainer or engine to a run that everything here accepts.

    folder ── read_foreign ──▶ Foreign (facts, tensors) ── fit ──▶ a drafter with these weights ── write_run ──▶ run folder

Every doubt is refused by name: an unknown layout, fields that contradict each other, the target or the stamp in the weights'
header (case 17), tensors that are missing, extra or misshapen. It knows nothing of Hydra.

    foreign = read_foreign(Path("dspark_qwen3_4b_block7"), stated={})
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, open_dict
from torch import Tensor

from draftlab.export.facts import Facts
from draftlab.export.folder import CONFIG, read_config, read_tensors, staged
from draftlab.export.formats import recognise
from draftlab.export.layout import Layout
from draftlab.export.tensors import has_own_head, own_names, own_state
from draftlab.target import TargetEnds, TargetSpec
from draftlab.training.build import record
from draftlab.training.checkpoint import PREFIX, describe

CHECKPOINT = "imported.ckpt"
LAYOUTS = {"anchor-first": True, "1+N": False}  # of the stamp


@dataclass(frozen=True)
class Foreign:
    """A checkpoint as it was read: facts in our words, tensors under our names."""

    name: str
    layout: Layout
    facts: Facts
    tensors: Mapping[str, Tensor]
    digest: str


def read_foreign(folder: Path, stated: Mapping[str, Any]) -> Foreign:
    """Read and check a folder; ``stated`` is what the user says of fields that it lacks (block_size, sample_from_anchor).

    Raises:
        ValueError: no checkpoint, pickled or damaged weights, or a layout that is unknown or contradicts itself.
    """
    config = read_config(folder)
    tensors, stamp = read_tensors(folder)
    config = stamped(config, stamp, str(folder / CONFIG))
    layout = recognise(config, str(folder / CONFIG))
    facts = layout.facts(config, stated)
    named = own_names(tensors, layout)
    if facts.reduced and "d2t" not in named:
        raise ValueError(
            f"{folder}: draft_vocab_size {facts.draft_vocab_size} is below vocab_size {facts.vocab_size}, but there is no "
            "tensor d2t that says which tokens these are"
        )
    if "d2t" in named and named["d2t"].numel() != facts.draft_vocab_size:
        raise ValueError(
            f"{folder}: d2t has {named['d2t'].numel()} entries, but draft_vocab_size is {facts.draft_vocab_size}"
        )
    return Foreign(folder.resolve().name, layout, facts, named, _digest(config, tensors))


def stamped(config: Mapping[str, Any], stamp: Mapping[str, str], where: str) -> dict[str, Any]:
    """``config`` with what the header of the weights says of layout and size; a field that is gone comes back from there.

    Raises:
        ValueError: config.json says something else than the header, so one of the two was changed (case 17).
    """
    config = dict(config)
    layout = LAYOUTS.get(stamp.get("block_layout", ""))
    architectures = config.get("architectures") or [None]
    if "architecture" in stamp and architectures[0] != stamp["architecture"]:
        raise ValueError(
            f"{where}: architectures is {architectures[0]!r}, but the weights' header says {stamp['architecture']!r}; one of the "
            "two was changed, and the block layout hangs on it"
        )
    if layout is None or "block_size" not in config:
        return config
    if config.get("sample_from_anchor") is None:
        print(
            f"{where}: sample_from_anchor is missing; the weights' header says {stamp['block_layout']}, which is taken"
        )
        config["sample_from_anchor"] = layout
    elif config["sample_from_anchor"] != layout:
        raise ValueError(
            f"{where}: sample_from_anchor is {config['sample_from_anchor']!r}, but the weights' header says "
            f"{stamp['block_layout']} ({str(layout).lower()}); with the wrong one hardly anything would be accepted. Put it right"
        )
    inputs = int(stamp["block_size"]) + (not layout)
    if config["block_size"] != inputs:
        raise ValueError(
            f"{where}: block_size is {config['block_size']!r}, but the weights' header says {inputs}; put it right"
        )
    return config


def check_target(foreign: Foreign, spec: TargetSpec) -> None:
    """Refuse a target that the checkpoint was not made for, by what both say of themselves.

    Raises:
        ValueError: every field that differs.
    """
    facts = foreign.facts
    pairs = [
        ("hidden_size", facts.hidden_size, spec.hidden_size),
        ("vocab_size", facts.vocab_size, spec.vocab_size),
        ("rms_norm_eps", facts.rms_norm_eps, spec.rms_norm_eps),
        ("rope_theta", facts.rope_theta, spec.rope_theta),
        ("num_target_layers", facts.num_target_layers or spec.num_layers, spec.num_layers),
        ("final_logit_softcapping", facts.logit_softcap or spec.logit_softcap, spec.logit_softcap),
    ]
    if facts.embedding_scale != 1.0:
        pairs.append(("input_embedding_scale", facts.embedding_scale, spec.embedding_scale))
    if facts.logit_scale != 1.0:
        pairs.append(("output_multiplier", facts.logit_scale, spec.logit_scale))
    different = [
        f"{name} is {theirs}, the target's is {ours}" for name, theirs, ours in pairs if not _close(theirs, ours)
    ]
    deepest = max(facts.target_layer_ids)
    if deepest > spec.num_layers - 2:
        different.append(f"layer {deepest} is tapped, of the target's {spec.num_layers} the last one never is")
    if different:
        raise ValueError(
            f"{foreign.name} was not made for target {spec.name!r}: {'; '.join(different)}. Give the target= that it was made for"
        )


def with_head(foreign: Foreign, ends: TargetEnds) -> Foreign:
    """The same, knowing whether its LM head is the target's or a trained one.

    Raises:
        ValueError: embeddings that are not the target's.
    """
    own = has_own_head(foreign.tensors, ends)
    return dataclasses.replace(foreign, facts=dataclasses.replace(foreign.facts, own_head=own))


def fit(foreign: Foreign, drafter) -> None:
    """Load the tensors into ``drafter``, which was built from the same facts.

    Raises:
        ValueError: tensors that do not fit, each named.
    """
    drafter.load_state_dict(own_state(foreign.tensors, drafter, foreign.facts.own_head))


def write_run(foreign: Foreign, drafter, config: DictConfig, overrides: list[str], out: Path) -> None:
    """Write the run folder as a whole: composed configuration and one checkpoint.

    Raises:
        ValueError: ``out`` holds something else.
    """
    identity = {"imported_from": foreign.name, "weights": foreign.digest, **describe(drafter)}
    with open_dict(config):
        config.imported_from = f"{foreign.name}, {foreign.layout.architectures[0]}"
    with staged(out, identity) as stage:
        if stage is None:
            print(f"{out} holds this checkpoint already")
            return
        record(config, overrides, stage)
        state = {PREFIX + name: tensor for name, tensor in drafter.state_dict().items()}
        (stage / "checkpoints").mkdir()
        torch.save({"state_dict": state, "draftlab": describe(drafter)}, stage / "checkpoints" / CHECKPOINT)


def _close(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, float | int) and isinstance(ours, float | int):
        return abs(theirs - ours) <= 1e-6 * max(abs(theirs), abs(ours))
    return theirs == ours


def _digest(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    seen = hashlib.sha256(repr(sorted(config.items(), key=lambda item: item[0])).encode())
    for name in sorted(tensors):
        seen.update(name.encode())
        seen.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()[:16]
