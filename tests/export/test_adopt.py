"""Checkpoints of other trainers are adopted and leave as they came; a doubt about them is refused by name (case 17)."""

from __future__ import annotations

import json

import foreign
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftlab.decode.trained import open_drafter
from exporting import adopt, export, make_run

# Maker, the format that it leaves in, what the user has to say, and family, head, drafts and layout that it must be read as.
MAKERS = {
    foreign.released_dspark: ("deepspec", {}, ("DSpark", "MarkovHead", 3, True)),
    foreign.released_gemma: ("deepspec", {}, ("DSpark", "MarkovHead", 3, True)),
    foreign.released_eagle3: ("deepspec", {}, ("Eagle3", "NoHead", 5, True)),
    foreign.engine_eagle3: ("deepspec", {"block_size": 6}, ("Eagle3", "NoHead", 6, True)),
    foreign.standalone_dflash: ("dflash", {}, ("DFlash", "NoHead", 3, False)),
    foreign.speculator_dspark: ("speculators", {}, ("DSpark", "MarkovHead", 3, True)),
}
LEFTOVERS = {  # of the target or the trainer: nothing here reads them
    "num_anchors", "step_loss_decay", "model_type", "sliding_window", "use_sliding_window", "head_dim", "num_key_value_heads",
}  # fmt: skip


def target_of(maker, target_folder, gemma_folder):
    return gemma_folder if maker is foreign.released_gemma else target_folder


