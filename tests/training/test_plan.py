"""The plan's figures against sums done by hand, for the paper's targets and without any weights."""

import io
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from rich.console import Console

from draftlab.training.build import build
from draftlab.training.plan import codec_totals, fitting, make_plan, print_plan, workload

CONF = str(Path(__file__).parents[2] / "conf")


def plan_of(*overrides, mixed=True):
    with initialize_config_dir(CONF, version_base="1.3"):
        cfg = compose("train", overrides=list(overrides))
    parts = build(cfg, meta=True)
    return make_plan(parts, workload(instantiate(cfg.data), cfg.trainer.settings, parts.loss.chunk_blocks, mixed))


def text_of(plan, gpu_gb=80):
    page = io.StringIO()
    print_plan(plan, gpu_gb, Console(file=page, width=140))
    return page.getvalue()


def test_the_papers_cache_for_qwen3_4b_is_38_tb():
    plan = plan_of("target=qwen3_4b")
    states = (5 + 1) * 2560 * 2
    assert states == 30_720 and plan.cache_per_token == states + 5  # an id and a mask
    assert plan.cache_total == plan.cache_per_token * 1_300_000 * 950
    assert "38 TB" in text_of(plan) and "30,720 B" in text_of(plan)


def test_every_codec_has_its_total_for_the_paper():
    plan = plan_of("target=qwen3_4b")
    totals = {codec: total / (1_300_000 * 950) for codec, total in codec_totals(plan.parts.spec, plan.work).items()}
    ids_and_normalizer = 5 + 4
    by_hand = {
        "bf16": 6 * 5120,
        "fp8": 6 * 2562,
        "int8": 6 * (2560 + 80),
        "int4": 6 * (1280 + 80),
        "lowrank": 2560 // 2 + 2 * 2560 // 32 + 5 * 2 + 1360,  # 2,560 directions, and a last hidden state of 4 bits
    }
    for codec, states in by_hand.items():  # a tar header a conversation is what is left: a byte a token
        assert totals[codec] == pytest.approx(states + ids_and_normalizer, rel=2e-3)
    assert totals["int4"] < 0.27 * totals["bf16"] and totals["lowrank"] < 0.1 * totals["bf16"]
    text = text_of(plan)
    assert text.count("38 TB") == 2 and all(f"data.codec={codec}" in text for codec in by_hand)


def test_trimmed_last_hidden_states_bring_four_bits_under_a_quarter():
    plan = plan_of("target=qwen3_4b", "data.codec=int4", "+data.expected.teachers=600")
    totals = codec_totals(plan.parts.spec, plan.work)
    whole = plan_of("target=qwen3_4b").cache_total
    assert totals["int4"] < whole / 4 and "600 tokens of each can teach" in text_of(plan)


def test_the_papers_steps_are_ten_epochs_of_512_sequences():
    work = plan_of("target=qwen3_14b", "drafter=dspark", "head=markov").work
    assert work.sequences_per_step == 512 and work.steps == 10 * 2540


def test_parameters_are_those_of_the_built_drafter():
    plan = plan_of("target=qwen3_4b", "head=markov", "head.rank=256")
    layer = 2560 * 128 * (2 * 32 + 2 * 8) + 3 * 2560 * 9728 + 2 * 2560 + 2 * 128
    expected = {
        "fc": 5 * 2560 * 2560,
        "hidden_norm": 2560,
        "layers": 5 * layer,
        "norm": 2560,
        "markov_head": 2 * 151_936 * 256,
        "confidence_head": 2560 + 256 + 1,
    }
    assert dict(plan.trainable) == expected
    assert all(parameter.is_meta for parameter in plan.parts.drafter.parameters())
    assert plan.memory["AdamW moments (float32)"] == 8 * sum(expected.values())


def test_parameters_of_the_chains_are_those_of_the_built_drafter():
    hidden, attention = 2560, 2560 * 128 * (2 * 32 + 2 * 8)
    rest = 3 * hidden * 9728 + 2 * hidden
    wide = hidden * 128 * (32 + 2 * 8)  # queries, keys and values read the embedding too
    eagle3, mtp = (dict(plan_of("target=qwen3_4b", f"drafter={name}").trainable) for name in ("eagle3", "mtp"))
    assert eagle3 == {"fc": 5 * hidden**2, "layers": attention + wide + rest + hidden, "norm": hidden}
    norms = {"enorm": hidden, "hnorm": hidden, "norm": hidden}
    assert mtp == norms | {"eh_proj": 2 * hidden**2, "layers": attention + rest + 2 * 128}


