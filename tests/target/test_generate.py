"""Plain generation: equal to a loop over argmax, ended by any end token, repeatable, and free of hidden penalties."""

from __future__ import annotations

import pytest
import torch

import tiny
from draftlab.sampling import Sampling
from draftlab.target import FrozenTarget

PROMPTS = [[1, 20, 21, 22, 23], [1, 30], [40, 41, 42]]
GREEDY = Sampling(temperature=0.0)


def greedy_loop(model, prompt: list[int], max_new_tokens: int, eos: tuple[int, ...]) -> list[int]:
    """One row, no padding, no cache, the argmax of the model's own logits."""
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        tokens.append(model(torch.tensor([tokens])).logits[0, -1].argmax().item())
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt2", "gpt_neox"])
def test_greedy_answers_of_unequal_prompts_equal_a_loop_over_argmax(family):
    target = tiny.tiny_target(family)
    expected = [greedy_loop(target.model, prompt, 12, (2,)) for prompt in PROMPTS]
    assert target.generate(PROMPTS, GREEDY, max_new_tokens=12) == expected


@pytest.mark.parametrize("order", [1, -1])
def test_an_answer_ends_with_the_first_of_several_end_tokens(order):
    free = tiny.tiny_target(spec={"eos_token_ids": (0,)}).generate(PROMPTS, GREEDY, 12)
    ends = (free[0][3], free[1][5])[::order]
    target = tiny.tiny_target(spec={"eos_token_ids": ends})
    expected = [greedy_loop(target.model, prompt, 12, ends) for prompt in PROMPTS]
    assert target.generate(PROMPTS, GREEDY, 12) == expected
    assert expected[0][-1] in ends and len(expected[0]) <= 4 and len(expected[1]) <= 6


def test_end_tokens_come_from_the_generation_config_when_the_spec_names_none():
    model = tiny.tiny_model()
    model.generation_config.eos_token_id = [7, 9]
    target = FrozenTarget(model, tiny.tiny_spec(model, eos_token_ids=()))
    assert target.eos_token_ids == target.spec.eos_token_ids == (7, 9)


def test_penalties_suggested_by_the_models_files_are_not_applied():
    model = tiny.tiny_model()
    expected = [greedy_loop(model, prompt, 12, (2,)) for prompt in PROMPTS]
    model.generation_config.repetition_penalty = 50.0
    model.generation_config.top_k = 1
    target = FrozenTarget(model, tiny.tiny_spec(model))
    assert target.generate(PROMPTS, GREEDY, 12) == expected
    drawn = {tuple(target.generate([[1, 20]], Sampling(), 4, seed=seed)[0]) for seed in range(20)}
    assert len(drawn) > 5, "top_k of the files would leave one answer"


def test_a_seed_repeats_the_draws_and_leaves_the_global_random_state_alone(target):
    state = torch.get_rng_state()
    first, second = (target.generate(PROMPTS, Sampling(), 8, seed=3) for _ in range(2))
    assert first == second != target.generate(PROMPTS, Sampling(), 8, seed=4)
    assert torch.equal(torch.get_rng_state(), state)


def test_tokens_are_drawn_from_the_law_that_the_sampling_says(target):
    """Frequencies of 4,000 first tokens against the transformed law, top-p and top-k included."""
    from draftlab.sampling import probs

    law = Sampling(temperature=0.8, top_k=6, top_p=0.9)
    expected = probs(target.model(torch.tensor([PROMPTS[0]])).logits[0, -1], law)
    drawn = target.generate([PROMPTS[0]] * 4000, law, max_new_tokens=1, seed=0)
    counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=64) / 4000
    assert (counts - expected).abs().max() < 0.03
    assert (expected > 0).sum() > 1 and counts[expected == 0].sum() == 0


def test_a_generated_mask_id_stays_in_the_answer():
    """Case 15: the mask id is an ordinary token to the target."""
    target = tiny.tiny_target("phi")
    target.model.lm_head.bias[tiny.MASK] = 1000.0
    assert target.generate([[1, 20]], GREEDY, 5) == [[tiny.MASK] * 5]


@pytest.mark.parametrize("prompts", [[], [[1], []]])
def test_an_empty_prompt_is_refused(target, prompts):
    with pytest.raises(ValueError, match="at least one"):
        target.generate(prompts, GREEDY, 4)
