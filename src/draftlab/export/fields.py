"""Reading and writing a foreign config.json: fields that are missing or contradict each other are refused by name (case 17).

Configurations of this family nest some fields under ``dflash_config``. Engines let the nested one win; two that differ are a
contradiction here. The fields that every layout shares stand here, too: sizes of the draft layers and what they must not have.

    fields = Fields(config, "config.json", nested="dflash_config")
    fields.whole("block_size"), fields.get("markov_rank", 0)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from draftlab.export.facts import Facts

MISSING = object()


class Fields:
    """A configuration whose fields are asked for by name; ``nested`` names a part that may hold some of them."""

    def __init__(self, config: Mapping[str, Any], where: str = "config.json", nested: str = "dflash_config") -> None:
        inner = config.get(nested) or {}
        if not isinstance(inner, Mapping):
            raise ValueError(f"{where}: {nested} must be a mapping, got {inner!r}")
        self.config, self.where, self.inner, self.nested = config, where, inner, nested

    def get(self, name: str, default: Any = None) -> Any:
        """The value of ``name``, nested or not; ``default`` where it is absent or null.

        Raises:
            ValueError: it stands in both places with different values.
        """
        inner, outer = self.inner.get(name), self.config.get(name)
        if inner is not None and outer is not None and inner != outer:
            raise ValueError(
                f"{self.where}: {name} is {outer!r}, but {self.nested}.{name} is {inner!r}; a checkpoint that contradicts itself "
                "is not read: correct the one that is wrong"
            )
        value = outer if inner is None else inner
        return default if value is None else value

    def need(self, name: str) -> Any:
        """The value of ``name``.

        Raises:
            ValueError: there is none.
        """
        value = self.get(name, MISSING)
        if value is MISSING:
            raise ValueError(
                f"{self.where}: the field {name} is missing; without it the weights cannot be read rightly"
            )
        return value

    def whole(self, name: str, least: int = 1, default: Any = MISSING) -> int:
        """A whole number of at least ``least``."""
        value = self.need(name) if default is MISSING else self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{self.where}: {name} must be a whole number of at least {least}, got {value!r}")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool | None:
        """True or False."""
        value = self.get(name, default)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{self.where}: {name} must be true or false, got {value!r}")
        return value

    def layer_ids(self, name: str, offset: int = 0) -> tuple[int, ...] | None:
        """Decoder layers whose outputs are tapped, from a list that counts ``offset`` higher; None where it is absent."""
        value = self.get(name)
        if value is None:
            return None
        whole = isinstance(value, list) and value and all(type(i) is int for i in value)
        if not whole or any(later <= earlier for earlier, later in itertools.pairwise(value)):
            raise ValueError(f"{self.where}: {name} must be an ascending list of layer numbers, got {value!r}")
        return tuple(i - offset for i in value)

    def refuse_unless(self, name: str, expected: Any, why: str) -> None:
        """Refuse a field that is there and is not ``expected``."""
        value = self.get(name, expected)
        if value != expected:
            raise ValueError(f"{self.where}: {name} is {value!r}, but DraftLab reads {expected!r} only: {why}")


def layer_config(facts: Facts, model_type: str) -> dict[str, Any]:
    """The fields of plain draft layers, as transformers names them."""
    config = {
        "model_type": model_type,
        "hidden_size": facts.hidden_size,
        "intermediate_size": facts.intermediate_size,
        "num_hidden_layers": facts.num_layers,
        "num_attention_heads": facts.num_heads,
        "num_key_value_heads": facts.num_kv_heads,
        "head_dim": facts.head_dim,
        "vocab_size": facts.vocab_size,
        "max_position_embeddings": facts.max_position,
        "rms_norm_eps": facts.rms_norm_eps,
        "rope_theta": facts.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": facts.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * facts.num_layers,
        "use_sliding_window": False,
        "sliding_window": None,
    }
    return config | end_config(facts)


def end_config(facts: Facts) -> dict[str, Any]:
    """How the target's ends differ from plain ones; nothing where they do not."""
    config: dict[str, Any] = {}
    if facts.embedding_scale != 1.0:
        config["input_embedding_scale"] = facts.embedding_scale
    if facts.logit_scale != 1.0:
        config["output_multiplier"] = facts.logit_scale
    if facts.logit_softcap is not None:
        config["final_logit_softcapping"] = facts.logit_softcap
    return config


def layer_facts(fields: Fields) -> dict[str, Any]:
    """The facts of plain draft layers.

    Raises:
        ValueError: a field is missing, or says something that draft layers here do not do.
    """
    fields.refuse_unless("hidden_act", "silu", "the draft layers' MLP is SwiGLU")
    fields.refuse_unless("attention_bias", False, "draft layers have no biases")
    fields.refuse_unless("mlp_bias", False, "draft layers have no biases")
    num_layers, heads = fields.whole("num_hidden_layers"), fields.whole("num_attention_heads")
    _refuse_windows(fields)
    hidden = fields.whole("hidden_size")
    return {
        "num_layers": num_layers,
        "hidden_size": hidden,
        "intermediate_size": fields.whole("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": fields.whole("num_key_value_heads", default=heads),
        "head_dim": fields.whole("head_dim", default=hidden // heads),
        "vocab_size": fields.whole("vocab_size"),
        "max_position": fields.whole("max_position_embeddings", default=1),
        "rms_norm_eps": float(fields.need("rms_norm_eps")),
        "rope_theta": _rope_theta(fields),
        "embedding_scale": float(fields.get("input_embedding_scale", 1.0)),
        "logit_scale": float(fields.get("output_multiplier", 1.0)),
        "logit_softcap": fields.get("final_logit_softcapping"),
    }


def _refuse_windows(fields: Fields) -> None:
    kinds = set(fields.get("layer_types", []))
    windowed = fields.flag("use_sliding_window", False) and fields.get("sliding_window")
    if fields.flag("use_swa", False) or (windowed and kinds != {"full_attention"}) or kinds - {"full_attention"}:
        raise ValueError(
            f"{fields.where}: layer_types or use_sliding_window ask for a sliding window, but draft layers here see the whole "
            "context; only full_attention in every layer is read"
        )


def _rope_theta(fields: Fields) -> float:
    """The rotary base.

    Raises:
        ValueError: there is none, two that differ, or positions that are scaled.
    """
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(
            f"{fields.where}: rope_type is {kind!r}, but draft layers here turn by plain RoPE (default) only"
        )
    inside, outside = rope.get("rope_theta"), fields.get("rope_theta")
    if inside is not None and outside is not None and float(inside) != float(outside):
        raise ValueError(f"{fields.where}: rope_theta is {outside}, but rope_parameters.rope_theta is {inside}")
    theta = outside if inside is None else inside
    if theta is None:
        raise ValueError(f"{fields.where}: the field rope_theta is missing, also in rope_parameters")
    return float(theta)
