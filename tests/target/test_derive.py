"""Specs out of configs, tokenizers and generation configs; the YAML files of conf/target against published configs."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from hydra.utils import instantiate
from omegaconf import OmegaConf

import tiny
from draftlab.sampling import Sampling
from draftlab.target import TargetSpec, check_against_config, derive_spec
from draftlab.target.derive import find_mask_token

CONF = Path(__file__).parents[2] / "conf" / "target"
YAMLS = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "custom")


def yaml_spec(name: str, **changes) -> TargetSpec:
    """The spec that conf/target/<name>.yaml describes, as Hydra builds it."""
    node = OmegaConf.load(CONF / f"{name}.yaml").target
    return instantiate(OmegaConf.merge(node, changes))


def test_a_folder_is_described_and_the_description_printed(target_folder, capsys):
    spec = derive_spec(str(target_folder))
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 32, 4, 2, 8)
    assert (spec.vocab_size, spec.intermediate_size, spec.max_position, spec.tied) == (128, 64, 256, False)
    assert (spec.target_layer_ids, spec.mask_token_id) == ((0, 1, 2), tiny.MASK)
    assert (spec.eos_token_ids, spec.pad_token_id) == ((tiny.IM_END,), tiny.IM_END)
    printed = capsys.readouterr().out
    for part in ("4 layers x 32", "target_layer_ids [0, 1, 2]", "mask_token_id 3", "eos [2]", "vocabulary 128"):
        assert part in printed


def test_what_the_user_gives_wins_and_null_means_derive(target_folder):
    spec = derive_spec(str(target_folder), mask_token_id=110, target_layer_ids=[-1, 1], name=None, thinking=True)
    assert (spec.mask_token_id, spec.target_layer_ids, spec.thinking) == (110, (-1, 1), True)
    assert spec.name == target_folder.name.lower()


def test_the_custom_yaml_builds_a_spec_from_a_path(target_folder):
    node = OmegaConf.load(CONF / "custom.yaml").target
    node.path = str(target_folder)
    assert instantiate(node) == derive_spec(str(target_folder))
    node.path = None
    with pytest.raises(Exception, match=r"target\.path=<local folder"):
        instantiate(node)


def test_every_field_of_the_custom_yaml_is_a_field_of_the_spec():
    fields = set(OmegaConf.load(CONF / "custom.yaml").target) - {"_target_"}
    assert fields <= set(TargetSpec.__dataclass_fields__)


@pytest.mark.parametrize("family", ["gemma3", "gemma4_unified"])
def test_sizes_of_a_nested_text_config_are_those_of_the_text_model(family):
    nested = tiny.tiny_spec(tiny.tiny_model(family))
    plain = tiny.tiny_spec(tiny.tiny_model({"gemma3": "gemma3_text"}.get(family, "gemma4_unified_text")))
    assert nested == plain
    assert (nested.hidden_size, nested.head_dim, nested.embedding_scale) == (32, 8, pytest.approx(32**0.5))


def test_sampling_and_end_ids_come_from_the_generation_config(tmp_path):
    model = tiny.tiny_model()
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=0.7, top_p=0.8, top_k=20, eos_token_id=[2, 9], pad_token_id=2
    )
    model.save_pretrained(tmp_path)
    tiny.tiny_tokenizer(64).save_pretrained(tmp_path)
    spec = derive_spec(str(tmp_path), verbose=False)
    assert spec.sampling == Sampling(temperature=0.7, top_p=0.8, top_k=20)
    assert spec.eos_token_ids == (2, 9)


def test_a_model_without_generation_config_is_sampled_at_temperature_one(target_folder):
    assert derive_spec(str(target_folder), verbose=False).sampling == Sampling()


def without_mask(vocab_size: int):
    """The tiny tokenizer, its mask token an ordinary one."""
    tokenizer = tiny.tiny_tokenizer(vocab_size)
    tokenizer.mask_token = None
    return tokenizer


def test_without_a_mask_token_a_spare_embedding_row_serves():
    """Case 15; so the paper's Qwen3 id 151669 comes out, the first row past the tokenizer."""
    assert find_mask_token(without_mask(100), vocab_size=128, taken={2}) == 100


