"""Checkpoints as other trainers write them, tiny, with the names and shapes that engines know; none of our code makes them.

folder = write_foreign(tmp_path, *released_dspark(target_folder))
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LAYERS, HEADS, KV, HD, MLP, RANK, BLOCK = 2, 4, 2, 8, 24, 5, 3
PLAIN = {
    "attention_bias": False,
    "head_dim": HD,
    "hidden_act": "silu",
    "intermediate_size": MLP,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "num_hidden_layers": LAYERS,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "layer_types": ["full_attention"] * LAYERS,
}


def target_facts(folder: Path) -> dict:
    """Sizes of the target in ``folder``, under the names that drafters' configurations copy."""
    config = json.loads((folder / "config.json").read_text())
    names = ("hidden_size", "vocab_size", "rms_norm_eps", "max_position_embeddings")
    theta = (config.get("rope_parameters") or {}).get("rope_theta", 10000.0)
    return {**{name: config[name] for name in names}, "rope_theta": theta, "rope_parameters": {
        "rope_type": "default", "rope_theta": theta}}  # fmt: skip


def ends(folder: Path) -> dict[str, torch.Tensor]:
    """The target's embedding and LM head, as a released drafter repeats them."""
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    return {"embed_tokens.weight": embedding, "lm_head.weight": tensors.get("lm_head.weight", embedding)}


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) * 0.3 + (1.0 if len(shape) == 1 else 0.0)


