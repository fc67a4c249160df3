"""The per-row cache: slot = position, no rollback after a rejection, rows move and are refilled in place."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest
import torch
from transformers.integrations import sdpa_attention

import tiny
from draftlab.decode.cache import FORCE_GQA, GROWTH, RowCache, grouped_attention, survivors

FAMILIES = ["llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt_neox", "phi", "gpt2", "opt"]


def read_prompts(target, cache, prompts, rows=None):
    rows = list(range(len(prompts))) if rows is None else rows
    width = max(map(len, prompts))
    ids = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts])
    mask = cache.place_prompts(torch.tensor(rows), width)
    return target.forward(ids, cache.positions, mask, cache).last_hidden


def read_tokens(target, cache, tokens, starts):
    positions = torch.tensor(starts).unsqueeze(-1) + torch.arange(len(tokens[0]))
    mask = cache.place(positions)
    return target.forward(torch.tensor(tokens), positions, mask, cache).last_hidden


def tokens_of(seed, length):
    return torch.randint(4, 64, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_unequal_length_read_as_if_alone_in_every_family(family):
    target = tiny.tiny_target(family, dtype=torch.float64)
    whole = [tokens_of(1, 12), tokens_of(2, 17)]
    cache = RowCache(2)
    read_prompts(target, cache, [whole[0][:4], whole[1][:9]])
    first = read_tokens(target, cache, [whole[0][4:8], whole[1][9:13]], [4, 9])
    second = read_tokens(target, cache, [whole[0][8:12], whole[1][13:17]], [8, 13])
    for row, start in ((0, 4), (1, 9)):
        expected = target.forward(torch.tensor([whole[row]])).last_hidden[0, start:]
        # Some families take norms and softmax in float32 whatever their weights are.
        torch.testing.assert_close(torch.cat([first[row], second[row]]), expected, rtol=1e-4, atol=1e-5)


def test_rejected_tokens_leave_no_trace_when_rows_step_back_by_unequal_lengths():
    target = tiny.tiny_target("mistral", dtype=torch.float64)
    whole = [tokens_of(1, 12), tokens_of(2, 12)]
    cache = RowCache(2)
    read_prompts(target, cache, [whole[0][:5], whole[1][:7]])
    wrong = [whole[0][5:6] + tokens_of(8, 4), whole[1][7:10] + tokens_of(9, 2)]  # 1 and 3 tokens are right
    read_tokens(target, cache, wrong, [5, 7])
    out = read_tokens(target, cache, [whole[0][6:8], whole[1][10:12]], [6, 10])
    for row, end in ((0, 8), (1, 12)):
        expected = target.forward(torch.tensor([whole[row][:end]])).last_hidden[0, -2:]
        torch.testing.assert_close(out[row], expected)


def test_a_freed_row_takes_a_shorter_prompt_and_the_others_keep_theirs():
    target = tiny.tiny_target(dtype=torch.float64)
    old, kept, new = tokens_of(1, 11), tokens_of(2, 9), tokens_of(3, 6)
    cache = RowCache(2)
    read_prompts(target, cache, [old, kept[:-1]])
    read_prompts(target, cache, [new[:-1]], rows=[0])
    out = read_tokens(target, cache, [new[-1:], kept[-1:]], [5, 8])
    for row, whole in ((0, new), (1, kept)):
        torch.testing.assert_close(out[row, 0], target.forward(torch.tensor([whole])).last_hidden[0, -1])


def test_selected_rows_go_on_as_before():
    target = tiny.tiny_target(dtype=torch.float64)
    whole = [tokens_of(seed, 8 + seed) for seed in range(4)]
    cache = RowCache(4)
    read_prompts(target, cache, [tokens[:-1] for tokens in whole])
    keep = survivors([True, False, True, True])
    cache.select(keep)
    out = read_tokens(target, cache, [whole[row][-1:] for row in keep], [len(whole[row]) - 1 for row in keep])
    for i, row in enumerate(keep):
        torch.testing.assert_close(out[i, 0], target.forward(torch.tensor([whole[row]])).last_hidden[0, -1])


def test_survivors_stay_in_place_or_fill_holes_from_the_end():
    assert survivors([True, True]) == [0, 1]
    assert survivors([False, True, False, True, True]) == [4, 1, 3]
    assert survivors([False, False]) == []


def test_buffers_grow_by_whole_steps_and_keep_what_they_hold():
    target = tiny.tiny_target(dtype=torch.float64)
    tokens = tokens_of(1, 120)
    cache = RowCache(1)
    read_prompts(target, cache, [tokens[:100]])
    layer = cache.layers[0]
    assert layer.keys.shape[2] == GROWTH
    before = layer.keys[:, :, :100].clone()
    layer._reserve(GROWTH + 1)
    assert layer.keys.shape[2] == 2 * GROWTH
    assert torch.equal(layer.keys[:, :, :100], before)
    out = read_tokens(target, cache, [tokens[100:]], [100])
    torch.testing.assert_close(out[0], target.forward(torch.tensor([tokens])).last_hidden[0, 100:])


def test_positions_of_another_batch_size_are_refused():
    with pytest.raises(ValueError, match="2 rows"):
        RowCache(2).place(torch.tensor([[0]]))


@pytest.mark.parametrize("before", [None, "0"])
def test_grouped_attention_leaves_the_environment_as_it_was(monkeypatch, before):
    monkeypatch.delenv(FORCE_GQA, raising=False) if before is None else monkeypatch.setenv(FORCE_GQA, before)
    with pytest.raises(KeyError), grouped_attention(torch.device("cpu")):
        assert os.environ[FORCE_GQA] == "1"
        raise KeyError
    with grouped_attention(torch.device("cuda")):
        assert os.environ.get(FORCE_GQA) == before
    assert os.environ.get(FORCE_GQA) == before


def test_keys_are_not_copied_for_every_query_head(monkeypatch):
    target = tiny.tiny_target("qwen3")
    repeated = []
    original = sdpa_attention.repeat_kv
    monkeypatch.setattr(sdpa_attention, "repeat_kv", lambda *args: repeated.append(args) or original(*args))
    for context, copies in ((nullcontext(), True), (grouped_attention(torch.device("cpu")), False)):
        cache = RowCache(1)
        with context:
            read_prompts(target, cache, [[5, 6, 7]])
            read_tokens(target, cache, [[8, 9]], [3])
        assert bool(repeated) is copies
        repeated.clear()
