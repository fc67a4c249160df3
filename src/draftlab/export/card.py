"""The model card: a README.md that says for which target a drafter is, how it was trained, what it is worth and how it is served.

Accepted lengths come from the run's own evaluation, if it is one of this very checkpoint, with intervals over prompts. No path
of this machine is written. The module knows nothing of layouts beyond their names.

    text = card(Card(facts, "deepspec", "DSpark", verifier, identity, evaluation, config))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from draftlab.export.engines import ENGINES, SPS_FILE, STS_FILE
from draftlab.export.facts import Facts
from draftlab.export.layout import Verifier
from draftlab.report.bootstrap import METHOD
from draftlab.report.run import read_run
from draftlab.report.tables import length_table, with_interval

PAPER = "https://arxiv.org/abs/2607.05147"
HERE = "./this-folder"


@dataclass(frozen=True)
class Card:
    """What a card is written from. ``lengths`` is None, with the reason, where no evaluation is of this checkpoint."""

    facts: Facts
    layout: str  # format
    architecture: str
    verifier: Verifier
    config: DictConfig
    lengths: pd.DataFrame | None = None
    no_lengths: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None
    extras: tuple[str, ...] = ()
    name: str = HERE


def read_lengths(run: Path, digest: str) -> tuple[pd.DataFrame | None, str, Mapping[str, Any]]:
    """Accepted lengths of run folder ``run``, why there are none, and the settings they were decoded with."""
    if not (run / "rounds.parquet").is_file():
        return None, "This run has not been evaluated.", {}
    evaluated = read_run(run)
    found = evaluated.settings.get("drafter", {}).get("digest")
    if found != digest:
        return None, "The run's evaluation is of another checkpoint than this one.", {}
    return length_table(evaluated.rounds), "", evaluated.settings


def card(parts: Card) -> str:
    """The card as Markdown with the hub's front matter."""
    facts = parts.facts
    sections = [
        _front_matter(parts),
        f"# {facts.family} drafter for {parts.verifier.name}\n\n"
        f"A drafter for speculative decoding ([DSpark]({PAPER}) and its relatives), trained with DraftLab. It drafts "
        f"{facts.block_size} tokens a round for **{parts.verifier.name}** and is of no use to another model. The target checks "
        "every token, so what is written does not change, only how fast.",
        _what(parts),
        "## Training\n\n" + _training(parts.config),
        "## Accepted length\n\n" + _lengths(parts),
        "## Serving\n\n" + _serving(parts),
        "## Files\n\n" + _files(parts),
        "## Licence\n\n" + _licence(parts),
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(parts: Card) -> str:
    lines = ["---", "library_name: draftlab", "tags:", "- speculative-decoding", f"- {parts.facts.family.lower()}"]
    if "/" in parts.verifier.name:
        lines.append(f"base_model: {parts.verifier.name}")
    if parts.licence:
        lines.append(f"license: {parts.licence}")
    return "\n".join([*lines, "---"])


def _what(parts: Card) -> str:
    facts = parts.facts
    head = "no sequential head" if facts.head == "none" else f"head {facts.head} of rank {facts.rank}"
    vocabulary = (
        f"{facts.draft_vocab_size:,} of {facts.vocab_size:,} tokens" if facts.reduced else "the target's, whole"
    )
    rows = [
        ("format", f"{parts.layout} (`{parts.architecture}`)"),
        ("layers", f"{facts.num_layers} of width {facts.hidden_size}, {head}"),
        ("confidence head", "yes" if facts.confidence else "no"),
        ("block", f"{facts.block_size} drafted tokens, {facts.block_layout} (`sample_from_anchor: "
                  f"{str(facts.sample_from_anchor).lower()}`)"),
        ("reads", f"outputs of target layers {', '.join(map(str, facts.target_layer_ids))}, counted from 0"),
        ("mask token", str(facts.mask_token_id)),
        ("draft vocabulary", vocabulary),
    ]  # fmt: skip
    if facts.exits:
        rows.append(("early exits", f"trained behind layers {', '.join(map(str, facts.exits))}, left out here"))
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)])