def layer(prefix: str, hidden: int, width: int | None = None, norms: bool = True, gemma: bool = False) -> dict:
    """One decoder layer; ``width``: what attention reads."""
    width, head_dim, kv = width or hidden, 2 * HD if gemma else HD, 1 if gemma else KV
    shapes = {
        "self_attn.q_proj": (HEADS * head_dim, width),
        "self_attn.k_proj": (kv * head_dim, width),
        "self_attn.v_proj": (kv * head_dim, width),
        "self_attn.o_proj": (hidden, HEADS * head_dim),
        "self_attn.q_norm": (head_dim,),
        "self_attn.k_norm": (head_dim,),
        "mlp.gate_proj": (MLP, hidden),
        "mlp.up_proj": (MLP, hidden),
        "mlp.down_proj": (hidden, MLP),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if not norms:
        del shapes["self_attn.q_norm"], shapes["self_attn.k_norm"]
    if gemma:
        del shapes["self_attn.v_proj"]
        shapes |= {"pre_feedforward_layernorm": (hidden,), "post_feedforward_layernorm": (hidden,)}
    if width != hidden:
        shapes["hidden_norm"] = (hidden,)
    tensors = {f"{prefix}{name}.weight": tensor(*shape) for name, shape in shapes.items()}
    return tensors | ({f"{prefix}layer_scalar": torch.tensor([0.8])} if gemma else {})


def backbone(facts: dict, taps: int, gemma: bool = False) -> dict:
    hidden = facts["hidden_size"]
    tensors = {"fc.weight": tensor(hidden, taps * hidden), "hidden_norm.weight": tensor(hidden)}
    tensors["norm.weight"] = tensor(hidden)
    for index in range(LAYERS):
        tensors |= layer(f"layers.{index}.", hidden, gemma=gemma)
    return tensors


def heads(facts: dict, draft_vocabulary: int | None = None) -> dict:
    vocabulary, hidden = facts["vocab_size"], facts["hidden_size"]
    return {
        "markov_head.markov_w1.weight": tensor(vocabulary, RANK),
        "markov_head.markov_w2.weight": tensor(draft_vocabulary or vocabulary, RANK),
        "confidence_head.proj.weight": tensor(1, hidden + RANK),
        "confidence_head.proj.bias": tensor(1),
    }


HEAD_FIELDS = {
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


def released_dspark(target: Path) -> tuple[dict, dict]:
    """A DSpark of DeepSpec's: no word of the block layout, ends repeated."""
    facts = target_facts(target)
    config = {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", **PLAIN, **facts, **HEAD_FIELDS}
    config |= {
        "block_size": BLOCK,
        "mask_token_id": 3,
        "target_layer_ids": [0, 2],
        "num_target_layers": 4,
        "num_anchors": 512,
    }
    return config, {**backbone(facts, 2), **heads(facts), **ends(target)}


def released_gemma(target: Path) -> tuple[dict, dict]:
    """A DSpark of DeepSpec's for Gemma 4: head_dim and sliding_window are the target's leftovers."""
    config, _ = released_dspark(target)
    facts = target_facts(target)
    for name in ("rope_theta", "hidden_act"):
        del config[name]
    theta = json.loads((target / "config.json").read_text())["rope_parameters"]["full_attention"]["rope_theta"]
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": theta}
    config |= {"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text", "global_head_dim": 2 * HD}
    config |= {"num_global_key_value_heads": 1, "attention_k_eq_v": True, "hidden_activation": "gelu_pytorch_tanh"}
    config |= {
        "rope_parameters": {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    }
    config |= {"enable_moe_block": False, "hidden_size_per_layer_input": 0, "sliding_window": 512}
    return config, {**backbone(facts, 2, gemma=True), **heads(facts), **ends(target)}


def released_eagle3(target: Path) -> tuple[dict, dict]:
    """An Eagle3 of DeepSpec's, with per-head norms."""
    facts = target_facts(target)
    config = {"architectures": ["Qwen3Eagle3Model"], "model_type": "qwen3", **PLAIN, **facts}
    config |= {"num_hidden_layers": 1, "layer_types": ["full_attention"], "draft_num_hidden_layers": 1}
    config |= {"target_layer_ids": [0, 1, 2], "num_target_layers": 4, "ttt_length": 5, "step_loss_decay": 0.8}
    return config, {**chain(facts, "layers.0.", True), **ends(target)}


def chain(facts: dict, prefix: str, norms: bool) -> dict:
    hidden = facts["hidden_size"]
    tensors = {"fc.weight": tensor(hidden, 3 * hidden), "norm.weight": tensor(hidden)}
    return tensors | layer(prefix, hidden, 2 * hidden, norms)


def engine_eagle3(target: Path) -> tuple[dict, dict]:
    """An Eagle3 as engines' trainers write it: a reduced vocabulary with a head of its own, no length of drafts."""
    facts = target_facts(target)
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **PLAIN, **facts}
    config |= {
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "draft_vocab_size": 20,
        "num_target_layers": 4,
    }
    config |= {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    return config, {**chain(facts, "midlayer.", False), **vocabulary(facts, 20)}


def vocabulary(facts: dict, size: int) -> dict:
    ids = torch.arange(size) * 4 + 3
    marked = torch.zeros(facts["vocab_size"], dtype=torch.bool).index_fill_(0, ids, True)
    return {"d2t": ids - torch.arange(size), "t2d": marked, "lm_head.weight": tensor(size, facts["hidden_size"])}


def standalone_dflash(target: Path) -> tuple[dict, dict]:
    """A DFlash on its own: 1+N, fields nested."""
    facts = target_facts(target)
    config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", **PLAIN, **facts, "num_target_layers": 4}
    config |= {"block_size": BLOCK + 1, "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 2]}}
    return config, backbone(facts, 2)


def speculator_dspark(target: Path) -> tuple[dict, dict]:
    """A DSpark in the speculators format, with a reduced vocabulary."""
    facts = target_facts(target)
    method = {"proposal_type": "greedy", "speculative_tokens": BLOCK, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    config = {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "speculators_version": "0.9.0",
        "draft_vocab_size": 20,
        "transformer_layer_config": {"model_type": "qwen3", **PLAIN, **facts},
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"]},
        },
        "block_size": BLOCK,
        "aux_hidden_state_layer_ids": [1, 3],
        "mask_token_id": 3,
        "sample_from_anchor": True,
        "target_hidden_size": facts["hidden_size"],
        **HEAD_FIELDS,
    }
    return config, {**backbone(facts, 2), **heads(facts, 20), **vocabulary(facts, 20)}


def write_foreign(folder: Path, config: dict, tensors: dict, **changes) -> Path:
    """Write it, with fields changed (None: taken away)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**config, **changes}.items() if key not in changes or value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous().clone() for name, value in tensors.items()}, folder / "model.safetensors")
    return folder
