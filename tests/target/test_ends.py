"""TargetEnds: values of the two ends, sharing, and absence from checkpoints."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from draftlab.target import TargetEnds

V, D = 11, 4


@pytest.fixture
def tensors():
    return torch.randn(V, D), torch.randn(V, D), torch.randn(V)


def test_logits_are_scaled_biased_and_capped_by_hand(tensors):
    embedding, head, bias = tensors
    ends = TargetEnds(embedding, head, bias, embedding_scale=3.0, logit_scale=0.5, logit_softcap=2.0)
    hidden = torch.randn(2, 3, D)
    for b in range(2):
        for t in range(3):
            raw = torch.stack([0.5 * (head[v] @ hidden[b, t] + bias[v]) for v in range(V)])
            torch.testing.assert_close(ends.logits(hidden)[b, t], 2.0 * torch.tanh(raw / 2.0))
    ids = torch.tensor([[1, 5]])
    torch.testing.assert_close(ends.embed(ids), 3.0 * embedding[ids])


def test_reduced_vocabulary_gives_the_same_logits_at_its_columns(tensors):
    ends = TargetEnds(*tensors, logit_softcap=2.0)
    hidden, ids = torch.randn(5, D), torch.tensor([0, 4, 10])
    torch.testing.assert_close(ends.logits(hidden, ids), ends.logits(hidden)[:, ids])
    assert ends.head_rows(ids).is_contiguous()
    assert ends.head_rows(ids) is ends.head_rows(ids), "the rows are gathered once"


def test_another_selection_or_another_head_is_never_answered_from_the_kept_rows(tensors):
    ends = TargetEnds(*tensors)
    hidden = torch.randn(5, D)
    for ids in (torch.tensor([0, 4]), torch.tensor([1, 2])):
        torch.testing.assert_close(ends.logits(hidden, ids), ends.logits(hidden)[:, ids])
    before = ends.logits(hidden, ids)
    ends.share(tensors[0], tensors[1] + 1.0, tensors[2])
    assert not torch.allclose(ends.logits(hidden, ids), before)


def test_the_embedding_scale_is_rounded_to_the_dtype_of_the_target():
    """Gemma's √3072 = 55.4256 is 55.5 in bfloat16, and 9 · 55.5 rounds to 500 where 9 · 55.4256 rounds to 498."""
    ends = TargetEnds(torch.full((2, 2), 9.0, dtype=torch.bfloat16), embedding_scale=55.4256)
    assert ends.embed(torch.tensor(0))[0].item() == 500.0


def test_ends_are_absent_from_checkpoints_parameters_and_buffers(tensors):
    owner = nn.Module()
    owner.ends, owner.layer = TargetEnds(*tensors), nn.Linear(2, 2)
    assert set(owner.state_dict()) == {"layer.weight", "layer.bias"}
    assert len(list(owner.parameters())) == 2 and not list(owner.buffers())


def test_tied_ends_stay_one_tensor_when_moved_or_cast(tensors):
    """Case 14."""
    owner = nn.Module()
    owner.ends = TargetEnds(tensors[0], tensors[0])
    assert owner.ends.tied and owner.ends.embedding.data_ptr() == tensors[0].data_ptr()
    owner.double()
    assert owner.ends.tied and owner.ends.embedding.dtype == torch.float64
    untied = TargetEnds(*tensors).double()
    assert not untied.tied and untied.head.dtype == untied.head_bias.dtype == torch.float64


def test_gradients_flow_through_logits_into_hidden_but_not_into_the_head(tensors):
    ends = TargetEnds(*tensors)
    hidden = torch.randn(3, D, requires_grad=True)
    ends.logits(hidden).square().sum().backward()
    assert hidden.grad.abs().sum() > 0
    assert ends.head.grad is None and not ends.head.requires_grad


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\[V, D\]"):
        TargetEnds(torch.zeros(V, D), torch.zeros(V + 1, D))
