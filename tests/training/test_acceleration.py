"""FlexAttention and torch.compile compute what plain PyTorch does, and are refused where they cannot train."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import fitting
from drafting import blocks_at, random_batch, tiny_drafter
from draftlab.blocks import BlockSpec, draw_anchors, lay_out
from draftlab.data.packing import pack
from draftlab.drafters import attention
from draftlab.drafters.attention import BlockAttention, FlexBlockAttention
from draftlab.training.acceleration import GRAPHS_PER_FUNCTION, accelerate, compile_layers

families = pytest.mark.parametrize("head", ["markov", "dflash", "eagle3", "mtp"])


@families
def test_compiled_layers_compute_and_train_as_plain_ones(head):
    """The compiler's own front ends, which trace the same graphs as on a GPU; weights keep their names."""
    results = []
    for compiled in (False, True):
        drafter = tiny_drafter(head, num_layers=1)
        names = list(drafter.state_dict())
        if compiled:
            compile_layers(drafter, backend="aot_eager")
        for lengths, anchors in (((12, 9), [[2, 5, 8], [1, 3, 6]]), ((8, 7), [[2, 5], [1, 3]])):  # other sizes
            batch = random_batch(drafter.spec, lengths)
            output = drafter(batch, blocks_at(batch, drafter, anchors)).hidden
            output.square().sum().backward()
        gradients = {name: p.grad for name, p in drafter.named_parameters() if p.grad is not None}
        assert list(drafter.state_dict()) == names
        results.append((output, gradients))
    (plain, expected), (fast, got) = results
    torch.testing.assert_close(fast, plain, rtol=1e-6, atol=1e-9)
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-6, atol=1e-9)


SIZES = (
    ((12, 9), [[2, 5, 8], [1, 3, 6]]),
    ((8, 7), [[2, 5], [1, 3]]),
    ((14, 11), [[2, 5, 8], [1, 3, 6]]),
    ((6,), [[2]]),
)


def test_batches_of_any_size_end_in_few_graphs_in_training_and_validation():
    """Past PyTorch's limit a function runs uncompiled without a word; six layers share one."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    drafter = tiny_drafter("markov", num_layers=6)
    compile_layers(drafter, backend=counter)
    counts = []
    for lengths, anchors in SIZES * 2:
        batch = random_batch(drafter.spec, lengths)
        for training in (True, False):
            with torch.set_grad_enabled(training), torch.autocast("cpu", torch.bfloat16):
                drafter(batch, blocks_at(batch, drafter, anchors))
        counts.append(counter.frame_count)
    assert counts[-1] == counts[len(SIZES) - 1] <= 2 * GRAPHS_PER_FUNCTION, "nothing is compiled again"


@torch.no_grad()
def test_flex_attention_is_not_compiled_again_for_batches_of_another_size(monkeypatch):
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(attention.flex_attention, dynamic=True, backend=counter)
    monkeypatch.setattr(attention, "flex_attention", compiled)
    for tokens, blocks in ((200, 40), (210, 41), (333, 50), (150, 20), (410, 33), (222, 22)):
        anchors = torch.arange(1, blocks + 1).expand(2, -1)
        pattern = anchors, torch.ones_like(anchors, dtype=torch.bool), 7, torch.ones(2, tokens, dtype=torch.bool)
        queries, keys, context = (
            torch.randn(2, 4, blocks * 7, 16),
            torch.randn(2, 2, blocks * 7, 16),
            torch.randn(2, 2, tokens, 16),
        )
        expected = BlockAttention(*pattern)(queries, keys, keys, context, context)
        torch.testing.assert_close(FlexBlockAttention(*pattern)(queries, keys, keys, context, context), expected)
    assert counter.frame_count <= 2


@torch.no_grad()
@families
@pytest.mark.parametrize("packed", [False, True])
def test_flex_attention_computes_what_the_groups_of_blocks_do(head, packed):
    """Case 26: forward only, since FlexAttention has no backward pass on a CPU."""
    drafter = tiny_drafter(head, BlockSpec(3, 4))
    batch = random_batch(drafter.spec, (12, 9, 6))
    batch = pack(batch, 16) if packed else batch
    anchors = draw_anchors(batch.loss_mask, 4, torch.Generator().manual_seed(0), batch.document_ids)
    blocks = lay_out(batch, *anchors, drafter.block, drafter.spec.mask_token_id)
    plain = drafter(batch, blocks).hidden[blocks.valid]
    drafter.attention = FlexBlockAttention
    torch.testing.assert_close(drafter(batch, blocks).hidden[blocks.valid], plain, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_flex_attention_takes_mixed_dtypes_as_autocast_leaves_them():
    anchors, valid = torch.tensor([[2, 4]]), torch.ones(1, 2, dtype=torch.bool)
    pattern = anchors, valid, 3, torch.ones(1, 7, dtype=torch.bool)
    queries, keys, context_keys = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 7, 8)
    values, context_values = torch.randn(1, 2, 6, 8).bfloat16(), torch.randn(1, 2, 7, 8).bfloat16()
    got = FlexBlockAttention(*pattern)(queries, keys, values, context_keys, context_values)
    exact = BlockAttention(*pattern)(queries, keys, values.float(), context_keys, context_values.float())
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("attention", "compiled", "message"),
    [
        ("flash", False, "trainer.attention must be one of sdpa, flex, got 'flash'"),
        ("flex", False, "trainer.attention=flex trains on CUDA only"),
        ("sdpa", True, "trainer.compile=true is for CUDA"),
    ],
)
def test_what_cannot_train_on_the_device_is_refused(attention, compiled, message):
    with pytest.raises(ValueError, match=message):
        accelerate(fitting.tiny_module(fitting.fitting_target()).drafter, attention, compiled, "cpu")


def test_what_a_gpu_can_do_is_set_up_by_name():
    drafter = fitting.tiny_module(fitting.fitting_target()).drafter
    accelerate(drafter, "sdpa", False, "cpu")
    assert drafter.attention is None
    accelerate(drafter, "flex", False, "cuda:0")
    assert drafter.attention is FlexBlockAttention
