"""The released-checkpoint layout of DeepSpec for block drafters, which vLLM, SGLang and llama.cpp's converter read.

    Qwen3DSparkModel     DSpark, and DFlash as a DSpark without head and confidences; anchor-first
    Gemma4DSparkModel    the same with Gemma 4's draft layers
    DFlashDraftModel     stand-alone DFlash (format=dflash): 1+N, fields nested under dflash_config

``block_size`` counts the inputs of a block: drafts anchor-first, one more than drafts in 1+N. The mask token and the tapped
layers stand at the top and under dflash_config, since engines differ in where they look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlab.drafters import LayerStyle
from draftlab.export.facts import Facts
from draftlab.export.fields import Fields, layer_config, layer_facts
from draftlab.export.layout import Layout, Verifier, common_objections, stated_layout

HEAD_NAMES = {"markov": "vanilla", "gated": "gated", "rnn": "rnn"}  # ours -> theirs


def head_config(facts: Facts) -> dict[str, Any]:
    """Sequential head and confidence head."""
    config: dict[str, Any] = {"markov_rank": facts.rank}
    if facts.rank:
        config["markov_head_type"] = HEAD_NAMES[facts.head]
    config["enable_confidence_head"] = facts.confidence
    if facts.confidence:
        config["confidence_head_with_markov"] = bool(facts.rank)
    return config


def head_facts(fields: Fields) -> dict[str, Any]:
    """Family, head and confidences; without any of the two a DSpark is a DFlash.

    Raises:
        ValueError: an unknown head, or confidences that read other features than here.
    """
    rank = fields.whole("markov_rank", 0, 0)
    confidence = fields.flag("enable_confidence_head", False)
    kind = fields.get("markov_head_type", "vanilla")
    ours = {theirs: name for name, theirs in HEAD_NAMES.items()}
    if rank and kind not in ours:
        raise ValueError(f"{fields.where}: markov_head_type must be one of {', '.join(ours)}, got {kind!r}")
    with_markov = fields.flag("confidence_head_with_markov", bool(rank))
    if confidence and with_markov != bool(rank):
        raise ValueError(
            f"{fields.where}: confidence_head_with_markov is {str(with_markov).lower()} with markov_rank {rank}; DraftLab's "
            "confidence head reads the previous token's features where there is a markov table, and only there"
        )
    family = "DSpark" if rank or confidence else "DFlash"
    return {"family": family, "head": ours[kind] if rank else "none", "rank": rank, "confidence": confidence}


def block_config(facts: Facts) -> dict[str, Any]:
    """Block layout, mask token and tapped layers, in both places that engines look."""
    nested = {"mask_token_id": facts.mask_token_id, "target_layer_ids": list(facts.target_layer_ids)}
    config = {
        "block_size": facts.block_inputs,
        "sample_from_anchor": facts.sample_from_anchor,
        **nested,
        "num_target_layers": facts.num_target_layers,
        "dflash_config": nested,
    }
    return config | ({"draft_vocab_size": facts.draft_vocab_size} if facts.reduced else {})


def block_facts(fields: Fields, sample_from_anchor: bool, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The same as facts."""
    inputs = fields.whole("block_size", 1 if sample_from_anchor else 2)
    size = inputs if sample_from_anchor else inputs - 1
    if stated.get("block_size") not in (None, size):
        raise ValueError(
            f"block_size={stated['block_size']} was given, but {fields.where} says block_size {inputs}, which is {size} drafted "
            "tokens in its layout; leave it out"
        )
    layers = fields.layer_ids("target_layer_ids")
    if layers is None:
        fields.need("target_layer_ids")
    vocab = fields.whole("vocab_size")
    return {
        "block_size": size,
        "sample_from_anchor": sample_from_anchor,
        "target_layer_ids": layers,
        "mask_token_id": fields.whole("mask_token_id", 0),
        "draft_vocab_size": fields.whole("draft_vocab_size", default=vocab),
        "num_target_layers": fields.get("num_target_layers"),
    }


class QwenBlock(Layout):
    """``Qwen3DSparkModel``: DSpark and DFlash, anchor-first."""

    architectures = ("Qwen3DSparkModel", "DSparkDraftModel")
    families = ("DSpark", "DFlash")

    def objections(self, facts: Facts) -> list[str]:
        """Gemma 4's layers, the 1+N layout, and what no format carries."""
        found = common_objections(facts)
        if not facts.plain:
            found.append("drafter.style is not Qwen3's")
        if not facts.sample_from_anchor:
            found.append("the released-checkpoint layout is anchor-first, and block.sample_from_anchor is false (1+N)")
        return found

    def config(self, facts: Facts, verifier: Verifier) -> dict[str, Any]:
        """Fields of Qwen3's layers, block and heads."""
        layers = layer_config(facts, "qwen3")
        return {"architectures": [self.architectures[0]], **layers, **block_config(facts), **head_config(facts)}

    def facts(self, config: Mapping[str, Any], stated: Mapping[str, Any]) -> Facts:
        """Read them."""
        fields = Fields(config)
        anchor_first = stated_layout(fields, True, stated, self.architectures[0])
        return Facts(**layer_facts(fields), **block_facts(fields, anchor_first, stated), **head_facts(fields))


