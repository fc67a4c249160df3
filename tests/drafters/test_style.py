"""Draft layers in another family's style: equal to transformers' own Gemma 4 layer, told apart, and refused where wrong."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

from drafting import blocks_at, context_of, random_batch, tiny_drafter
from draftlab.blocks import BlockSpec
from draftlab.drafters import LayerStyle
from draftlab.drafters.attention import attend
from draftlab.drafters.layers import DraftLayer, LayerSizes, rotation
from draftlab.sampling import Sampling, probs
from draftlab.training.checkpoint import describe, require_same

GEMMA4 = LayerStyle(True, True, True, 1.0, "gelu_tanh", 0.25)
D, HEADS, HEAD_DIM = 24, 4, 16


def gemma4_config():
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 100.0}
    return Gemma4TextConfig(
        vocab_size=40, hidden_size=D, intermediate_size=30, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, num_global_key_value_heads=1, head_dim=6, global_head_dim=HEAD_DIM, attention_k_eq_v=True,
        layer_types=["full_attention"] * 2, hidden_size_per_layer_input=0, enable_moe_block=False, num_kv_shared_layers=0,
        rope_parameters={"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10.0}},
        attn_implementation="eager",
    )  # fmt: skip


def test_a_layer_in_gemma_4_style_equals_the_layer_of_transformers():
    config = gemma4_config()
    theirs = modeling_gemma4.Gemma4TextDecoderLayer(config, layer_idx=0).double()
    ours = DraftLayer(LayerSizes(D, HEADS, 1, HEAD_DIM, 30, config.rms_norm_eps, style=GEMMA4)).double()
    generator = torch.Generator().manual_seed(0)
    state = {name: torch.randn(value.shape, generator=generator).double() for name, value in ours.state_dict().items()}
    ours.load_state_dict(state)
    assert set(dict(theirs.state_dict())) == set(state)
    theirs.load_state_dict(state)
    x, positions = torch.randn(1, 5, D, generator=generator).double(), torch.arange(3, 8)[None]
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    cos, sin = modeling_gemma4.Gemma4TextRotaryEmbedding(config)(x, positions, "full_attention")
    mask = torch.zeros(1, 1, 5, 5).double().masked_fill(~causal, -torch.inf)
    expected = theirs(
        x, position_embeddings=(cos, sin), attention_mask=mask, position_ids=positions, shared_kv_states={}
    )
    turned = rotation(positions, HEAD_DIM, 100.0, GEMMA4.rotary_share)
    torch.testing.assert_close(turned[0][0].double(), cos, rtol=0, atol=1e-7)
    got = ours(x, turned, lambda queries, keys, values: attend(queries, keys, values, causal))
    torch.testing.assert_close(got, expected[0] if isinstance(expected, tuple) else expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("head", ["markov", "dflash", "eagle3"])
def test_decoding_in_gemma_4_style_uses_the_logits_of_training(head):
    drafter = tiny_drafter(head, BlockSpec(4, 3), style=GEMMA4, head_dim=16, num_kv_heads=1)
    batch, anchors = random_batch(drafter.spec), (6, 4)
    proposal = drafter.propose(context_of(batch, (0, 0), anchors), drafter.start(2, 30), Sampling(0.0))
    with torch.no_grad():
        for row, anchor in enumerate(anchors):
            batch.input_ids[row, anchor + 1 : anchor + 5] = proposal.tokens[row]
        blocks = blocks_at(batch, drafter, [[anchor] for anchor in anchors])
        logits = drafter.draft_logits(drafter(batch, blocks).hidden[:, 0], blocks.previous[:, 0])
    assert torch.equal(proposal.draft_probs, probs(logits, Sampling(0.0)))
    assert torch.equal(proposal.tokens, logits.argmax(-1))


def test_a_checkpoint_in_another_style_is_told_apart_though_its_tensors_fit():
    plain, other = tiny_drafter(), tiny_drafter(style=LayerStyle(activation="gelu_tanh"))
    assert other.state_dict().keys() == plain.state_dict().keys()
    assert "style" not in describe(plain)
    with pytest.raises(ValueError, match=r"style: expected \{\}, found \{'activation': 'gelu_tanh'\}"):
        require_same(plain, describe(other), "checkpoint x")
    with pytest.raises(ValueError, match=r"style: expected \{'activation': 'gelu_tanh'\}, found \{\}"):
        require_same(other, describe(plain), "checkpoint x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "relu"}, r"drafter\.style\.activation must be one of silu, gelu_tanh, got 'relu'"),
        ({"attention_scale": 0.0}, r"attention_scale must be positive, got 0\.0"),
        ({"rotary_share": 1.5}, r"rotary_share must lie in \(0, 1\], got 1\.5"),
    ],
)
def test_a_style_that_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LayerStyle(**options)


def test_the_default_style_changes_nothing():
    layer = DraftLayer(LayerSizes(D, HEADS, 2, 6, 30, 1e-6))
    assert not any("v_norm" in name or "feedforward" in name or "scalar" in name for name in layer.state_dict())
