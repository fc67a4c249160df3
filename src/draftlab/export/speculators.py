"""The speculators format (speculators_version 0.9): the draft layers nested under transformer_layer_config, no model_type.

    DSparkSpeculator    both block layouts, told by sample_from_anchor; an anchor-first DFlash goes by this name, too
    DFlashSpeculator    1+N only
    Eagle3Speculator    one wide layer of Llama's

``aux_hidden_state_layer_ids`` counts one higher than ``target_layer_ids``. llama.cpp reads the DSpark and Eagle3 forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlab.export.deepspec import head_config, head_facts
from draftlab.export.eagle import chain_facts, chain_objections, check_chain
from draftlab.export.facts import Facts
from draftlab.export.fields import Fields, layer_config, layer_facts
from draftlab.export.layout import Layout, Verifier, common_objections, stated_layout, stated_size

VERSION = "0.9.0"
NESTED = "transformer_layer_config"


def speculator_config(kind: str, architecture: str, facts: Facts, verifier: Verifier, layers: str) -> dict[str, Any]:
    """What every speculator says."""
    inner = layer_config(facts, layers)
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": facts.block_size,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "draft_vocab_size": facts.draft_vocab_size,
        "tie_word_embeddings": False,
        "target_hidden_size": facts.hidden_size,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": verifier.name, "architectures": list(verifier.architectures)},
        },
        NESTED: inner,
    }


def proposed_tokens(config: Mapping[str, Any]) -> int | None:
    """How many tokens the default proposal method drafts; None where none says."""
    said = config.get("speculators_config") or {}
    methods = [method for method in said.get("proposal_methods") or [] if isinstance(method, Mapping)]
    chosen = [method for method in methods if method.get("proposal_type") == said.get("default_proposal_method")]
    tokens = [method.get("speculative_tokens") for method in chosen + methods]
    return next((value for value in tokens if isinstance(value, int) and value > 0), None)


def inner_fields(config: Mapping[str, Any]) -> Fields:
    """The draft layers' part.

    Raises:
        ValueError: there is none.
    """
    inner = config.get(NESTED)
    if not isinstance(inner, Mapping):
        raise ValueError(
            f"config.json: the field {NESTED} is missing; a speculator keeps its draft layers' sizes there"
        )
    return Fields(inner, f"config.json ({NESTED})")


def tapped(fields: Fields, name: str) -> tuple[int, ...]:
    """The tapped layers, counted from 0."""
    layers = fields.layer_ids(name, 1)
    return fields.need(name) if layers is None else layers


class Speculator(Layout):
    """A layout that is told by ``speculators_model_type``."""

    kind: str

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether a config.json is of this kind."""
        return config.get("speculators_model_type") == self.kind