def activations_of(*overrides):
    return plan_of("target=qwen3_4b", "data.features=memory", *overrides).memory["activations"]


def test_activations_of_a_chain_grow_with_its_steps_and_its_context_runs_through_a_deeper_one():
    short, long = (activations_of("drafter=eagle3", f"block.ttt_length={length}") for length in (2, 7))
    slots = 4 * 512 * 5  # sequences, anchors, steps more
    per_slot = 2 * (4 * 2560 + 2 * 32 * 128 + 3 * 9728)
    assert long - short > slots * per_slot
    layers = [activations_of("drafter=mtp", f"drafter.num_layers={count}") for count in (1, 2, 3)]
    assert layers[1] - layers[0] == layers[2] - layers[1] > 4 * 4096 * per_slot


def test_an_untied_head_is_counted_and_target_layers_only_where_the_target_runs_in_training():
    online, memory = (plan_of("target=qwen3_14b", f"data.features={mode}").frozen for mode in ("online", "memory"))
    assert online["LM head"] == 151_936 * 5120 and plan_of("target=qwen3_4b").frozen["LM head"] == 0
    assert 12e9 < online["target layers"] < 14e9 and "target layers" not in memory


def test_the_loss_grows_with_the_chunk_and_settings_are_tried_until_one_fits():
    plan = plan_of("target=qwen3_14b", "loss.chunk_blocks=null")
    rows = fitting(plan.parts, plan.work, 80)
    assert rows[0][0] == "as composed" and not rows[0][2] and rows[-1][2]
    assert [size for _, size, _ in rows] == sorted((size for _, size, _ in rows), reverse=True)
    assert not any("features=memory" in text for text, *_ in rows), "76 TB are no advice"
    small = plan_of("target=smollm2_135m", "data.features=online")
    assert any("features=memory" in text for text, *_ in fitting(small.parts, small.work, 80))
    assert any("loss.chunk_blocks=auto" in text for text, *_ in rows)
    chunked = plan_of("target=qwen3_14b", "loss.chunk_blocks=64")
    key = "loss (logits of both sides)"
    assert 0.9e9 < plan_of("target=qwen3_14b").memory[key] <= 1e9, "chunk_gb, whatever the number of anchors"
    assert chunked.memory[key] == pytest.approx(plan.memory[key] * 64 / (4 * 512))


@pytest.mark.parametrize("target", ["smollm2_135m", "qwen3_8b", "gemma4_12b"])
@pytest.mark.parametrize("drafter", ["dspark", "dflash", "eagle3", "mtp"])
def test_every_plan_names_its_parts(target, drafter):
    text = text_of(plan_of(f"target={target}", f"drafter={drafter}"))
    for word in (target, "trainable", "frozen", "optimiser steps", "online", "memory", "cache", "GB"):
        assert word in text


def test_a_plan_without_the_size_of_the_data_says_what_to_give():
    with pytest.raises(ValueError, match=r"data\.expected\.samples"):
        plan_of("target=qwen3_4b", "data.expected=null")


def test_meta_drafters_take_no_memory():
    assert torch.empty(1, device="meta").is_meta
    plan = plan_of("target=gemma4_12b")
    assert sum(plan.trainable.values()) > 5e8 and plan.memory_total > 1e9


def test_a_stream_takes_its_window_instead_of_the_total():
    plan = plan_of("target=qwen3_4b", "data.features=stream", "data.codec=int4", "data.window_gb=50")
    line = next(line for line in text_of(plan).splitlines() if "stream, data.codec=int4" in line)
    assert "50.00 GB" in line and "TB" not in line
    small = plan_of("target=smollm2_135m", "data.features=stream", "data.window_gb=5000")
    line = next(line for line in text_of(small).splitlines() if "stream, data.codec=bf16" in line)
    total = codec_totals(small.parts.spec, small.work)["bf16"]
    assert f"{total / 1e9:,.2f} GB" in line, "no more than there is"


@pytest.mark.parametrize("memory", [None, 0, -1.0, float("nan"), "x", True])
def test_a_gpu_without_memory_is_refused_by_name(memory):
    with pytest.raises(ValueError, match="plan_gpu_gb must be a number"):
        print_plan(None, memory)
