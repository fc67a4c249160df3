"""Exporting a run: everything is refused before a byte is written, then one folder appears as a whole.

    out = export_run(Path("outputs/demo"), ExportSettings(format="deepspec"), out=None)

It composes what its neighbours do: facts and layouts, tensors, the folder, calibration and SPS table, the card, GGUF.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from draftlab.calibration import FILE, Calibration
from draftlab.data.files import digest, write_atomically, write_json
from draftlab.decode.trained import TrainedDrafter, open_drafter
from draftlab.export.card import Card, card, read_lengths
from draftlab.export.engines import SPS_FILE, STS_FILE, require_engine
from draftlab.export.facts import Facts, facts_of
from draftlab.export.folder import CARD, save_tensors, staged
from draftlab.export.formats import able, check_format, choose
from draftlab.export.gguf import check_outtype, convert, find_converter
from draftlab.export.layout import Layout, Verifier
from draftlab.export.tensors import foreign_tensors
from draftlab.runs import read_run_config
from draftlab.scheduling import Throughput
from draftlab.target import load_ends, load_tokenizer
from draftlab.target.derive import read_config
from draftlab.target.source import WHEEL_PREFIX, fetch, resolve
from draftlab.training.checkpoint import newest_checkpoint, read_checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ENDS = ("shared", "copied")
GGUF, GGUF_FILE = "gguf", "draft.gguf"


@dataclass(frozen=True)
class ExportSettings:
    """What is written, beside the drafter itself.

    Args:
        format: deepspec, dflash, speculators, or gguf, which is one of the first two and llama.cpp's file beside it.
        dtype: of the weights.
        ends: ``shared`` leaves the target's embedding and LM head out, ``copied`` takes them along.
        engine: refuse a drafter that this one does not run; None: say so on the card.
        licence: of the drafter, in the hub's spelling.
        sps_table: an SPS table; None: the run's own, if it has one.
        converter, outtype: of GGUF.
        unfinished: export a training that has not reached its end.

    Raises:
        ValueError: a word that is none of these.
    """

    format: str
    dtype: str = "float32"
    ends: str = "shared"
    engine: str | None = None
    licence: str | None = None
    sps_table: str | None = None
    converter: str | None = None
    outtype: str = "f16"
    unfinished: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.ends not in ENDS:
            raise ValueError(f"ends must be one of {', '.join(ENDS)}, got {self.ends!r}")
        if self.format != GGUF:
            check_format(self.format)
            return
        check_outtype(self.outtype)
        find_converter(self.converter)


@dataclass(frozen=True)
class Extras:
    """What goes along with the drafter; None where the run has none."""

    calibration: Calibration | None
    throughput: Throughput | None


def export_run(run: Path, settings: ExportSettings, out: Path | None, checkpoint: str = "best") -> Path:
    """Export the drafter of run folder ``run`` and return the folder, by default ``<run>/export/<format>``.

    Raises:
        ValueError: no run, an unfinished one, a drafter that format or engine cannot carry, or another folder at ``out``.
    """
    config = read_run_config(run)
    if not settings.unfinished:
        require_finished(run, config)
    trained = open_drafter(run, checkpoint)
    drafter = trained.drafter
    drafter.attach(load_ends(drafter.spec))
    facts = facts_of(drafter)
    name, layout = pick_layout(settings.format, facts)
    for engine in filter(None, (settings.engine, "llama.cpp" if settings.format == GGUF else None)):
        require_engine(engine, facts, name)
    if facts.exits:
        print(f"left out: early exits behind layers {list(facts.exits)}; engines run every block through all layers")
    extras = read_extras(run, trained, settings.sps_table)
    lengths, reason, decoded = read_lengths(run, trained.identity["digest"])
    extra_files = _extra_files(extras, settings)
    parts = Card(
        facts, name, layout.architectures[0], verifier_of(drafter.spec), config, lengths, reason, decoded, settings.licence,
        extra_files,
    )  # fmt: skip
    text = card(parts)
    out = out or run / "export" / settings.format
    with staged(out, identity_of(trained, facts, parts, settings, text, extras)) as stage:
        if stage is None:
            print(f"{out} holds this export already")
            return out
        _write(stage, drafter, layout, parts, settings)
        write_extras(stage, extras)
        write_atomically(stage / CARD, text)
        if settings.format == GGUF:
            target = fetch(drafter.spec.path, drafter.spec.revision)
            convert(find_converter(settings.converter), stage, target, stage / GGUF_FILE, settings.outtype)
    return out


def require_finished(run: Path, config: DictConfig) -> None:
    """Refuse a run whose training has not reached its last step or epoch.

    Raises:
        ValueError: how far it is, and what to do.
    """
    content = read_checkpoint(newest_checkpoint(run))
    if "global_step" not in content:  # imported
        return
    for key, reached in (("max_steps", content["global_step"]), ("max_epochs", content["epoch"] + 1)):
        wanted = OmegaConf.select(config, f"trainer.settings.{key}")
        if wanted and wanted > reached:
            raise ValueError(
                f"{run} is an unfinished training: {reached} of {wanted} ({key}); let it go on with resume=true, or export "
                "it as it is with unfinished=true"
            )


def pick_layout(format_name: str, facts: Facts) -> tuple[str, Layout]:
    """The format that is written and its layout; GGUF is made of a format that llama.cpp's converter reads.

    Raises:
        ValueError: the format cannot carry the drafter.
    """
    if format_name != GGUF:
        return format_name, choose(format_name, facts)
    candidates = [name for name in ("deepspec", "dflash", "speculators") if name in able(facts)]
    name = candidates[0] if candidates else "deepspec"
    return name, choose(name, facts)


def read_extras(run: Path, trained: TrainedDrafter, sps_table: str | None) -> Extras:
    """Calibration of this very checkpoint and SPS table of a run; one of another checkpoint is left out, and that is said."""
    calibration = None
    if (run / FILE).is_file():
        calibration = Calibration.load(run / FILE)
        try:
            calibration.check(trained.identity)
        except ValueError as error:
            print(f"left out: {run / FILE} ({error})")
            calibration = None
        else:
            _check_length(calibration, trained.drafter.block.block_size, run / FILE)
    table = Path(sps_table) if sps_table else run / SPS_FILE
    throughput = Throughput.load(table) if sps_table or table.is_file() else None
    return Extras(calibration, throughput)


def write_extras(folder: Path, extras: Extras) -> None:
    """STS file and SPS table in exactly the keys that engines read."""
    if extras.calibration is not None:
        own = extras.calibration
        content = {
            "temperatures": list(own.temperatures),
            "dataset": own.dataset,
            "num_samples": own.num_samples,
            "ece_before": list(own.ece_before),
            "ece_after": list(own.ece_after),
        }
        write_json(folder / STS_FILE, content)
    if extras.throughput is not None:
        extras.throughput.save(folder / SPS_FILE)


def verifier_of(spec) -> Verifier:
    """The target as others may call it: its hub id, or its short name where it lies on this machine."""
    path = str(spec.path)
    local = path.startswith((WHEEL_PREFIX, ".", "/", "~")) or Path(path).expanduser().is_dir()
    architectures = tuple(read_config(resolve(path), revision=spec.revision).architectures or ())
    return Verifier(spec.name if local else path, architectures)


def identity_of(
    trained: TrainedDrafter, facts: Facts, parts: Card, settings: ExportSettings, text: str, extras: Extras
) -> Mapping[str, Any]:
    """What makes two exports the same."""
    files = [extras.calibration and list(extras.calibration.temperatures)]
    files.append(extras.throughput and extras.throughput.steps_per_second.tolist())
    return {
        "checkpoint": trained.identity["digest"],
        "target": parts.verifier.name,
        "format": settings.format,
        "architecture": parts.architecture,
        "block_layout": facts.block_layout,
        "block_size": facts.block_size,
        "dtype": settings.dtype,
        "ends": settings.ends,
        "outtype": settings.outtype if settings.format == GGUF else None,
        "card": digest(text),
        "extras": digest(files),
    }


def _check_length(calibration: Calibration, block_size: int, path: Path) -> None:
    if len(calibration.temperatures) != block_size:
        raise ValueError(
            f"{path} has {len(calibration.temperatures)} temperatures, but the drafter drafts {block_size} tokens, which "
            "engines refuse; calibrate again with src/calibrate.py"
        )


def _extra_files(extras: Extras, settings: ExportSettings) -> tuple[str, ...]:
    present = {STS_FILE: extras.calibration, SPS_FILE: extras.throughput, GGUF_FILE: settings.format == GGUF or None}
    return tuple(name for name, value in present.items() if value is not None)


def _write(stage: Path, drafter, layout: Layout, parts: Card, settings: ExportSettings) -> None:
    facts = parts.facts
    tensors = foreign_tensors(drafter, layout, DTYPES[settings.dtype], settings.ends == "copied")
    config = layout.config(facts, parts.verifier) | {"torch_dtype": settings.dtype}
    stamp = {
        "block_layout": facts.block_layout,
        "block_size": str(facts.block_size),
        "architecture": parts.architecture,
    }
    load_tokenizer(drafter.spec).save_pretrained(stage)
    save_tensors(stage, tensors, stamp)
    write_json(stage / "config.json", config)