@pytest.fixture
def dspark(tmp_path, target_folder):
    """Writes a released DSpark with changed fields, and its tensors through ``mend``."""

    def write(mend=lambda tensors: tensors, **changes):
        config, tensors = foreign.released_dspark(target_folder)
        return foreign.write_foreign(tmp_path / "foreign", config, mend(tensors), **changes)

    return write


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_what_others_made_is_read_rightly_and_leaves_as_it_came(maker, target_folder, gemma_folder, tmp_path):
    name, stated, expected = MAKERS[maker]
    target = target_of(maker, target_folder, gemma_folder)
    config, tensors = maker(target)
    folder = foreign.write_foreign(tmp_path / "foreign", config, tensors)
    run = adopt(folder, tmp_path / "run", target, **stated)
    drafter = open_drafter(run).drafter
    block = drafter.block
    assert (drafter.family, type(drafter.markov_head).__name__, block.block_size, block.sample_from_anchor) == expected
    out = export(run, tmp_path / "out", name, ends="copied" if "embed_tokens.weight" in tensors else "shared")
    written = load_file(out / "model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(torch.equal(written[key], tensors[key]) for key in tensors)
    again = json.loads((out / "config.json").read_text())
    assert {key: again.get(key) for key in config if key not in LEFTOVERS} == {
        key: nested(value, again.get(key)) for key, value in config.items() if key not in LEFTOVERS
    }


def nested(value, found):
    """Of a mapping, what is written again; everything else as it is."""
    if not isinstance(value, dict):
        return value
    kept = {key: nested(inner, (found or {}).get(key)) for key, inner in value.items() if key != "sliding_attention"}
    return (found or {}) | kept


def test_the_same_numbers_come_out_of_foreign_tensors_and_ours(target_folder, tmp_path):
    """The maker's tensors stand where the method says: the markov bias is W_1[previous] W_2."""
    config, tensors = foreign.released_dspark(target_folder)
    run = adopt(foreign.write_foreign(tmp_path / "foreign", config, tensors), tmp_path / "run", target_folder)
    head = open_drafter(run).drafter.markov_head
    expected = tensors["markov_head.markov_w1.weight"][[5, 9]] @ tensors["markov_head.markov_w2.weight"].T
    torch.testing.assert_close(head.bias(None, torch.tensor([5, 9])), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["BertModel"]}, r"unknown layout .*BertModel.*Qwen3DSparkModel"),
        ({"architectures": None}, r"unknown layout"),
        ({"block_size": None}, r"the field block_size is missing"),
        ({"block_size": "seven"}, r"block_size must be a whole number of at least 1, got 'seven'"),
        ({"target_layer_ids": None}, r"the field target_layer_ids is missing"),
        ({"target_layer_ids": [2, 0]}, r"target_layer_ids must be an ascending list"),
        ({"target_layer_ids": [0, 3]}, r"layer 3 is tapped, of the target's 4 the last one never is"),
        ({"mask_token_id": None}, r"the field mask_token_id is missing"),
        ({"sample_from_anchor": False}, r"sample_from_anchor is false, but Qwen3DSparkModel is anchor-first"),
        (
            {"dflash_config": {"target_layer_ids": [0, 1]}},
            r"target_layer_ids is \[0, 2\], but dflash_config\.target_layer_ids",
        ),
        ({"markov_head_type": "fir"}, r"markov_head_type must be one of vanilla, gated, rnn, got 'fir'"),
        ({"confidence_head_with_markov": False}, r"confidence_head_with_markov is false with markov_rank 5"),
        ({"hidden_act": "relu"}, r"hidden_act is 'relu'"),
        ({"attention_bias": True}, r"attention_bias is True"),
        ({"layer_types": ["sliding_attention"] * 2}, r"sliding window"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, r"rope_type is 'yarn'"),
        ({"rope_parameters": {"rope_theta": 5.0}}, r"rope_theta is .*, but rope_parameters\.rope_theta is 5\.0"),
        ({"rms_norm_eps": 0.5}, r"rms_norm_eps is 0\.5, the target's is"),
        ({"num_target_layers": 36}, r"num_target_layers is 36, the target's is 4"),
        ({"draft_vocab_size": 20}, r"draft_vocab_size 20 is below vocab_size 128, but there is no tensor d2t"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_layout_that_is_unknown_or_contradicts_itself_is_refused_by_field(
    dspark, changes, message, target_folder, tmp_path
):
    with pytest.raises(ValueError, match=message):
        adopt(dspark(**changes), tmp_path / "run", target_folder)
    assert not (tmp_path / "run").exists()


def without(*names):
    return lambda tensors: {name: value for name, value in tensors.items() if name not in names}


@pytest.mark.parametrize(
    ("mend", "message"),
    [
        (without("fc.weight", "norm.weight"), r"missing: fc\.weight, norm\.weight"),
        (lambda tensors: {**tensors, "gate.weight": torch.ones(2)}, r"extra: gate\.weight"),
        (
            lambda tensors: {**tensors, "fc.weight": torch.ones(2, 3)},
            r"misshapen: fc\.weight \[2, 3\], expected \[32, 64\]",
        ),
        (
            lambda tensors: {**tensors, "embed_tokens.weight": tensors["embed_tokens.weight"] + 1},
            r"embed_tokens\.weight is not the target's embedding \(128 of 128 rows differ",
        ),
        (lambda tensors: {**tensors, "lm_head.weight": torch.ones(3, 32)}, r"lm_head\.weight is \[3, 32\], expected"),
    ],
    ids=["missing", "extra", "misshapen", "embedding", "head"],
)
def test_tensors_that_do_not_fit_are_named(dspark, mend, message, target_folder, tmp_path):
    with pytest.raises(ValueError, match=message):
        adopt(dspark(mend), tmp_path / "run", target_folder)


def test_a_trained_head_is_told_from_the_targets(dspark, target_folder, tmp_path):
    folder = dspark(lambda tensors: {**tensors, "lm_head.weight": tensors["lm_head.weight"] * 1.5})
    drafter = open_drafter(adopt(folder, tmp_path / "run", target_folder)).drafter
    assert torch.equal(drafter.lm_head, load_file(folder / "model.safetensors")["lm_head.weight"])


def test_the_user_may_say_which_layout_is_right(dspark, target_folder, tmp_path):
    folder = dspark(sample_from_anchor=False, block_size=4)
    run = adopt(folder, tmp_path / "run", target_folder, sample_from_anchor=False)
    block = open_drafter(run).drafter.block
    assert (block.block_size, block.sample_from_anchor) == (3, False)
    with pytest.raises(ValueError, match=r"block_size=7 was given, but config\.json says block_size 4"):
        adopt(folder, tmp_path / "other", target_folder, sample_from_anchor=False, block_size=7)


@pytest.mark.parametrize(("name", "words"), [("deepspec", ()), ("speculators", ("block.sample_from_anchor=false",))])
def test_a_block_layout_flipped_after_export_is_found_out_and_a_missing_one_is_put_back(
    name, words, target_folder, tmp_path, capsys
):
    run = make_run(tmp_path / "run", target_folder, "drafter=dspark", "head.rank=4", *words)
    folder = export(run, tmp_path / "out", name)
    config = json.loads((folder / "config.json").read_text())
    for change, message in (
        (
            {"sample_from_anchor": not config["sample_from_anchor"]},
            r"sample_from_anchor is .*, but the weights' header says",
        ),
        ({"block_size": 9}, r"block_size is 9, but the weights' header says"),
        ({"architectures": ["DFlashDraftModel"]}, r"architectures is 'DFlashDraftModel', but the weights' header says"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=message):
            adopt(folder, tmp_path / "again", target_folder)
    del config["sample_from_anchor"]
    (folder / "config.json").write_text(json.dumps(config))
    again = adopt(folder, tmp_path / "again", target_folder)
    assert "sample_from_anchor is missing; the weights' header says" in capsys.readouterr().out
    assert open_drafter(again).drafter.block.sample_from_anchor == open_drafter(run).drafter.block.sample_from_anchor


def test_speculators_must_say_their_layout_and_agree_with_what_they_propose(target_folder, tmp_path):
    config, tensors = foreign.speculator_dspark(target_folder)
    folder = foreign.write_foreign(tmp_path / "foreign", config, tensors, sample_from_anchor=None)
    with pytest.raises(ValueError, match=r"sample_from_anchor is missing, and this format has drafters in both"):
        adopt(folder, tmp_path / "run", target_folder)
    foreign.write_foreign(folder, config, tensors, sample_from_anchor=False)
    with pytest.raises(ValueError, match=r"speculative_tokens is 3, but block_size 3 drafts 2 in the 1\+N layout"):
        adopt(folder, tmp_path / "run", target_folder)


def test_an_eagle3_that_does_not_say_its_length_needs_the_users_word(target_folder, tmp_path):
    config, tensors = foreign.engine_eagle3(target_folder)
    folder = foreign.write_foreign(tmp_path / "foreign", config, tensors)
    with pytest.raises(ValueError, match=r"no ttt_length says how many tokens are drafted a round; give block_size="):
        adopt(folder, tmp_path / "run", target_folder)
    for field in ("norm_before_residual", "norm_before_fc"):
        foreign.write_foreign(folder, config, tensors, **{field: True})
        with pytest.raises(ValueError, match=f"{field} is True"):
            adopt(folder, tmp_path / "run", target_folder, block_size=5)


@pytest.mark.parametrize("change", ["ids", "marks"])
def test_a_draft_vocabulary_that_contradicts_itself_is_refused(change, target_folder, tmp_path):
    config, tensors = foreign.speculator_dspark(target_folder)
    if change == "ids":
        tensors["d2t"] = tensors["d2t"] + 100
    else:
        tensors["t2d"] = ~tensors["t2d"]
    folder = foreign.write_foreign(tmp_path / "foreign", config, tensors)
    with pytest.raises(ValueError, match="d2t must hold offsets" if change == "ids" else "t2d marks other tokens"):
        adopt(folder, tmp_path / "run", target_folder)


def test_pickled_damaged_and_missing_weights_are_refused_and_shards_are_read(dspark, target_folder, tmp_path):
    folder = dspark()
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"model-00001.safetensors": names[:5], "model-00002.safetensors": names[5:]}
    for shard, keys in shards.items():
        save_file({key: tensors[key] for key in keys}, folder / shard)
    index = {"weight_map": {key: shard for shard, keys in shards.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    adopt(folder, tmp_path / "run", target_folder)
    second = folder / "model-00002.safetensors"
    second.write_bytes(second.read_bytes()[:200])
    with pytest.raises(ValueError, match="damaged or cut short"):
        adopt(folder, tmp_path / "other", target_folder)
    second.unlink()
    with pytest.raises(ValueError, match=r"model-00002\.safetensors is missing"):
        adopt(folder, tmp_path / "other", target_folder)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ValueError, match=r"pickled weights only \(pytorch_model\.bin\)"):
        adopt(folder, tmp_path / "other", target_folder)


def test_adopting_again_is_nothing_and_another_checkpoint_is_refused(dspark, target_folder, tmp_path, capsys):
    run = adopt(dspark(), tmp_path / "run", target_folder)
    written = (run / "checkpoints" / "imported.ckpt").stat().st_mtime_ns
    adopt(dspark_again := tmp_path / "foreign", run, target_folder)
    assert "holds this checkpoint already" in capsys.readouterr().out
    assert (run / "checkpoints" / "imported.ckpt").stat().st_mtime_ns == written
    config, tensors = foreign.released_dspark(target_folder)
    foreign.write_foreign(dspark_again, config, {**tensors, "fc.weight": tensors["fc.weight"] + 1})
    with pytest.raises(ValueError, match=r"holds another drafter or other settings: weights is"):
        adopt(dspark_again, run, target_folder)
