"""Explicit masks [B, 1, Q, K]: equal to plain causal reading for every family, windows and caches included."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import DynamicCache

import tiny
from draftlab.target.attention import LayerMasks

LENGTH = 20
IDS = torch.randint(4, 64, (2, LENGTH), generator=torch.Generator().manual_seed(1))
POSITIONS = torch.arange(LENGTH).expand(2, -1)


def causal(queries: torch.Tensor, slots: int) -> torch.Tensor:
    """Bool [B, 1, Q, slots]: a query at position p sees the slots up to p."""
    return (torch.arange(slots) <= queries[..., None])[:, None]


@pytest.mark.parametrize("family", [*tiny.FAMILIES, *tiny.NESTED])
def test_an_explicit_causal_mask_reads_as_no_mask(family):
    """With windows of 6 and 20 tokens, a layer that got the full mask would differ."""
    target = tiny.tiny_target(family)
    explicit = target(IDS, positions=POSITIONS, attention_mask=causal(POSITIONS, LENGTH))
    torch.testing.assert_close(explicit.features, target(IDS).features)
    torch.testing.assert_close(explicit.last_hidden, target(IDS).last_hidden)


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3", "gemma4_unified"])
def test_windowed_layers_do_not_see_past_their_window(family):
    """The guard of the test above: with the given mask in all layers the reading does differ."""
    target = tiny.tiny_target(family)
    target._masks.per_layer = lambda *_: {}
    wrong = target(IDS, positions=POSITIONS, attention_mask=causal(POSITIONS, LENGTH))
    assert not torch.allclose(wrong.features, target(IDS).features, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt_neox", "gpt2", "opt"])
def test_reading_in_two_parts_through_a_cache_equals_reading_at_once(family):
    target = tiny.tiny_target(family)
    cache, whole = DynamicCache(), target(IDS)
    for start, end in ((0, 12), (12, LENGTH)):
        positions = POSITIONS[:, start:end]
        part = target(IDS[:, start:end], positions, causal(positions, end), cache)
        torch.testing.assert_close(part.features, whole.features[:, start:end])
        torch.testing.assert_close(part.last_hidden, whole.last_hidden[:, start:end])


def test_a_query_that_sees_nothing_does_not_spread_nan(target):
    mask = causal(POSITIONS, LENGTH).clone()
    mask[1, :, 15:] = False
    output = target(IDS, positions=POSITIONS, attention_mask=mask)
    assert output.features.isfinite().all()
    torch.testing.assert_close(output.features[1, :15], target(IDS).features[1, :15])
    assert target._masks.full(mask, torch.float32).any(-1).all(), "some back ends give NaN to a query that sees nothing"


def test_an_explicit_mask_without_positions_is_refused(target):
    with pytest.raises(ValueError, match="needs the positions"):
        target(IDS, attention_mask=causal(POSITIONS, LENGTH))


def config(**fields):
    """A stand-in for a transformers config."""
    built = SimpleNamespace(num_hidden_layers=2, _attn_implementation="sdpa", **fields)
    built.get_text_config = lambda decoder: built
    return built


def test_chunked_layers_see_their_own_chunk_only():
    masks = LayerMasks(config(layer_types=["chunked_attention", "full_attention"], attention_chunk_size=4))
    built = masks.per_layer(causal(POSITIONS, LENGTH), POSITIONS, torch.float32)
    assert set(built) == {0}
    for q in range(LENGTH):
        expected = [k for k in range(LENGTH) if k <= q and k // 4 == q // 4]
        assert built[0][0, 0, q].nonzero().flatten().tolist() == expected


def test_recurrent_layers_are_refused_by_name():
    masks = LayerMasks(config(layer_types=["linear_attention", "full_attention"]))
    with pytest.raises(ValueError, match="linear_attention"):
        masks.per_layer(causal(POSITIONS, LENGTH), POSITIONS, torch.float32)


def test_other_back_ends_get_additive_masks():
    """Eager attention adds the mask to the scores: a bool one would change them by 0 or 1 and hide nothing."""
    eager = config()
    eager._attn_implementation = "eager"
    mask = LayerMasks(eager).full(torch.tensor([[[[True, False]]]]), torch.float32)
    assert mask.tolist() == [[[[0.0, torch.finfo(torch.float32).min]]]]