class GemmaBlock(Layout):
    """``Gemma4DSparkModel``: the same with Gemma 4's draft layers, full attention in every layer."""

    architectures = ("Gemma4DSparkModel",)
    families = ("DSpark", "DFlash")

    def objections(self, facts: Facts) -> list[str]:
        """Other layers than Gemma 4's, the 1+N layout, and what no format carries."""
        found = common_objections(facts)
        if not facts.gemma:
            found.append("drafter.style is not Gemma 4's (drafter=dspark_gemma4)")
        if not facts.gemma_ends:
            found.append("its engines scale embeddings as Gemma does, and this target does not")
        if not facts.sample_from_anchor:
            found.append("the released-checkpoint layout is anchor-first, and block.sample_from_anchor is false (1+N)")
        return found

    def config(self, facts: Facts, verifier: Verifier) -> dict[str, Any]:
        """Fields of Gemma 4's layers, block and heads."""
        layers = gemma_config(facts)
        return {"architectures": [self.architectures[0]], **layers, **block_config(facts), **head_config(facts)}

    def facts(self, config: Mapping[str, Any], stated: Mapping[str, Any]) -> Facts:
        """Read them."""
        fields = Fields(config)
        anchor_first = stated_layout(fields, True, stated, self.architectures[0])
        return Facts(**gemma_facts(fields), **block_facts(fields, anchor_first, stated), **head_facts(fields))


class StandaloneDFlash(Layout):
    """``DFlashDraftModel``: DFlash on its own, always 1+N for the engines that read it."""

    architectures = ("DFlashDraftModel",)
    families = ("DFlash", "DSpark")

    def objections(self, facts: Facts) -> list[str]:
        """Heads, the anchor-first layout, a reduced vocabulary, and what no format carries."""
        found = common_objections(facts)
        if facts.head != "none" or facts.confidence:
            found.append(f"a stand-alone DFlash has neither head nor confidences, this drafter has head={facts.head}")
        if facts.sample_from_anchor:
            found.append("engines run it in the 1+N layout only, and block.sample_from_anchor is true (anchor-first)")
        if facts.reduced:
            found.append(f"it knows no reduced draft vocabulary (draft_vocab_size {facts.draft_vocab_size})")
        if not facts.plain:
            found.append("drafter.style is not Qwen3's")
        return found

    def config(self, facts: Facts, verifier: Verifier) -> dict[str, Any]:
        """Fields of Qwen3's layers and block."""
        return {"architectures": [self.architectures[0]], **layer_config(facts, "qwen3"), **block_config(facts)}

    def facts(self, config: Mapping[str, Any], stated: Mapping[str, Any]) -> Facts:
        """Read them; a DSpark under this name keeps its head."""
        fields = Fields(config)
        anchor_first = stated_layout(fields, False, stated, self.architectures[0])
        return Facts(**layer_facts(fields), **block_facts(fields, anchor_first, stated), **head_facts(fields))


def gemma_config(facts: Facts) -> dict[str, Any]:
    """Fields of Gemma 4's draft layers; the ends are the family's own, so no scale of embeddings is named."""
    rope = {
        "rope_type": "proportional",
        "partial_rotary_factor": facts.style.rotary_share,
        "rope_theta": facts.rope_theta,
    }
    plain = layer_config(facts, "gemma4_text")
    for name in ("hidden_act", "rope_theta", "input_embedding_scale"):
        plain.pop(name, None)
    return plain | {
        "hidden_activation": "gelu_pytorch_tanh",
        "global_head_dim": facts.head_dim,
        "num_global_key_value_heads": facts.num_kv_heads,
        "attention_k_eq_v": facts.style.keys_as_values,
        "rope_parameters": {"full_attention": rope},
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
    }


def gemma_facts(fields: Fields) -> dict[str, Any]:
    """The facts of Gemma 4's draft layers.

    Raises:
        ValueError: a field is missing, or asks for a variant that is not read.
    """
    fields.refuse_unless("hidden_activation", "gelu_pytorch_tanh", "of Gemma 4's MLP")
    fields.refuse_unless("enable_moe_block", False, "draft layers are dense")
    fields.refuse_unless("use_double_wide_mlp", False, "draft layers are of one width")
    fields.refuse_unless("hidden_size_per_layer_input", 0, "draft layers have no input of their own")
    shared = fields.flag("attention_k_eq_v", False)
    rope = fields.need("rope_parameters").get("full_attention")
    if not rope or rope.get("rope_type") not in ("default", "proportional"):
        raise ValueError(
            f"{fields.where}: rope_parameters.full_attention must be default or proportional RoPE, got {rope!r}"
        )
    share = float(rope.get("partial_rotary_factor", 1.0)) if rope["rope_type"] == "proportional" else 1.0
    plain = {"hidden_act": "silu", "rope_theta": rope["rope_theta"], "rope_parameters": None, "rope_scaling": None}
    # use_sliding_window and sliding_window are the target's leftovers; layer_types decide.
    facts = layer_facts(Fields({**fields.config, **plain, "use_sliding_window": False}, fields.where))
    facts["head_dim"] = fields.whole("global_head_dim")
    facts["num_kv_heads"] = fields.whole("num_global_key_value_heads" if shared else "num_key_value_heads")
    facts["style"] = LayerStyle(True, shared, True, 1.0, "gelu_tanh", share)
    return facts