def _training(config: DictConfig) -> str:
    """Data and recipe as far as the run's configuration tells; paths are left out."""
    source = OmegaConf.select(config, "imported_from")
    if source:
        return f"Imported from a checkpoint in another format ({source}); its training is described where it was published."
    chosen = {
        "steps": "trainer.settings.max_steps",
        "epochs": "trainer.settings.max_epochs",
        "sequences a batch": "data.batch_size",
        "batches a step": "trainer.settings.accumulate_grad_batches",
        "learning rate": "trainer.optimizer.lr",
        "longest sequence": "data.max_length",
        "anchors a sequence": "block.num_anchors",
        "decay of position weights": "block.decay_gamma",
        "seed": "seed",
    }
    values = {name: _select(config, key) for name, key in chosen.items()}
    lines = [f"- {name}: {value}" for name, value in values.items() if value not in (None, -1)]
    terms = OmegaConf.to_container(config.loss.terms, resolve=False) if OmegaConf.select(config, "loss.terms") else {}
    weights = ", ".join(f"{name} {term['weight']}" for name, term in terms.items() if term and "weight" in term)
    data = _select(config, "data.path")
    named = Path(str(data).removeprefix("project:")).name if data else "not recorded"
    return "\n".join([f"- data: answers that the target wrote itself (`{named}`)", f"- loss: {weights}", *lines])


def _select(config: DictConfig, key: str) -> Any:
    try:
        return OmegaConf.select(config, key)
    except Exception:
        return None


def _lengths(parts: Card) -> str:
    if parts.lengths is None:
        return parts.no_lengths
    rows = ["| T | prompts | | accepted length (with bonus) | accepted (without) |", "|---|---|---|---|---|"]
    for _, row in parts.lengths[~parts.lengths["repeats"]].iterrows():
        cells = (with_interval(row, "accepted_length"), with_interval(row, "accepted"))
        rows.append(f"| {row['temperature']:g} | {row['prompts']} | {row['label']} | {cells[0]} | {cells[1]} |")
    mode = "thinking" if parts.settings.get("thinking") else "non-thinking"
    tokens, prompts = parts.settings.get("max_new_tokens"), ", ".join(parts.settings.get("benchmarks", []))
    return "\n".join(rows) + f"\n\n{METHOD}. Prompts: {prompts}; {mode} mode, at most {tokens} new tokens."


def _serving(parts: Card) -> str:
    lines = []
    for engine in ENGINES.values():
        objections = engine.objections(parts.facts, parts.layout)
        if objections:
            lines.append(f"**{engine.name}** does not run it: {'; '.join(objections)}.")
            continue
        commands = engine.commands(parts.facts, parts.name, parts.verifier.name, parts.extras)
        lines.append(f"**{engine.name}**\n\n```bash\n" + "\n".join(commands) + "\n```")
    note = (
        "An engine that takes the other block layout (anchor-first against 1+N) loads this drafter all the same and then accepts "
        "hardly anything; an accepted length of about 1 is the sign of it."
    )
    return "\n\n".join([*lines, note])


def _files(parts: Card) -> str:
    meaning = {
        "config.json, model.safetensors": "the drafter; embedding and LM head are the target's and are shared with it",
        STS_FILE: "temperatures of the confidences, by Sequential Temperature Scaling, as SGLang reads them",
        SPS_FILE: "engine steps a second by tokens in a pass, measured where the drafter was trained; measure your own",
        "draft.gguf": "the drafter for llama.cpp",
        "tokenizer*": "of the target",
        "draftlab.json": "what this folder was made from",
    }
    optional = {STS_FILE, SPS_FILE, "draft.gguf"} - set(parts.extras)
    return "\n".join(f"- `{name}`: {text}" for name, text in meaning.items() if name not in optional)


def _licence(parts: Card) -> str:
    own = (
        f"The drafter: {parts.licence}."
        if parts.licence
        else "No licence was chosen for the drafter yet (`licence=…`)."
    )
    return f"{own} It was trained on what {parts.verifier.name} computes and writes, whose own licence applies to that model."
