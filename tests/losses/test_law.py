"""The draft's law with its gradient by hand, against autograd over the plain formulas in float64."""

import pytest
import torch

from draftlab.acceptance import accept_rate
from draftlab.losses.law import draft_law

S, W = 5, 9


def numbers(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case():
    logits, labels = 3 * numbers(S, W, seed=0), torch.tensor([0, 8, 3, 3, 5])
    return logits.requires_grad_(), labels, torch.softmax(2 * numbers(S, W, seed=1), -1)


def twin(logits, labels, target):
    log_probs = torch.log_softmax(logits, -1)
    probs = log_probs.exp()
    return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1), accept_rate(probs, target), probs, log_probs


def pushed(parts, used):
    """A scalar with another weight on every number of the parts of these indices."""
    return sum((numbers(*parts[i].shape, seed=10 + i) * parts[i]).sum() for i in used)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1), (2,), (3,), (0, 1, 2, 3)], ids=str)
def test_values_and_gradients_equal_autograds(used):
    logits, labels, target = case()
    parts, expected = draft_law(logits, labels, target, 3 in used), twin(logits, labels, target)
    for i in used:
        torch.testing.assert_close(parts[i], expected[i])
    (got,) = torch.autograd.grad(pushed(parts, used), logits)
    torch.testing.assert_close(got, torch.autograd.grad(pushed(expected, used), logits)[0])


def test_a_tie_of_both_laws_pushes_as_the_minimum_does():
    logits, labels, _ = case()
    target = torch.softmax(logits.detach(), -1).clone()
    target[:, :4] *= 0.5
    for law in (draft_law(logits, labels, target, False)[1], twin(logits, labels, target)[1]):
        law.sum().backward()
    # Both sides have added the same gradient.
    (one,) = torch.autograd.grad(draft_law(logits, labels, target, False)[1].sum(), logits)
    torch.testing.assert_close(logits.grad, 2 * one)


def test_without_a_target_there_is_no_rate_and_log_p_is_made_where_asked_for_only():
    logits, labels, _ = case()
    picked, rate, probs, log_probs = draft_law(logits, labels, None, False)
    assert rate is None and log_probs is None
    torch.testing.assert_close(probs, torch.softmax(logits, -1))
    (got,) = torch.autograd.grad(picked.sum(), logits)
    torch.testing.assert_close(got, torch.nn.functional.one_hot(labels, W) - probs)


def test_a_gradient_of_the_gradient_is_refused():
    logits, labels, target = case()
    (gradient,) = torch.autograd.grad(draft_law(logits, labels, target, False)[1].sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        gradient.sum().backward()