def test_without_a_spare_row_an_unused_added_token_serves():
    """Case 15."""
    tokenizer = without_mask(100)
    tokenizer.add_tokens(["<|reserved_special_token_0|>"], special_tokens=True)
    assert find_mask_token(tokenizer, vocab_size=101, taken={2, tiny.MASK}) == 100
    assert find_mask_token(tokenizer, vocab_size=101, taken={2}) == tiny.MASK, "named <mask>, though not declared"


def test_without_any_candidate_an_explicit_mask_id_is_required():
    """Case 15; an ordinary word such as "reserved" is no candidate."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tiny.Tokenizer(tiny.models.WordLevel({"unused": 0, "reserved": 1}, unk_token="unused"))
    )
    with pytest.raises(ValueError, match=r"target\.mask_token_id=<id>"):
        find_mask_token(tokenizer, vocab_size=2, taken=set())


def test_a_mask_token_that_doubles_as_padding_is_not_taken():
    """Case 15."""
    assert find_mask_token(tiny.tiny_tokenizer(100), vocab_size=128, taken={tiny.MASK}) == 100


@pytest.mark.parametrize("path", ["./no/such/folder", "/no/such", "a/b/c"])
def test_a_path_that_is_no_folder_is_refused(path):
    with pytest.raises(ValueError, match=r"target\.path: .* is not a folder"):
        derive_spec(path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"target\.path: no config could be read"):
        derive_spec(str(tmp_path))


@pytest.mark.parametrize("field", ["num_layers", "hidden_size", "vocab_size", "rope_theta", "tied", "embedding_scale"])
def test_a_spec_that_contradicts_the_model_is_refused_by_field(field, target):
    changed = {
        "num_layers": 5,
        "hidden_size": 64,
        "vocab_size": 65,
        "rope_theta": 5e5,
        "tied": True,
        "embedding_scale": 2,
    }
    spec = tiny.tiny_spec(target.model, **{field: changed[field]})
    check_against_config(target.spec, target.model.config)
    with pytest.raises(ValueError, match=rf"target\.{field} is .*, the model has"):
        check_against_config(spec, target.model.config)


@pytest.mark.parametrize("name", YAMLS)
def test_every_target_yaml_builds_a_spec_of_its_own_name(name):
    spec = yaml_spec(name)
    assert spec.name == name and spec.num_features == 5


QWEN = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
PUBLISHED = {
    "qwen3_4b": ("qwen3", QWEN | {"num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728,
                                  "num_attention_heads": 32, "tie_word_embeddings": True}),
    "qwen3_8b": ("qwen3", QWEN | {"num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288,
                                  "num_attention_heads": 32, "tie_word_embeddings": False}),
    "qwen3_14b": ("qwen3", QWEN | {"num_hidden_layers": 40, "hidden_size": 5120, "intermediate_size": 17408,
                                   "num_attention_heads": 40, "tie_word_embeddings": False}),
    "gemma4_12b": ("gemma4_unified_text", {"num_hidden_layers": 48, "hidden_size": 3840, "intermediate_size": 15360,
                                           "num_attention_heads": 16, "num_key_value_heads": 8,
                                           "final_logit_softcapping": 30.0, "attention_k_eq_v": True,
                                           "num_global_key_value_heads": 1}),
    "smollm2_135m": ("llama", {"num_hidden_layers": 30, "hidden_size": 576, "intermediate_size": 1536,
                               "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
                               "rope_theta": 1e5, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", YAMLS)
def test_every_target_yaml_passes_the_check_against_the_published_config(name):
    family, fields = PUBLISHED[name]
    check_against_config(yaml_spec(name), transformers.AutoConfig.for_model(family, **fields))


def test_layer_ids_and_mask_ids_are_those_of_the_method():
    expected = {
        "qwen3_4b": ((1, 9, 17, 25, 33), 151669),
        "qwen3_8b": ((1, 9, 17, 25, 33), 151669),
        "qwen3_14b": ((1, 10, 19, 28, 37), 151669),
        "gemma4_12b": ((5, 17, 29, 41, 46), 4),
        "smollm2_135m": ((1, 8, 15, 22, 27), 4),
    }
    assert {name: (yaml_spec(name).target_layer_ids, yaml_spec(name).mask_token_id) for name in YAMLS} == expected


def test_a_mask_id_given_on_the_command_line_is_checked():
    """Case 15."""
    with pytest.raises(Exception, match="end-of-turn token"):
        yaml_spec("qwen3_4b", mask_token_id=151645)
