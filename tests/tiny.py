"""Tiny targets with random weights for the tests: any family of transformers, four layers, 64 tokens, milliseconds.

The LM head is scaled up so that next-token laws are peaked, as a trained model's are; with flat laws many faults of
sampling and verification would stay hidden. Special ids: 0 unk, 1 <|im_start|>, 2 <|im_end|> (eos and pad), 3 mask.

    target = tiny_target("qwen3")                 # FrozenTarget over float32 weights
    folder = save_tiny_target(tmp_path)           # model and tokenizer, as ``target=custom target.path=…`` wants them
"""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from draftlab.sampling import Sampling
from draftlab.target import FrozenTarget, TargetSpec, derive_spec

UNK, IM_START, IM_END, MASK = 0, 1, 2, 3
SPECIAL_TOKENS = ["<unk>", "<|im_start|>", "<|im_end|>", "<mask>"]

CHATML = """{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['role'] == 'assistant' and loop.last and not (enable_thinking | default(true)) -%}
{{- '<think>\n\n</think>\n\n' -}}
{%- endif -%}
{{- message['content'] + '<|im_end|>' + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- if not (enable_thinking | default(true)) -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
{%- endif -%}"""

# What a family needs beyond the common sizes, in its own config's words.
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 6},
    "phi": {},
    "phi3": {"sliding_window": 6},
    "gemma": {},
    "gemma2": {"sliding_window": 6, "query_pre_attn_scalar": 8, "final_logit_softcapping": 5.0},
    "gemma3_text": {"sliding_window": 6, "query_pre_attn_scalar": 8},
    "gemma4_text": {"sliding_window": 6, "global_head_dim": 16, "hidden_size_per_layer_input": 0},
    "gemma4_unified_text": {
        "sliding_window": 6,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "final_logit_softcapping": 5.0,
    },
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt2": {},
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 64},
    "olmo2": {},
    "granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "attention_multiplier": 0.3},
    "cohere": {"logit_scale": 0.25},
}
HYBRID = {
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "gemma4_unified_text",
}  # layers alternate between a sliding window and full attention


def tiny_config(family: str = "llama", vocab_size: int = 64, hidden_size: int = 32, num_layers: int = 4):
    """Config of ``family`` at tiny sizes; ``gemma3`` and ``gemma4_unified`` nest theirs in a multimodal one."""
    if family in NESTED:
        return NESTED[family](tiny_config(f"{family}_text", vocab_size, hidden_size, num_layers))
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 2 * hidden_size,
        "max_position_embeddings": 256,
        "bos_token_id": IM_START,
        "eos_token_id": IM_END,
        "pad_token_id": IM_END,
    }
    if family in HYBRID:
        sizes["layer_types"] = ["sliding_attention", "full_attention"] * (num_layers // 2)
    return transformers.AutoConfig.for_model(family, **sizes, **FAMILIES[family])


def _nested_gemma3(text_config):
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.Gemma3Config(text_config=text_config.to_dict(), vision_config=vision, mm_tokens_per_image=4)


def _nested_gemma4(text_config):
    return transformers.Gemma4UnifiedConfig(text_config=text_config.to_dict())


NESTED = {"gemma3": _nested_gemma3, "gemma4_unified": _nested_gemma4}


def tiny_model(
    family: str = "llama",
    vocab_size: int = 64,
    hidden_size: int = 32,
    num_layers: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
):
    """A causal LM of transformers with random weights, the same for the same arguments."""
    config = tiny_config(family, vocab_size, hidden_size, num_layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                _spread(name, parameter)
    return model.to(dtype).eval()


def _spread(name: str, parameter: torch.nn.Parameter) -> None:
    """Give random, well-spread values: norms off their neutral value, and peaked next-token laws."""
    if parameter.dim() > 1:
        # Fan-in scaling keeps hidden states of order one, so a head of norm 3 spreads logits by about 3.
        scale = (
            3.0 if name.endswith(("lm_head.weight", "embed_out.weight", "embed_tokens.weight", "wte.weight")) else 1.0
        )
        parameter.normal_(0.0, scale / parameter.shape[-1] ** 0.5)
    elif name.endswith("bias"):
        parameter.normal_(0.0, 0.1)
    else:
        parameter.add_(0.2 * torch.randn_like(parameter))


def tiny_spec(
    model, target_layer_ids: tuple[int, ...] = (0, 1, 2), mask_token_id: int = MASK, **overrides
) -> TargetSpec:
    """Spec of a tiny model, its sizes read from the model's own config."""
    facts = {"name": "tiny", "sampling": Sampling(), "eos_token_ids": (IM_END,), "pad_token_id": IM_END}
    return derive_spec(
        "tiny",
        target_layer_ids=target_layer_ids,
        mask_token_id=mask_token_id,
        config=model.config,
        verbose=False,
        **(facts | overrides),
    )


def tiny_target(
    family: str = "llama",
    target_layer_ids: tuple[int, ...] = (0, 1, 2),
    spec: dict | None = None,
    **model_options,
) -> FrozenTarget:
    """A frozen tiny target; ``spec`` overrides fields of its TargetSpec, the rest goes to :func:`tiny_model`."""
    model = tiny_model(family, **model_options)
    return FrozenTarget(model, tiny_spec(model, target_layer_ids, **(spec or {})))


def tiny_tokenizer(vocab_size: int = 128, chat_template: str | None = CHATML):
    """A character tokenizer: special ids 0-3, newline, the printable ASCII characters, then unused ids ``<extra_i>``.

    With fewer than 100 ids the characters are cut off at the end and read as unk; 128 covers all of them.
    """
    characters = ["\n", *map(chr, range(32, 127))]
    tokens = (SPECIAL_TOKENS + characters)[:vocab_size]
    tokens += [f"<extra_{i}>" for i in range(vocab_size - len(tokens))]
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        mask_token="<mask>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def save_tiny_target(folder, family: str = "llama", vocab_size: int = 128, **model_options) -> Path:
    """Write model and tokenizer to ``folder`` and return it; loadable with ``target=custom target.path=<folder>``."""
    tiny_model(family, vocab_size=vocab_size, **model_options).save_pretrained(folder)
    tiny_tokenizer(vocab_size).save_pretrained(folder)
    return Path(folder)
