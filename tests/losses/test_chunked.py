"""A chunked sum equals the sum that autograd takes at once, whatever the chunks."""

import pytest
import torch

from draftlab.losses.chunked import chunked_sum

ROWS, D, W = 7, 4, 6


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def inputs():
    return numbers(ROWS, 3, D), numbers(ROWS, 3, seed=1), numbers(D, W, seed=2)


def evaluate(weight):
    return lambda rows, x, y: (rows.add(1).view(-1, 1) * torch.logsumexp(x @ weight, -1) * y.sin()).sum()


def gradients(value, *tensors, scale=0.3):
    return torch.autograd.grad(value * scale, tensors, retain_graph=True)


@pytest.mark.parametrize("size", [1, 3, ROWS, ROWS + 5])
def test_value_and_gradients_are_those_of_all_rows_at_once(size):
    x, y, weight = inputs()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    total = chunked_sum(evaluate(weight), order.split(size), (x, y), (weight,))
    twin = evaluate(weight)(torch.arange(ROWS), x, y)
    torch.testing.assert_close(total, twin)
    for got, expected in zip(gradients(total, x, y, weight), gradients(twin, x, y, weight), strict=True):
        torch.testing.assert_close(got, expected)


def test_rows_in_no_chunk_and_what_is_not_used_get_a_gradient_of_zero():
    x, y, weight = inputs()
    unused = numbers(2, seed=5)
    total = chunked_sum(evaluate(weight), [torch.tensor([0, 2])], (x, y), (weight, unused))
    of_x, of_unused = gradients(total, x, unused)
    assert of_x[[0, 2]].abs().amin() > 0 and not of_x[[1, 3, 4, 5, 6]].any() and not of_unused.any()


def test_what_is_none_or_learns_nothing_is_passed_on():
    x, _, weight = inputs()
    fixed = x.detach()
    total = chunked_sum(
        lambda rows, x, y: (x @ weight).sum() + (y is None), torch.arange(ROWS).split(2), (fixed, None), (weight,)
    )
    torch.testing.assert_close(gradients(total, weight, scale=1.0)[0], fixed.sum((0, 1)).unsqueeze(-1).expand(D, W))
    assert total.item() == pytest.approx((fixed @ weight).sum().item() + 4)


def test_a_second_backward_pass_adds_the_same_again_and_a_gradient_of_the_gradient_is_refused():
    x, y, weight = inputs()
    total = chunked_sum(evaluate(weight), torch.arange(ROWS).split(2), (x, y), (weight,))
    total.backward(retain_graph=True)
    once = weight.grad.clone()
    total.backward()
    torch.testing.assert_close(weight.grad, 2 * once)
    total = chunked_sum(evaluate(weight), torch.arange(ROWS).split(2), (x, y), (weight,))
    (of_x,) = torch.autograd.grad(total, x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        of_x.sum().backward()


def test_without_gradients_it_is_the_plain_sum():
    x, y, weight = inputs()
    with torch.no_grad():
        total = chunked_sum(evaluate(weight), torch.arange(ROWS).split(2), (x, y), (weight,))
        torch.testing.assert_close(total, evaluate(weight)(torch.arange(ROWS), x, y))
    assert not total.requires_grad


def test_nothing_of_a_chunk_outlives_it():
    """Each chunk's graph is gone before the next is made: that is what bounds memory."""
    x, y, weight = inputs()
    made = []

    def watched(rows, x, y):
        logits = x @ weight
        made.append(torch.utils.weak.WeakIdRef(logits))
        assert all(earlier() is None for earlier in made[:-1])
        return torch.logsumexp(logits, -1).sum()

    chunked_sum(watched, torch.arange(ROWS).split(2), (x, y), (weight,)).backward()
    assert len(made) == 4


def test_no_chunk_is_refused():
    with pytest.raises(ValueError, match="at least one chunk"):
        chunked_sum(lambda rows: rows.sum(), [], (), ())
