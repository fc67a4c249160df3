"""A drafter started from its target holds the target's own values, and odd targets are refused by name."""

from functools import partial

import pytest
import torch

from draftlab.blocks import BlockSpec
from draftlab.drafters import MTP, DSpark, Eagle3
from draftlab.heads import MarkovHead
from draftlab.training.warm_start import WarmStart, check_warm_start, principal_codes, warm_start
from tiny import tiny_target


def started(family: str, num_layers: int = 1, parts: WarmStart | None = None, **sizes):
    target = tiny_target(family)
    drafter = DSpark(target.spec, BlockSpec(3), partial(MarkovHead, rank=8), num_layers=num_layers, **sizes)
    warm_start(drafter.attach(target.ends), target, parts or WarmStart(layers=True, context=True, head=True))
    return drafter, target


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_values_of_the_context_start_as_the_targets_own(family):
    """Layers 0-2 of 4 are tapped, so the one draft layer is layer 3 and reads what layer 3 reads; gemma stores norms less 1."""
    drafter, target = started(family)
    seen = []
    last = target.layers[-1]
    hook = last.self_attn.v_proj.register_forward_hook(lambda module, args, output: seen.append(output))
    output = target(torch.tensor([[5, 6, 7, 8, 9, 10]]))
    hook.remove()
    ours = drafter.layers[0].self_attn.v_proj(drafter._context(output.features))
    # The other entries of fc are small noise, so the two agree up to that.
    correlation = torch.corrcoef(torch.stack([ours.flatten(), seen[0].flatten()]))[0, 1]
    assert correlation > 0.999
    assert (ours - seen[0]).abs().mean() < 0.03 * seen[0].abs().mean()


def test_the_last_layers_are_copied_in_order_and_not_shared():
    drafter, target = started("llama", num_layers=2)
    for ours, theirs in zip(drafter.layers, target.layers[-2:], strict=True):
        assert torch.equal(ours.mlp.up_proj.weight, theirs.mlp.up_proj.weight)
        assert torch.equal(ours.self_attn.q_norm.weight, torch.ones_like(ours.self_attn.q_norm.weight))
        assert ours.mlp.up_proj.weight.data_ptr() != theirs.mlp.up_proj.weight.data_ptr()


EVERYTHING = WarmStart(layers=True, context=True, head=True)


def started_chain(kind, family: str, num_layers: int = 1, **sizes):
    target = tiny_target(family)
    drafter = kind(target.spec, BlockSpec(3), num_layers=num_layers, **sizes)
    check_warm_start(drafter, EVERYTHING)
    warm_start(drafter.attach(target.ends), target, EVERYTHING)
    return drafter, target


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_eagle3_starts_with_the_last_layers_values_of_the_deepest_tapped_state(family):
    """Its wide projections read that state as layer 3 of 4 reads it, and of the embedding next to nothing."""
    drafter, target = started_chain(Eagle3, family)
    seen = []
    hook = target.layers[-1].self_attn.v_proj.register_forward_hook(lambda module, args, output: seen.append(output))
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    output = target(ids)
    hook.remove()
    layer = drafter.layers[0]
    pairs = drafter.pair(drafter.states(output.features, None), target.ends.embed(ids.roll(-1, dims=1)))
    ours = layer.self_attn.v_proj(layer.normed(pairs))
    assert torch.corrcoef(torch.stack([ours.flatten(), seen[0].flatten()]))[0, 1] > 0.998
    assert torch.equal(layer.input_layernorm.weight, torch.ones_like(layer.input_layernorm.weight))
    noise = layer.self_attn.v_proj.weight[:, :32]
    assert 0 < noise.abs().max() < 0.02 and torch.equal(layer.mlp.up_proj.weight, target.layers[-1].mlp.up_proj.weight)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_mtp_starts_by_passing_the_targets_last_hidden_state_on(family):
    drafter, target = started_chain(MTP, family, num_layers=2)
    last_hidden = target(torch.tensor([[5, 6, 7, 8, 9, 10]])).last_hidden
    passed = drafter.pair(drafter.states(None, last_hidden), torch.zeros_like(last_hidden))
    expected = last_hidden / last_hidden.square().mean(-1, keepdim=True).sqrt()
    assert (passed - expected).abs().mean() < 0.03 * expected.abs().mean()
    for ours, theirs in zip(drafter.layers, target.layers[-2:], strict=True):
        assert torch.equal(ours.self_attn.k_proj.weight, theirs.self_attn.k_proj.weight)


@pytest.mark.parametrize("kind", [Eagle3, MTP])
def test_chains_that_cannot_take_the_targets_layers_are_refused_by_name(kind):
    for sizes in ({"num_layers": 5}, {"intermediate_size": 48}):
        with pytest.raises(ValueError, match=r"trainer\.warm_start\.layers copies .*" + next(iter(sizes))):
            started_chain(kind, "llama", **sizes)
    with pytest.raises(ValueError, match=r"trainer\.warm_start\.layers"):
        started_chain(kind, "gpt_neox")


def relative_distances(points: torch.Tensor) -> torch.Tensor:
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return distances / distances.mean()


def test_codes_keep_the_geometry_of_the_embedding():
    embedding = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))
    codes = principal_codes(embedding, 12)
    assert codes.square().mean().sqrt().item() == pytest.approx(1.0)
    torch.testing.assert_close(relative_distances(codes), relative_distances(embedding), atol=1e-4, rtol=1e-4)
    first = principal_codes(embedding, 3)
    torch.testing.assert_close((first / first.norm()).abs(), (codes[:, :3] / codes[:, :3].norm()).abs())
    assert principal_codes(embedding, 20)[:, 12:].abs().max() == 0


def test_parts_that_are_switched_off_stay_random():
    torch.manual_seed(0)
    drafter, _ = started("llama", parts=WarmStart(head=True))
    torch.manual_seed(0)
    random, _ = started("llama", parts=WarmStart())
    assert torch.equal(drafter.fc.weight, random.fc.weight)
    assert torch.equal(drafter.layers[0].mlp.up_proj.weight, random.layers[0].mlp.up_proj.weight)
    assert not torch.equal(drafter.markov_head.markov_w1.weight, random.markov_head.markov_w1.weight)


@pytest.mark.parametrize(
    ("family", "options"), [("gpt_neox", {}), ("llama", {"num_layers": 5}), ("llama", {"intermediate_size": 48})]
)
def test_a_target_built_otherwise_is_refused_with_what_to_do(family, options):
    with pytest.raises(ValueError, match=r"trainer\.warm_start\.layers"):
        started(family, **options)