class SpeculatorBlock(Speculator):
    """What DSpark and DFlash share in this format."""

    def config(self, facts: Facts, verifier: Verifier) -> dict[str, Any]:
        """Fields of layers, block and head."""
        common = speculator_config(self.kind, self.architectures[0], facts, verifier, "qwen3")
        return common | {
            "block_size": facts.block_inputs,
            "aux_hidden_state_layer_ids": [i + 1 for i in facts.target_layer_ids],
            "mask_token_id": facts.mask_token_id,
            "sample_from_anchor": facts.sample_from_anchor,
            **self.own_config(facts),
        }

    def own_config(self, facts: Facts) -> dict[str, Any]:
        """What only this kind says."""
        return head_config(facts)

    def read_block(
        self, config: Mapping[str, Any], sample_from_anchor: bool, stated: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Block, vocabularies and taps.

        Raises:
            ValueError: the proposed tokens are not those of the block in its layout (case 17).
        """
        fields, inner = Fields(config), inner_fields(config)
        inputs = fields.whole("block_size", 1 if sample_from_anchor else 2)
        size, proposed = inputs if sample_from_anchor else inputs - 1, proposed_tokens(config)
        if proposed is not None and proposed > size:
            layout = "anchor-first" if sample_from_anchor else "1+N"
            raise ValueError(
                f"{fields.where}: speculative_tokens is {proposed}, but block_size {inputs} drafts {size} in the {layout} layout "
                f"(sample_from_anchor {str(sample_from_anchor).lower()}); one of the three is wrong"
            )
        return {
            "block_size": stated_size(size, stated, "block_size", fields.where),
            "sample_from_anchor": sample_from_anchor,
            "target_layer_ids": tapped(fields, "aux_hidden_state_layer_ids"),
            "mask_token_id": fields.whole("mask_token_id", 0),
            "draft_vocab_size": fields.whole("draft_vocab_size", default=inner.whole("vocab_size")),
        }


class SpeculatorDSpark(SpeculatorBlock):
    """``dspark``: DSpark in both layouts, and anchor-first DFlash."""

    kind, architectures, families = "dspark", ("DSparkSpeculator",), ("DSpark", "DFlash")

    def objections(self, facts: Facts) -> list[str]:
        """Other layers than Qwen3's, a 1+N DFlash (it has a kind of its own), and what no format carries."""
        found = common_objections(facts)
        if not facts.plain:
            found.append("drafter.style is not Qwen3's")
        if not facts.sample_from_anchor and facts.head == "none" and not facts.confidence:
            found.append("without head and anchor it is a DFlash")
        return found

    def facts(self, config: Mapping[str, Any], stated: Mapping[str, Any]) -> Facts:
        """Read them; the layout is a field here, and must be there.

        Raises:
            ValueError: it is not, and the user has not said it either.
        """
        fields, inner = Fields(config), inner_fields(config)
        said = stated.get("sample_from_anchor")
        anchor_first = fields.flag("sample_from_anchor") if said is None else said
        if anchor_first is None:
            raise ValueError(
                f"{fields.where}: sample_from_anchor is missing, and this format has drafters in both block layouts; give "
                "sample_from_anchor=true (anchor-first) or false (1+N)"
            )
        return Facts(**layer_facts(inner), **self.read_block(config, anchor_first, stated), **head_facts(fields))


class SpeculatorDFlash(SpeculatorBlock):
    """``dflash``: 1+N."""

    kind, architectures, families = "dflash", ("DFlashSpeculator",), ("DFlash", "DSpark")

    def objections(self, facts: Facts) -> list[str]:
        """Heads, the anchor-first layout, other layers than Qwen3's, and what no format carries."""
        found = common_objections(facts)
        if facts.head != "none" or facts.confidence:
            found.append(f"a DFlash has neither head nor confidences, this drafter has head={facts.head}")
        if facts.sample_from_anchor:
            found.append("engines run it in the 1+N layout only")
        if not facts.plain:
            found.append("drafter.style is not Qwen3's")
        return found

    def own_config(self, facts: Facts) -> dict[str, Any]:
        """Bidirectional attention inside a block; engines make it causal without this word."""
        return {"sliding_window_non_causal": True}

    def facts(self, config: Mapping[str, Any], stated: Mapping[str, Any]) -> Facts:
        """Read them."""
        fields, inner = Fields(config), inner_fields(config)
        fields.refuse_unless("projector_type", "dflash", "another head stands behind the backbone")
        anchor_first = stated_layout(fields, False, stated, "a speculator of kind dflash")
        block = self.read_block(config, anchor_first, stated)
        return Facts(**layer_facts(inner), **block, family="DFlash", head="none", rank=0, confidence=False)


class SpeculatorEagle3(Speculator):
    """``eagle3``: one wide layer of Llama's."""

    kind, architectures, families = "eagle3", ("Eagle3Speculator",), ("Eagle3",)

    def objections(self, facts: Facts) -> list[str]:
        """Per-head norms, other styles, deeper drafters."""
        found = chain_objections(facts)
        if facts.qk_norm or not facts.plain:
            found.append("its layer is Llama's, without per-head norms (drafter.qk_norm=false) and without a style")
        return found

    def config(self, facts: Facts, verifier: Verifier) -> dict[str, Any]:
        """Fields of the layer and the taps."""
        common = speculator_config(self.kind, self.architectures[0], facts, verifier, "llama")
        return common | {
            "eagle_aux_hidden_state_layer_ids": [i + 1 for i in facts.target_layer_ids],
            "num_aux_hidden_states": len(facts.target_layer_ids),
            "norm_before_residual": False,
            "norm_before_fc": False,
        }

    def facts(self, config: Mapping[str, Any], stated: Mapping[str, Any]) -> Facts:
        """Read them."""
        fields, inner = Fields(config), inner_fields(config)
        check_chain(Fields({**inner.config, **{key: config[key] for key in config if key != NESTED}}))
        merged = Fields({"vocab_size": inner.whole("vocab_size"), **config})
        common = chain_facts(merged, stated, "speculative_tokens", proposed_tokens(config))
        layers = tapped(fields, "eagle_aux_hidden_state_layer_ids")
        return Facts(**layer_facts(inner), **common, target_layer_ids=layers, qk_norm=False)
