"""A sum over chunks of rows whose gradient is taken chunk by chunk, in the forward pass.

    S(x, θ) = Σ_chunks f(x_chunk, θ)          ∂S/∂x and ∂S/∂θ are made right behind each f; the backward pass scales them

What f makes on its way (logits, laws) lives for one chunk at a time and is made once: no recomputation. The scale that a loss
gets later, as 1 / Σ w or an average over ranks, is not needed before the backward pass. It works for any f, by autograd over
the chunk. Scaled gradients of float16 training would reach it too late to keep small ones: use bfloat16. The module knows
nothing of losses or models.

    total = chunked_sum(lambda rows, x: (x @ weight).exp().sum(), torch.arange(8).split(2), (x,), (weight,))
    total.backward()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def chunked_sum(
    evaluate: Callable[..., Tensor],
    chunks: Sequence[Tensor],
    by_row: Sequence[Tensor | None],
    shared: Sequence[Tensor],
) -> Tensor:
    """Σ of ``evaluate(rows, *parts)`` over ``chunks`` [K] of row indices; a row may stand in one chunk only.

    Args:
        evaluate: a scalar from the rows of a chunk and their part of each of ``by_row``. It may keep what it likes of the values,
            but nothing of the graph.
        chunks: row indices, at least one chunk. by_row: tensors [rows, ...] that are differentiated, or None.
        shared: what ``evaluate`` uses as a whole and is differentiated too, as parameters; one it does not use gets a 0.

    Raises:
        ValueError: no chunk.
    """
    if not chunks:
        raise ValueError("a chunked sum needs at least one chunk of rows, got none")
    inputs = [*by_row, *shared]
    if not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)):
        return sum(evaluate(rows, *(None if x is None else x[rows] for x in by_row)) for rows in chunks)
    return _ChunkedSum.apply(evaluate, chunks, len(by_row), *inputs)


class _ChunkedSum(torch.autograd.Function):
    """Inputs are the tensors by row and then the shared ones; its saved tensors are the gradients of S."""

    @staticmethod
    def forward(ctx, evaluate, chunks, num_by_row: int, *inputs: Tensor | None) -> Tensor:
        wanted = ctx.needs_input_grad[3:]
        by_row, shared = inputs[:num_by_row], inputs[num_by_row:]
        totals = [
            torch.zeros_like(x) if need and i < num_by_row else None for i, (x, need) in _numbered(inputs, wanted)
        ]
        value = None
        for rows in chunks:
            with torch.enable_grad():
                parts = [_leaf(x, rows, need) for x, need in zip(by_row, wanted, strict=False)]
                part = evaluate(rows, *parts)
                gradients = _gradients(part, [*parts, *shared], wanted)
            for i, gradient in enumerate(gradients):
                if gradient is None:
                    continue
                if i < num_by_row:
                    totals[i][rows] = gradient
                else:
                    totals[i] = gradient if totals[i] is None else totals[i].add_(gradient)
            value = part.detach() if value is None else value + part.detach()
        missing = [need and total is None for need, total in zip(wanted, totals, strict=True)]
        totals = [torch.zeros_like(x) if gap else t for x, gap, t in zip(inputs, missing, totals, strict=True)]
        ctx.save_for_backward(*totals)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, scale: Tensor):
        return None, None, None, *(None if t is None else t * scale.to(t.dtype) for t in ctx.saved_tensors)


def _numbered(inputs, wanted):
    return enumerate(zip(inputs, wanted, strict=True))


def _leaf(x: Tensor | None, rows: Tensor, need: bool) -> Tensor | None:
    """The rows of ``x`` as the start of a graph of their own."""
    return None if x is None else x.detach()[rows].requires_grad_(need)


def _gradients(value: Tensor, inputs: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
    """∂value of each input that wants one; None where there is none."""
    places = [i for i, need in enumerate(wanted) if need]
    found: list[Tensor | None] = [None] * len(inputs)
    if value.requires_grad:
        gradients = torch.autograd.grad(value, [inputs[i] for i in places], allow_unused=True)
        for i, gradient in zip(places, gradients, strict=True):
            found[i] = gradient
    return found
