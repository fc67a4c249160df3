"""Float32 products on a CPU by oneDNN, over frozen weights that are laid out for it once and over weights that learn.

    y = x W^T + b          x [..., K], W [N, K], b [N]
    ∂x = ∂y W,  ∂W = ∂y^T x,  ∂b = Σ ∂y

PyTorch hands float32 products to MKL, which on CPUs that are not Intel's leaves more than half of the machine unused, and
reads W anew in its old layout at every call. oneDNN comes with PyTorch too, and frozen weights need to be laid out only
once; ``benchmarks/products.py`` measures both. A :class:`FrozenProduct` is for weights that rest, :func:`learning_product` for
those that change at every step. Everything else (autocast, GPUs, other dtypes, small weights) stays PyTorch's own. The module
knows nothing of models.

    product = FrozenProduct()
    y = product(x, weight, bias)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

SMALLEST = 1 << 16  # elements of a weight that gains by it
LARGEST_COPY = (
    1 << 28
)  # bytes of a weight that is copied; a larger one is laid out at every call, which is still faster
WIDE = 8  # times as many outputs as inputs: an LM head, whose gradient is made the other way round
LARGEST_MODEL = 1 << 31  # bytes of all linear layers whose weights are copied


def available() -> bool:
    """Whether this PyTorch has oneDNN for an x86 CPU with AVX2."""
    capable = getattr(torch.cpu, "get_capabilities", dict)().get("avx2", False)
    return bool(capable) and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


AVAILABLE = available()


class FrozenProduct:
    """The product with one weight, whose layout is kept until another weight comes.

    Args:
        copy: keep a copy of the weight in oneDNN's layout; False saves its memory.
    """

    def __init__(self, copy: bool = True) -> None:
        self.copy = copy
        self.forget()

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + b [..., N] of ``x`` [..., K] and ``weight`` [N, K]."""
        if not _eligible(x, weight, bias):
            if weight.requires_grad and torch.is_grad_enabled():
                self.forget()  # it may be trained next, and fused optimisers write without telling the tensor
            return F.linear(x, weight, bias)
        if x.requires_grad and torch.is_grad_enabled():
            return _Product.apply(x, weight, bias, self)
        return self.multiply(x, weight, bias)

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b by oneDNN, without a gradient."""
        bias = None if bias is None else bias.contiguous()  # oneDNN takes no stride
        return torch.ops.mkldnn._linear_pointwise(x, self._layout(weight), bias, "none", [], "")

    def forget(self) -> None:
        """Drop the kept layout."""
        self._of: tuple[Tensor, int, int] | None = None  # holds the weight, so that no other one takes its address
        self._packed: Tensor | None = None

    def _layout(self, weight: Tensor) -> Tensor:
        if not self.copy or weight.nbytes > LARGEST_COPY:
            return weight
        version = 0 if weight.is_inference() else weight._version  # other values written into it
        of = (weight, weight.data_ptr(), version)
        if self._of is None or self._of[0] is not weight or self._of[1:] != of[1:]:
            self._packed, self._of = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None), of
        return self._packed

    def __deepcopy__(self, memo) -> FrozenProduct:
        return FrozenProduct(self.copy)  # a kept layout cannot be copied, and is made again

    def __reduce__(self):
        return FrozenProduct, (self.copy,)


def learning_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b [..., N] of ``x`` [..., K] and a ``weight`` [N, K] that learns; differentiable once."""
    if not _fits(x, weight) or not torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    return _Product.apply(x, weight, bias, FrozenProduct(copy=False))


class _Product(torch.autograd.Function):
    """The product with its gradients; what they need of weights is laid out at every call, not kept twice."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, product: FrozenProduct) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return product.multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        rows = gradient.flatten(0, -2)  # [S, N]
        of_x = _multiply(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        of_weight = _outer(rows, x.flatten(0, -2)) if ctx.needs_input_grad[1] else None
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias, None


def _outer(rows: Tensor, x: Tensor) -> Tensor:
    """∂y^T x [N, K] of ∂y [S, N] and x [S, K]: oneDNN copies its first factor to turn it, so that is the narrow one."""
    if rows.shape[1] >= WIDE * x.shape[1]:
        return _multiply(x.t(), rows.t()).t()
    return _multiply(rows.t(), x.t())


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


class LearningLinear(nn.Linear):
    """An ``nn.Linear`` with the same parameters whose product is :func:`learning_product`."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """x W^T + b."""
        return learning_product(input, self.weight, self.bias)


class FrozenLinear(nn.Linear):
    """An ``nn.Linear`` with the same parameters whose product is a :class:`FrozenProduct`."""

    def __init__(self, linear: nn.Linear, copy: bool = True) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.product = FrozenProduct(copy)
        self.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """x W^T + b."""
        return self.product(input, self.weight, self.bias)

    def _apply(self, fn, recurse: bool = True):
        super()._apply(fn, recurse)
        self.product.forget()
        return self


def freeze_products(model: nn.Module) -> None:
    """Let every plain ``nn.Linear`` of a frozen ``model`` make its product by oneDNN where that is possible."""
    linears = _linears(model)
    copy = sum(4 * linear.weight.numel() for _, linear in linears) <= LARGEST_MODEL
    for name, linear in linears:
        _replace(model, name, FrozenLinear(linear, copy))


def learning_products(model: nn.Module) -> None:
    """Let every plain ``nn.Linear`` of a ``model`` that learns make its products by oneDNN where that is possible."""
    for name, linear in _linears(model):
        _replace(model, name, LearningLinear(linear))


def _linears(model: nn.Module) -> list[tuple[str, nn.Linear]]:
    return [(name, module) for name, module in model.named_modules() if type(module) in (nn.Linear, LearningLinear)]


def _replace(model: nn.Module, name: str, linear: nn.Linear) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, linear)


def _eligible(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    learns = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (weight, bias))
    return not learns and _fits(x, weight)


def _fits(x: Tensor, weight: Tensor) -> bool:
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu"
    wanted = plain and x.numel() > 0 and weight.numel() >= SMALLEST
    return AVAILABLE and wanted and not torch.is_autocast_enabled("cpu")
