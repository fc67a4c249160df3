"""A GGUF file as a target: read once, the same numbers as the model that it was made of, refused readably otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import tiny
from draftlab.target import derive_spec, load_target
from draftlab.target.source import resolve

gguf = pytest.importorskip("gguf")
KINDS = {  # parts of a llama layer: name in GGUF, name in transformers
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path / "cache"))


def interleaved(weight, heads):
    """Rows of a projection in the order that GGUF has them: pairs of the rotation side by side."""
    width = len(weight) // heads // 2
    return weight.reshape(heads, 2, width, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(folder, file, quantise=False):
    """The model of ``folder`` as a llama of GGUF with a byte-pair vocabulary; projections in 8 bits if ``quantise``."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config, state = model.config, {name: value.numpy() for name, value in model.state_dict().items()}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*(f"t{i}" for i in range(config.vocab_size - 1)), "t0t1"])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["t0 t1"])
    writer.add_eos_token_id(2)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors = {"token_embd": state["model.embed_tokens.weight"], "output_norm": state["model.norm.weight"]}
    if not config.tie_word_embeddings:
        tensors["output"] = state["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        for name, theirs in KINDS.items():
            value = state[f"model.layers.{layer}.{theirs}.weight"]
            tensors[f"blk.{layer}.{name}"] = interleaved(value, heads[name]) if name in heads else value
    for name, value in tensors.items():
        if quantise and value.ndim == 2 and name.startswith("blk"):
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def states(path):
    target = load_target(derive_spec(str(path), mask_token_id=4, verbose=False))
    output = target.forward(torch.arange(3, 11)[None])
    return target.logits(output.last_hidden)


@pytest.mark.parametrize(("quantise", "tolerance"), [(False, 1e-5), (True, 0.1)], ids=["float32", "8 bits"])
def test_a_gguf_file_computes_what_its_model_computes(quantise, tolerance, tmp_path, capsys):
    folder = tiny.save_tiny_target(tmp_path / "model")
    file = write_gguf(folder, tmp_path / "own.gguf", quantise)
    found, expected = states(file), states(folder)
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error < tolerance and (error > 1e-5) == quantise, error
    assert capsys.readouterr().out.count("converting own.gguf") == 1
    made = resolve(str(file))
    write_gguf(tiny.save_tiny_target(tmp_path / "other", num_layers=3), file)
    assert resolve(str(file)) != made, "another file of that name is another target"


def test_what_is_no_gguf_file_and_what_transformers_cannot_read_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*none\.gguf; expected a GGUF file"):
        resolve(str(tmp_path / "none.gguf"))
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(ValueError, match=r"page\.gguf is no GGUF file"):
        resolve(str(tmp_path / "page.gguf"))
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "an-architecture-of-its-own")
    writer.add_tensor("x", np.zeros((2, 2), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"transformers could not read .*odd\.gguf .*give the folder or hub id"):
        resolve(str(tmp_path / "odd.gguf"))
    left = [path.name for path in (tmp_path / "cache" / "targets").iterdir()]
    assert all(name.endswith(".lock") for name in left), left
