"""Facts: what an exported checkpoint says about its drafter, in our words; every layout translates from and to them.

    run ── facts_of(drafter) ──▶ Facts ── layout.config(facts) ──▶ config.json
    config.json ── layout.facts(config) ──▶ Facts ── overrides(facts) ──▶ a composed run

It knows neither files nor foreign names nor weights.

    facts = facts_of(drafter)
    facts.block_inputs                                        # 7 anchor-first, 8 for seven drafts in the 1+N layout
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from draftlab.drafters import LayerStyle
from draftlab.heads import DominoHead, GatedHead, MarkovHead, NoHead, RNNHead

HEADS = {MarkovHead: "markov", GatedHead: "gated", RNNHead: "rnn", DominoHead: "domino", NoHead: "none"}
GEMMA4_STYLE = {"sandwich_norms": True, "value_norm": True, "attention_scale": 1.0, "activation": "gelu_tanh"}


@dataclass(frozen=True)
class Facts:
    """A drafter without its weights."""

    family: str  # DSpark, DFlash, Eagle3 or MTP
    head: str
    rank: int  # 0 without a head
    confidence: bool
    block_size: int  # gamma, drafted tokens
    sample_from_anchor: bool
    target_layer_ids: tuple[int, ...]
    mask_token_id: int | None  # None: the layout names none
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    qk_norm: bool = True
    style: LayerStyle = field(default_factory=LayerStyle)
    own_head: bool = False  # a trained copy of the LM head
    confidence_input: str = "normed"
    num_target_layers: int | None = None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    head_bias: bool = False  # the target's LM head adds a bias
    exits: tuple[int, ...] = ()  # layers after which a block may stop; no engine does, so exports leave their parts out

    @property
    def block_inputs(self) -> int:
        """I, the inputs of a block; what foreign configurations call its size."""
        return self.block_size if self.sample_from_anchor else self.block_size + 1

    @property
    def reduced(self) -> bool:
        """Whether the draft vocabulary is a part of the target's."""
        return self.draft_vocab_size < self.vocab_size

    @property
    def block_layout(self) -> str:
        """``anchor-first`` or ``1+N``."""
        return "anchor-first" if self.sample_from_anchor else "1+N"

    @property
    def gemma(self) -> bool:
        """Whether the draft layers are Gemma 4's."""
        return all(getattr(self.style, name) == value for name, value in GEMMA4_STYLE.items()) and self.qk_norm

    @property
    def gemma_ends(self) -> bool:
        """Whether the target scales embeddings as Gemma does, by √D, and nothing else of logits but a soft cap."""
        return (
            abs(self.embedding_scale - math.sqrt(self.hidden_size)) < 0.01 * self.embedding_scale
            and self.logit_scale == 1.0
        )

    @property
    def plain(self) -> bool:
        """Whether the draft layers are Qwen3's or Llama's, which differ in per-head norms only."""
        return self.style == LayerStyle()


def facts_of(drafter) -> Facts:
    """The facts of a drafter whose target's ends are attached."""
    spec, block, sizes, head = drafter.spec, drafter.block, drafter.sizes, drafter.markov_head
    return Facts(
        family=drafter.family,
        head=HEADS[type(head)],
        rank=head.rank,
        confidence=drafter.has_confidence,
        block_size=block.block_size,
        sample_from_anchor=block.sample_from_anchor,
        target_layer_ids=spec.target_layer_ids,
        mask_token_id=spec.mask_token_id,
        num_layers=len(drafter.layers),
        hidden_size=spec.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=spec.vocab_size,
        draft_vocab_size=drafter.draft_vocab_size,
        max_position=spec.max_position,
        rms_norm_eps=spec.rms_norm_eps,
        rope_theta=spec.rope_theta,
        qk_norm=sizes.qk_norm,
        style=sizes.style,
        own_head=drafter.lm_head is not None,
        confidence_input=getattr(drafter, "confidence_input", "normed"),
        num_target_layers=spec.num_layers,
        embedding_scale=spec.embedding_scale,
        logit_scale=spec.logit_scale,
        logit_softcap=spec.logit_softcap,
        head_bias=drafter.ends is not None and drafter.ends.head_bias is not None,
        exits=tuple(drafter.exit_layers),
    )


def overrides(facts: Facts) -> list[str]:
    """Hydra overrides of ``train`` that compose a drafter of these facts; the target's own values stay the target's."""
    chosen: dict[str, Any] = {
        "drafter": facts.family.lower(),
        "head": facts.head,
        "drafter.num_layers": facts.num_layers,
        "drafter.draft_vocab_size": facts.draft_vocab_size if facts.reduced else "null",
        "drafter.train_head": str(facts.own_head).lower(),
        "drafter.num_heads": facts.num_heads,
        "drafter.num_kv_heads": facts.num_kv_heads,
        "drafter.head_dim": facts.head_dim,
        "drafter.intermediate_size": facts.intermediate_size,
        "target.target_layer_ids": str(list(facts.target_layer_ids)).replace(" ", ""),
    }
    if facts.mask_token_id is not None:
        chosen["target.mask_token_id"] = facts.mask_token_id
    if facts.rank:
        chosen["head.rank"] = facts.rank
    if not facts.plain:
        values = ",".join(f"{name}:{_text(value)}" for name, value in asdict(facts.style).items())
        chosen["drafter.style"] = f"{{_target_:draftlab.drafters.LayerStyle,{values}}}"
    if facts.family == "Eagle3":
        chosen |= {"drafter.qk_norm": str(facts.qk_norm).lower(), "block.ttt_length": facts.block_size}
    else:
        chosen |= {"block": "block7", "block.block_size": facts.block_size}
        chosen["block.sample_from_anchor"] = str(facts.sample_from_anchor).lower()
    if facts.family == "DSpark":
        chosen["drafter.confidence_head"] = str(facts.confidence).lower()
        chosen["loss"] = "dspark" if facts.confidence else "no_confidence"
    return [f"{key}={value}" for key, value in chosen.items()]


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower()
