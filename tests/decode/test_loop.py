"""The batched loop: equal to plain greedy decoding, stop tokens, truncation, counts, refill; cases 16, 22 and 15."""

from __future__ import annotations

import itertools

import pytest
import torch

import tiny
from draftlab.decode.loop import Decoder, DecodeSettings, plain_decode, speculative_decode
from draftlab.sampling import Sampling
from scripted import ForetellingDrafter, ScriptedDrafter

GREEDY = Sampling(temperature=0.0)
PROMPTS = [[5, 9, 11], [7, 8, 4, 30, 12, 9, 41], [20], [33, 6, 6, 18, 50], [61, 5, 44, 10]]


@pytest.fixture(scope="module")
def exact_target():
    return tiny.tiny_target(dtype=torch.float64)


def greedy_by_full_passes(target, prompt, num_tokens):
    """The slowest twin: the whole sequence through the target for every token."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(target.logits(target.forward(torch.tensor([tokens])).last_hidden)[0, -1].argmax()))
    return tokens[len(prompt) :]


def half_right_drafter(target, gamma=4, seed=0, prompts=PROMPTS, num_tokens=24, **options):
    """Drafts the target's own greedy successor of a token for most tokens it will meet, so accepted lengths vary."""
    table = torch.randn(gamma, 64, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for prompt in prompts:
        tokens = prompt[-1:] + greedy_by_full_passes(target, prompt, num_tokens)
        for previous, token in itertools.pairwise(tokens):
            if (previous + token + seed) % 3:
                table[:, previous, token] += 20
    return ScriptedDrafter(table, **options)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
def test_greedy_output_is_plain_greedy_output_token_for_token(exact_target, batch_size):
    """Case 22: float64, batch 1 and batched, rows with unequal accepted lengths, prompts that wait for a place."""
    drafter = half_right_drafter(exact_target)
    settings = DecodeSettings(max_new_tokens=24, sampling=GREEDY, batch_size=batch_size)
    generations = speculative_decode(exact_target, drafter, PROMPTS, settings)
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        assert generation.tokens == greedy_by_full_passes(exact_target, prompt, 24)
    accepted = {round.accepted for generation in generations for round in generation.rounds}
    assert len(accepted) >= 3, "the drafter must make rows advance unequally for this test to mean anything"
    assert [g.tokens for g in plain_decode(exact_target, PROMPTS, settings)] == [g.tokens for g in generations]


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3", "gpt_neox"])
def test_families_with_sliding_windows_decode_past_their_window(family):
    target = tiny.tiny_target(family)
    drafter = half_right_drafter(target, prompts=PROMPTS[:3])
    settings = DecodeSettings(max_new_tokens=20, sampling=GREEDY, batch_size=2)
    generations = speculative_decode(target, drafter, PROMPTS[:3], settings)
    for prompt, generation in zip(PROMPTS[:3], generations, strict=True):
        assert generation.tokens == greedy_by_full_passes(target, prompt, 20)


def test_the_drafter_sees_every_committed_token_once_and_never_the_anchor(exact_target):
    drafter = half_right_drafter(exact_target)
    settings = DecodeSettings(max_new_tokens=17, sampling=GREEDY, batch_size=2)
    generations = speculative_decode(exact_target, drafter, PROMPTS, settings)
    (cache,) = drafter.caches
    rows = cache.finished + cache.rows
    seen = {tuple(ids[: len(prompt)]): (ids, features) for ids, features in rows for prompt in PROMPTS}
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        ids, features = seen[tuple(prompt)]
        assert ids == (prompt + generation.tokens)[: len(ids)]
        expected = exact_target.forward(torch.tensor([ids])).features[0]
        torch.testing.assert_close(torch.stack(features), expected)


def test_the_batch_stays_full_while_prompts_wait_and_shrinks_after(exact_target):
    drafter = half_right_drafter(exact_target)
    speculative_decode(exact_target, drafter, PROMPTS, DecodeSettings(max_new_tokens=9, sampling=GREEDY, batch_size=3))
    sizes = drafter.caches[0].sizes
    assert sizes[0] == 3 and sizes == sorted(sizes, reverse=True) and sizes[-1] < 3
    settings = DecodeSettings(max_new_tokens=9, sampling=GREEDY, batch_size=3)
    unhindered = speculative_decode(exact_target, half_right_drafter(exact_target), PROMPTS, settings)
    narrow = DecodeSettings(max_new_tokens=9, sampling=GREEDY, batch_size=3, prefill_tokens=4)
    assert speculative_decode(exact_target, half_right_drafter(exact_target), PROMPTS, narrow) == unhindered


def test_output_ends_at_the_first_of_several_stop_tokens_even_inside_an_accepted_block(exact_target):
    """Case 16: nothing after the stop token, in the output or in the counts."""
    (plain,) = plain_decode(exact_target, PROMPTS[:1], DecodeSettings(max_new_tokens=24, sampling=GREEDY))
    stops = (plain.tokens[20], plain.tokens[6])
    first = min(plain.tokens.index(stop) for stop in stops)
    drafter = ForetellingDrafter(PROMPTS[0] + plain.tokens, block_size=8, confidence=0.5)
    settings = DecodeSettings(max_new_tokens=24, sampling=GREEDY, eos_token_ids=stops)
    (generation,) = speculative_decode(exact_target, drafter, PROMPTS[:1], settings)
    assert generation.tokens == plain.tokens[: first + 1] and generation.finish_reason == "stop"
    last = generation.rounds[-1]
    assert last.proposed == last.accepted == last.committed < 8, "the stop token must lie inside an accepted block"
    assert len(last.confidence) == len(last.expected) == last.proposed
    assert set(last.expected) == {1.0} and last.draft_top == (), "a drafter need not tell its law's top"
    assert 1 + sum(round.committed for round in generation.rounds) == len(generation.tokens)


def test_a_stop_token_as_the_corrected_token_counts_the_whole_block(exact_target):
    (plain,) = plain_decode(exact_target, PROMPTS[:1], DecodeSettings(max_new_tokens=2, sampling=GREEDY))
    wrong = torch.zeros(3, 64, 64, dtype=torch.float64)
    wrong[:, :, (plain.tokens[1] + 1) % 64] = 9
    settings = DecodeSettings(max_new_tokens=24, sampling=GREEDY, eos_token_ids=(plain.tokens[1],))
    (generation,) = speculative_decode(exact_target, ScriptedDrafter(wrong), PROMPTS[:1], settings)
    assert generation.tokens == plain.tokens and generation.finish_reason == "stop"
    (only,) = generation.rounds
    assert (only.proposed, only.accepted, only.committed) == (3, 0, 1)


def test_a_prompt_answered_by_a_stop_token_alone_has_no_round(exact_target):
    (plain,) = plain_decode(exact_target, PROMPTS[:1], DecodeSettings(max_new_tokens=1, sampling=GREEDY))
    settings = DecodeSettings(max_new_tokens=9, sampling=GREEDY, eos_token_ids=tuple(plain.tokens), batch_size=1)
    first, second = speculative_decode(exact_target, half_right_drafter(exact_target), PROMPTS[:2], settings)
    assert first.tokens == plain.tokens and first.finish_reason == "stop" and first.rounds == []
    assert second.tokens and second.finish_reason is not None


def test_a_round_cut_by_the_length_limit_counts_whole_and_its_output_is_truncated(exact_target):
    expected = greedy_by_full_passes(exact_target, PROMPTS[0], 24)
    drafter = ForetellingDrafter(PROMPTS[0] + expected, block_size=6)
    settings = DecodeSettings(max_new_tokens=3, sampling=GREEDY)
    (generation,) = speculative_decode(exact_target, drafter, PROMPTS[:1], settings)
    assert generation.tokens == expected[:3] and generation.finish_reason == "length"
    assert [(r.proposed, r.accepted, r.committed) for r in generation.rounds] == [(6, 6, 7)]


def test_a_mask_token_that_the_target_writes_stays_in_the_output(exact_target):
    """Case 15: the mask id is an ordinary token to the target."""
    head = exact_target.ends.head
    biased = tiny.tiny_target(dtype=torch.float64)
    with torch.no_grad():
        biased.model.lm_head.weight[tiny.MASK] = 4 * head[tiny.MASK].sign() * head.abs().mean()
    settings = DecodeSettings(max_new_tokens=40, sampling=Sampling(), eos_token_ids=(tiny.IM_END,))
    generator = torch.Generator().manual_seed(0)
    drafter = ScriptedDrafter(torch.zeros(2, 64, 64, dtype=torch.float64))
    generations = speculative_decode(biased, drafter, PROMPTS * 4, settings, generator)
    assert any(tiny.MASK in generation.tokens for generation in generations)


def test_the_same_seed_gives_the_same_answers_and_counts(exact_target):
    drafter = half_right_drafter(exact_target, confidence=0.25)
    settings = DecodeSettings(max_new_tokens=12, sampling=Sampling(top_p=0.9), batch_size=3)
    runs = [
        speculative_decode(exact_target, drafter, PROMPTS, settings, torch.Generator().manual_seed(7)) for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_the_clock_and_the_progress_call_cover_the_whole_run(exact_target):
    decoder = Decoder(exact_target, half_right_drafter(exact_target), DecodeSettings(12, GREEDY, batch_size=2))
    calls = []
    generations = decoder.run(PROMPTS, on_round=lambda finished, committed: calls.append((finished, committed)))
    assert sum(finished for finished, _ in calls) == len(PROMPTS)
    assert sum(committed for _, committed in calls) == sum(len(generation.tokens) for generation in generations)
    assert set(decoder.clock.seconds) == {"prefill", "draft", "verify"}


def test_no_prompts_give_no_answers(exact_target):
    assert speculative_decode(exact_target, half_right_drafter(exact_target), [], DecodeSettings()) == []


def test_bad_input_is_refused_before_anything_runs(exact_target):
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        plain_decode(exact_target, [[5], []], DecodeSettings(max_new_tokens=9))
    with pytest.raises(ValueError, match=r"prompt 0 has 250 tokens, .* max_position 256"):
        plain_decode(exact_target, [[5] * 250], DecodeSettings(max_new_tokens=20))
    for field in ("max_new_tokens", "batch_size", "prefill_tokens"):
        with pytest.raises(ValueError, match=f"{field} must be at least 1 and whole, got 0"):
            DecodeSettings(**{field: 0})
