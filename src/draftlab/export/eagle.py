"""The layouts of Eagle3: one wide layer over fused features of the target.

    LlamaForCausalLMEagle3   without per-head norms, tensors under ``midlayer.``: what engines run
    Qwen3Eagle3Model         with per-head norms, as DeepSpec trains it: read, and written for its own evaluation
    Gemma4Eagle3Model        the same with Gemma 4's draft layer

``eagle_aux_hidden_state_layer_ids`` counts one higher than ``target_layer_ids``: it names the input of the layer behind. A mask
token plays no part, and the length of a draft is not always written down (``block_size=`` says it then).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlab.export.deepspec import gemma_config, gemma_facts
from draftlab.export.facts import Facts
from draftlab.export.fields import Fields, layer_config, layer_facts
from draftlab.export.layout import Layout, Verifier, common_objections, stated_size

WIDE = "an Eagle3 of engines has one layer, which is wide"


def chain_objections(facts: Facts) -> list[str]:
    """What no layout of Eagle3 carries."""
    return common_objections(facts) + ([f"{WIDE}; this one has {facts.num_layers}"] if facts.num_layers != 1 else [])


def check_chain(fields: Fields) -> None:
    """Refuse variants of Eagle3 that the drafter here is not.

    Raises:
        ValueError: the field that says so.
    """
    fields.refuse_unless("num_hidden_layers", 1, WIDE)
    fields.refuse_unless("norm_before_residual", False, "the residual starts from the state before its norm")
    fields.refuse_unless("norm_before_fc", False, "features are fused without a norm")


def chain_facts(fields: Fields, stated: Mapping[str, Any], size_field: str, size: int | None) -> dict[str, Any]:
    """What all layouts of Eagle3 say alike: no head, drafted tokens, vocabularies."""
    return {
        "family": "Eagle3",
        "head": "none",
        "rank": 0,
        "confidence": False,
        "block_size": stated_size(size, stated, size_field, fields.where),
        "sample_from_anchor": True,
        "mask_token_id": None,
        "draft_vocab_size": fields.whole("draft_vocab_size", default=fields.whole("vocab_size")),
        "num_target_layers": fields.get("num_target_layers"),
    }


class LlamaChain(Layout):
    """``LlamaForCausalLMEagle3``: what vLLM, SGLang and llama.cpp run."""

    architectures = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
    families = ("Eagle3",)
    first_layer = "midlayer."

    def objections(self, facts: Facts) -> list[str]:
        """Per-head norms, other styles, deeper drafters."""
        found = chain_objections(facts)
        if facts.qk_norm:
            found.append("drafter.qk_norm is true, and this layout has no per-head norms")
        if not facts.plain:
            found.append("drafter.style is not Llama's")
        return found

    def config(self, facts: Facts, verifier: Verifier) -> dict[str, Any]:
        """Fields of Llama's layer and the tapped layers, counted as engines do."""
        return {
            "architectures": [self.architectures[0]],
            **layer_config(facts, "llama"),
            "draft_vocab_size": facts.draft_vocab_size,
            "target_hidden_size": facts.hidden_size,
            "num_target_layers": facts.num_target_layers,
            "num_aux_hidden_states": len(facts.target_layer_ids),
            "eagle_aux_hidden_state_layer_ids": [i + 1 for i in facts.target_layer_ids],
            "norm_before_residual": False,
            "ttt_length": facts.block_size,
        }

    def facts(self, config: Mapping[str, Any], stated: Mapping[str, Any]) -> Facts:
        """Read them; where the tapped layers are not named, the three of Eagle3's own rule."""
        fields = Fields(config, nested="eagle_config")
        check_chain(fields)
        common = chain_facts(fields, stated, "ttt_length", fields.get("ttt_length"))
        layers = fields.layer_ids("eagle_aux_hidden_state_layer_ids", 1) or default_layers(fields)
        return Facts(**layer_facts(fields), **common, target_layer_ids=layers, qk_norm=False)


