"""The parts of a causal LM, found by transformers' accessors and by structure, never by a family's name.

decoder, layers = decoder_and_layers(model)            # decoder(ids).last_hidden_state is already final-normed
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from draftlab.sampling import Sampling

if TYPE_CHECKING:  # transformers is slow to import, and at hand wherever a model is
    from transformers import GenerationConfig


def decoder_and_layers(model: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    """The text decoder of a causal LM and its list of layers: the largest ModuleList with one entry a layer."""
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} is an encoder-decoder model; a target must be a decoder-only causal LM"
        )
    decoder = model.get_decoder()
    depth = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = [m for m in decoder.modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
    if not lists or model.get_output_embeddings() is None:
        raise ValueError(
            f"no list of {depth} decoder layers with an LM head was found in {type(model).__name__}; "
            "a target must be a decoder-only causal LM of transformers"
        )
    return decoder, max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))


def end_tensors(model: nn.Module) -> tuple[Tensor, Tensor, Tensor | None]:
    """Embedding [V, D], LM head [V, D] and its bias [V] or None, the model's own tensors."""
    head = model.get_output_embeddings()
    return model.get_input_embeddings().weight, head.weight, getattr(head, "bias", None)


def eos_token_ids(model: nn.Module) -> tuple[int, ...]:
    """End ids of the generation config, else of the model's config."""
    for config in (model.generation_config, model.config.get_text_config(decoder=True)):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, list | tuple) else (ids,)
    return ()


def generation_config(sampling: Sampling, max_new_tokens: int, eos: tuple[int, ...], pad: int) -> GenerationConfig:
    """Transformers' words for a Sampling; every cut not asked for is switched off."""
    from transformers import GenerationConfig

    law = {"do_sample": False}
    if not sampling.greedy:
        law = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p or None,
        }
    return GenerationConfig(max_new_tokens=max_new_tokens, eos_token_id=list(eos) or None, pad_token_id=pad, **law)
