"""Loading by spec: checked, complete or refused; the ends alone equal those of the whole model."""

from __future__ import annotations

import dataclasses
import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from draftlab.target import derive_spec, find_device, load_ends, load_target, load_tokenizer, weights
from draftlab.target.weights import torch_dtype

IDS = torch.randint(4, 64, (1, 10), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def spec(target_folder):
    return derive_spec(str(target_folder), verbose=False)


def test_a_loaded_target_gives_the_logits_of_the_saved_model(spec):
    target = load_target(spec)
    model = tiny.tiny_model(vocab_size=128)
    torch.testing.assert_close(target.logits(target(IDS).last_hidden), model(IDS).logits)
    assert target.dtype == torch.float32 and not target.training


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "gemma4_unified", "phi", "gpt2"])
def test_ends_read_alone_equal_the_ends_of_the_whole_target(family, tmp_path, monkeypatch):
    spec = derive_spec(str(tiny.save_tiny_target(tmp_path, family)), verbose=False)
    whole = load_target(spec).ends
    monkeypatch.setattr(weights, "load_target", None)  # the layers between must not be needed
    ends = load_ends(spec)
    hidden = torch.randn(3, 32)
    assert torch.equal(ends.logits(hidden), whole.logits(hidden)) and torch.equal(ends.embed(IDS), whole.embed(IDS))
    assert ends.tied == whole.tied == spec.tied


def test_ends_of_a_sharded_model_are_read_from_the_right_shard(tmp_path):
    model = tiny.tiny_model(vocab_size=128)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    tiny.tiny_tokenizer().save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    ends = load_ends(derive_spec(str(tmp_path), verbose=False))
    assert torch.equal(ends.embedding, model.model.embed_tokens.weight) and torch.equal(ends.head, model.lm_head.weight)


def test_without_safetensors_the_ends_come_from_the_whole_model(spec, tmp_path):
    tiny.save_tiny_target(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    ends = load_ends(dataclasses.replace(spec, path=str(tmp_path)))
    assert torch.equal(ends.head, state["lm_head.weight"])


def test_missing_weights_are_refused_instead_of_being_random(spec, tmp_path):
    tiny.save_tiny_target(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["model.layers.2.mlp.up_proj.weight"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights are missing .* model\.layers\.2\.mlp\.up_proj\.weight"):
        load_target(dataclasses.replace(spec, path=str(tmp_path)))


def test_sizes_that_are_not_the_models_are_refused_before_weights_load(spec, monkeypatch):
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
    monkeypatch.setattr(weights, "safe_open", None)
    wrong = dataclasses.replace(spec, num_heads=8, rope_theta=5e5)
    for load in (load_target, load_ends):
        with pytest.raises(ValueError, match=r"target\.num_heads is 8, the model has 4; target\.rope_theta"):
            load(wrong)


def test_the_self_check_runs_at_every_load(spec, monkeypatch):
    """Case 1."""
    monkeypatch.setattr(weights, "check_against_config", lambda *_: None)
    with pytest.raises(ValueError, match=r"target\.logit_softcap"):
        load_target(dataclasses.replace(spec, logit_softcap=1.0))


def test_dtype_auto_is_float32_on_cpu_and_bfloat16_on_cuda(spec):
    assert torch_dtype(spec, "cpu") == torch.float32
    assert torch_dtype(spec, "cuda:1") == torch.bfloat16
    assert torch_dtype(dataclasses.replace(spec, dtype="float64"), "cuda") == torch.float64
    half = load_target(dataclasses.replace(spec, dtype="bfloat16"))
    assert half.dtype == half(IDS).features.dtype == torch.bfloat16


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == find_device("cpu") == "cpu"
    with pytest.raises(ValueError, match="device=cuda needs a GPU"):
        find_device("cuda")
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda"):
        find_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert find_device("auto") == "cuda" and find_device("cuda:1") == "cuda:1"


def test_the_tokenizer_is_the_targets_own(spec, target_folder, tmp_path):
    assert load_tokenizer(spec).decode([1, 44, 45]) == tiny.tiny_tokenizer().decode([1, 44, 45])
    tiny.tiny_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no tokenizer could be read"):
        load_tokenizer(dataclasses.replace(spec, path=str(tmp_path)))


@pytest.mark.parametrize("method", ["bitsandbytes", "hqq"])
def test_quantised_weights_that_cannot_be_loaded_here_say_what_would_help(method, tmp_path):
    """As a folder of such a model says of itself; neither package is among ours."""
    if importlib.util.find_spec(method):
        pytest.skip(f"{method} is installed")
    folder = tiny.save_tiny_target(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    quantised = {"quant_method": method, "load_in_4bit": True, "quant_config": {"weight_quant_params": {"nbits": 4}}}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}))
    spec = derive_spec(str(folder), mask_token_id=4, verbose=False)
    with pytest.raises(ValueError, match=r"quantised weights that cannot be loaded here .*or as a GGUF file"):
        load_target(spec)