class QwenChain(Layout):
    """``Qwen3Eagle3Model``: with per-head norms, as DeepSpec trains it."""

    architectures = ("Qwen3Eagle3Model",)
    families = ("Eagle3",)

    def objections(self, facts: Facts) -> list[str]:
        """No per-head norms, other styles, deeper drafters, a reduced vocabulary."""
        found = chain_objections(facts)
        if not facts.qk_norm:
            found.append("drafter.qk_norm is false, and this layout has per-head norms")
        if not facts.plain:
            found.append("drafter.style is not Qwen3's")
        return found + whole_vocabulary(facts)

    def config(self, facts: Facts, verifier: Verifier) -> dict[str, Any]:
        """Fields of Qwen3's layer and the Training-Time Test."""
        return {"architectures": [self.architectures[0]], **layer_config(facts, "qwen3"), **deepspec_chain(facts)}

    def facts(self, config: Mapping[str, Any], stated: Mapping[str, Any]) -> Facts:
        """Read them."""
        fields = Fields(config)
        check_chain(fields)
        common = chain_facts(fields, stated, "ttt_length", fields.get("ttt_length"))
        layers = tuple(fields.layer_ids("target_layer_ids") or fields.need("target_layer_ids"))
        return Facts(**layer_facts(fields), **common, target_layer_ids=layers)


class GemmaChain(Layout):
    """``Gemma4Eagle3Model``: the same with Gemma 4's draft layer."""

    architectures = ("Gemma4Eagle3Model",)
    families = ("Eagle3",)

    def objections(self, facts: Facts) -> list[str]:
        """Other layers than Gemma 4's, deeper drafters, a reduced vocabulary."""
        found = chain_objections(facts) + whole_vocabulary(facts)
        if not facts.gemma_ends:
            found.append("its engines scale embeddings as Gemma does, and this target does not")
        return found + ([] if facts.gemma else ["drafter.style is not Gemma 4's, or drafter.qk_norm is false"])

    def config(self, facts: Facts, verifier: Verifier) -> dict[str, Any]:
        """Fields of Gemma 4's layer and the Training-Time Test."""
        return {"architectures": [self.architectures[0]], **gemma_config(facts), **deepspec_chain(facts)}

    def facts(self, config: Mapping[str, Any], stated: Mapping[str, Any]) -> Facts:
        """Read them."""
        fields = Fields(config)
        check_chain(fields)
        common = chain_facts(fields, stated, "ttt_length", fields.get("ttt_length"))
        layers = tuple(fields.layer_ids("target_layer_ids") or fields.need("target_layer_ids"))
        return Facts(**gemma_facts(fields), **common, target_layer_ids=layers)


def deepspec_chain(facts: Facts) -> dict[str, Any]:
    """DeepSpec's own fields of an Eagle3."""
    return {
        "target_layer_ids": list(facts.target_layer_ids),
        "num_target_layers": facts.num_target_layers,
        "draft_num_hidden_layers": facts.num_layers,
        "ttt_length": facts.block_size,
    }


def whole_vocabulary(facts: Facts) -> list[str]:
    """The objection of a layout that knows no reduced draft vocabulary."""
    if not facts.reduced:
        return []
    return [f"it knows no reduced draft vocabulary (draft_vocab_size {facts.draft_vocab_size})"]


def default_layers(fields: Fields) -> tuple[int, ...]:
    """The tapped layers that engines take where none are named: inputs of layers 2, n/2 and n-3 of the target.

    Raises:
        ValueError: the checkpoint does not say how deep its target is.
    """
    depth = fields.get("num_target_layers")
    if depth is None:
        raise ValueError(
            f"{fields.where}: neither eagle_aux_hidden_state_layer_ids nor num_target_layers is there, so the tapped layers are "
            "not known; add eagle_aux_hidden_state_layer_ids, counted from 1"
        )
    return tuple(sorted({1, depth // 2 - 1, depth - 4}))
