"""Heads: the parallel, teacher-forced form against the unrolled one and against the formulas as loops (case 6)."""

from __future__ import annotations

import pytest
import torch

from drafting import HEADS, RANK, make_head
from draftlab.heads import MarkovHead, NoHead
from reference import unrolled_bias

V, W, D, G = 17, 11, 6, 5
SEQUENTIAL = ["markov", "gated", "rnn", "domino"]


def random_head(name, seed=0):
    head = make_head(name)(vocab_size=V, draft_vocab_size=W, hidden_size=D)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head.double()


def random_inputs(rows=3):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(rows, G, D, generator=generator, dtype=torch.float64)
    return hidden, torch.randint(0, V, (rows, G), generator=generator)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_the_parallel_bias_equals_the_left_to_right_unroll(name):
    head, (hidden, previous) = random_head(name), random_inputs()
    state, steps = head.start(len(hidden)), []
    for slot in range(G):
        bias, state = head.step(hidden[:, slot], previous[:, slot], state)
        steps.append(bias)
    torch.testing.assert_close(torch.stack(steps, dim=1), head.bias(hidden, previous), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_the_bias_is_the_formula_of_the_method(name):
    head, (hidden, previous) = random_head(name), random_inputs()
    expected = torch.stack([unrolled_bias(head, h, p) for h, p in zip(hidden, previous, strict=True)])
    torch.testing.assert_close(head.bias(hidden, previous), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "remembers"), [("markov", False), ("gated", False), ("rnn", True), ("domino", True)])
def test_only_recurrent_heads_remember_more_than_one_token(name, remembers):
    head, (hidden, previous) = random_head(name), random_inputs()
    changed = previous.clone()
    changed[:, 1] = (changed[:, 1] + 1) % V
    difference = (head.bias(hidden, previous) - head.bias(hidden, changed)).abs().amax(dim=(0, 2))
    assert difference[0] == 0, "an earlier slot must not see a later token"
    assert difference[1] > 1e-6
    assert bool((difference[2:] > 1e-9).all()) == remembers


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_training_starts_without_any_bias_but_with_a_gradient(name):
    head = make_head(name)(vocab_size=V, draft_vocab_size=W, hidden_size=D)
    hidden, previous = random_inputs()
    bias = head.bias(hidden.float(), previous)
    assert bias.shape == (3, G, W) and not bias.any()
    (bias * torch.randn_like(bias)).sum().backward()
    assert head.markov_w2.weight.grad.abs().sum() > 0


def test_no_head_has_neither_weights_nor_bias_nor_memory():
    head, (hidden, previous) = NoHead(V, W, D), random_inputs()
    assert not list(head.parameters()) and head.rank == 0
    assert head.bias(hidden, previous) is None and head.previous_features(previous) is None
    assert head.step(hidden[:, 0], previous[:, 0], head.start(3)) == (None, None)


def test_weights_have_the_names_and_shapes_of_released_checkpoints():
    shapes = {name: {k: tuple(v.shape) for k, v in random_head(name).state_dict().items()} for name in HEADS}
    tables = {"markov_w1.weight": (V, RANK), "markov_w2.weight": (W, RANK)}
    gate = {"gate_proj.weight": (RANK, D + RANK), "gate_proj.bias": (RANK,)}
    joint = {"joint_proj.weight": (3 * RANK, 2 * RANK + D), "joint_proj.bias": (3 * RANK,)}
    gru = {"gru.weight_ih": (3 * RANK, RANK + D), "gru.weight_hh": (3 * RANK, RANK)}
    gru |= {"gru.bias_ih": (3 * RANK,), "gru.bias_hh": (3 * RANK,)}
    expected = {"none": {}, "markov": tables, "gated": tables | gate, "rnn": tables | joint, "domino": tables | gru}
    assert shapes == expected


@pytest.mark.parametrize("name", ["rnn", "domino"])
def test_a_recurrent_head_reads_the_hidden_states_of_earlier_slots_and_of_none_later(name):
    head, (hidden, previous) = random_head(name), random_inputs()
    changed = hidden.clone()
    changed[:, 2] += 1.0
    difference = (head.bias(hidden, previous) - head.bias(changed, previous)).abs().amax(dim=(0, 2))
    assert not difference[:2].any() and bool((difference[2:] > 1e-9).all())


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_mixed_precision_keeps_the_unroll_and_the_parallel_form_together(name):
    """Under autocast some operations are bfloat16; float32 weights still get float32 gradients."""
    head, (hidden, previous) = random_head(name).float(), random_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bias, state, steps = head.bias(hidden.bfloat16(), previous), head.start(3), []
        for slot in range(G):
            step, state = head.step(hidden[:, slot].bfloat16(), previous[:, slot], state)
            steps.append(step)
    torch.testing.assert_close(torch.stack(steps, dim=1).float(), bias.float(), rtol=0.05, atol=0.1)
    bias.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in head.parameters())


def test_a_rank_below_one_is_refused_naming_the_choice_without_a_head():
    with pytest.raises(ValueError, match=r"head\.rank must be at least 1, got 0.*head=none"):
        MarkovHead(V, W, D, rank=0)
