"""Products by oneDNN equal PyTorch's own, and everything they are not for stays PyTorch's own."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from draftlab.target import products
from draftlab.target.products import FrozenLinear, FrozenProduct, freeze_products
from tiny import tiny_target

WIDE = (300, 256)  # above SMALLEST
needs_onednn = pytest.mark.skipif(not products.AVAILABLE, reason="this PyTorch has no oneDNN for this CPU")


@pytest.fixture
def used(monkeypatch):
    """What went through oneDNN: the shapes of its inputs."""
    shapes, real = [], torch.ops.mkldnn._linear_pointwise

    class Spy:
        _reorder_linear_weight = staticmethod(torch.ops.mkldnn._reorder_linear_weight)

        @staticmethod
        def _linear_pointwise(x, *rest):
            shapes.append(tuple(x.shape))
            return real(x, *rest)

    monkeypatch.setattr(torch.ops, "mkldnn", Spy)
    return shapes


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@needs_onednn
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 5), (3, 1, 4)])
def test_a_product_equals_pytorchs(used, shape, biased, keep):
    x, weight = numbers(*shape, WIDE[1]), numbers(*WIDE, seed=1)
    bias = numbers(WIDE[0], seed=2) if biased else None
    product = FrozenProduct(keep)
    with torch.no_grad():
        for _ in range(2):  # with the layout just made, and with the kept one
            torch.testing.assert_close(product(x, weight, bias), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)
        half = x[..., ::2]  # not contiguous
        narrow = weight[:, ::2].contiguous().repeat(2, 1)
        torch.testing.assert_close(product(half, narrow), F.linear(half, narrow), rtol=1e-5, atol=1e-4)
    assert len(used) == 3


@needs_onednn
def test_other_values_and_other_weights_get_a_layout_of_their_own(used):
    x, weight, product = numbers(4, WIDE[1]), numbers(*WIDE, seed=1), FrozenProduct()
    with torch.no_grad():
        product(x, weight)
        weight.mul_(2.0)
        torch.testing.assert_close(product(x, weight), F.linear(x, weight), rtol=1e-5, atol=1e-4)
        other = numbers(*WIDE, seed=3)
        torch.testing.assert_close(product(x, other), F.linear(x, other), rtol=1e-5, atol=1e-4)
    assert len(used) == 3


@needs_onednn
def test_weights_of_inference_mode_are_fine(used):
    with torch.inference_mode():
        x, weight = numbers(4, WIDE[1]), numbers(*WIDE, seed=1)
        torch.testing.assert_close(FrozenProduct()(x, weight), F.linear(x, weight), rtol=1e-5, atol=1e-4)
    assert used


@needs_onednn
def test_a_bias_may_be_strided_and_may_learn():
    x, weight, bias = numbers(4, WIDE[1]), numbers(*WIDE, seed=1), numbers(2 * WIDE[0], seed=2)[::2]
    with torch.no_grad():
        torch.testing.assert_close(FrozenProduct()(x, weight, bias), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)
    learning = bias.clone().requires_grad_()
    FrozenProduct()(x, weight, learning).sum().backward()
    assert learning.grad.eq(4).all()


@needs_onednn
def test_a_weight_that_a_fused_optimiser_changed_gets_a_new_layout():
    linear = FrozenLinear(nn.Linear(WIDE[1], WIDE[0]))
    x, adamw = numbers(4, WIDE[1]), torch.optim.AdamW(linear.parameters(), lr=0.1, fused=True)
    with torch.no_grad():
        linear(x)
    linear(x).square().sum().backward()
    adamw.step()
    with torch.no_grad():
        expected = F.linear(x, linear.weight, linear.bias)
        torch.testing.assert_close(linear(x), expected, rtol=1e-4, atol=1e-3)


@needs_onednn
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 5)])
def test_what_learns_through_a_frozen_weight_gets_its_gradient_by_onednn(used, shape):
    x, weight, bias = numbers(*shape, WIDE[1]), numbers(*WIDE, seed=1), numbers(WIDE[0], seed=2)
    ours, twin = x.clone().requires_grad_(), x.clone().requires_grad_()
    product = FrozenProduct()(ours, weight, bias)
    product.square().sum().backward()
    F.linear(twin, weight, bias).square().sum().backward()
    torch.testing.assert_close(product, F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours.grad, twin.grad, rtol=1e-4, atol=1e-2)
    assert used == [(*shape, WIDE[1]), (*shape, WIDE[0])]
    FrozenProduct()(
        ours, weight
    ).sum().backward()  # a gradient that is one number, spread out without memory of its own
    torch.testing.assert_close(ours.grad - twin.grad, weight.sum(0).expand_as(x), rtol=1e-3, atol=1e-2)


def test_weights_that_learn_autocast_other_dtypes_and_small_weights_stay_pytorchs_own(used):
    product, x, weight = FrozenProduct(), numbers(4, WIDE[1]), numbers(*WIDE, seed=1)
    learning = weight.clone().requires_grad_()
    product(x, learning).sum().backward()
    torch.testing.assert_close(learning.grad, x.sum(0).expand(WIDE[0], -1), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert product(x, weight).dtype == torch.bfloat16
        assert product(x.double(), weight.double()).dtype == torch.float64
        assert product(x[:, :8], weight[:, :8]).shape == (4, WIDE[0])
        assert product(x[:0], weight).shape == (0, WIDE[0])
    assert not used


@needs_onednn
def test_a_frozen_target_says_what_its_model_said(used, monkeypatch):
    monkeypatch.setattr(products, "SMALLEST", 1)
    target = tiny_target()
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    fast = target.logits(target(ids).last_hidden)
    count = len(used)
    assert count > 4 * len(target.layers), "projections of all layers, and the head"
    monkeypatch.setattr(products, "AVAILABLE", False)
    torch.testing.assert_close(fast, target.logits(target(ids).last_hidden), rtol=1e-4, atol=1e-5)
    assert len(used) == count


@needs_onednn
def test_a_cast_model_forgets_its_layouts_and_copies_make_their_own(monkeypatch):
    model = nn.Sequential(nn.Linear(WIDE[1], WIDE[0])).requires_grad_(False)
    weight = model[0].weight
    freeze_products(model)
    assert (
        type(model[0]) is FrozenLinear
        and model[0].weight is weight
        and list(model.state_dict()) == ["0.weight", "0.bias"]
    )
    x = numbers(3, WIDE[1])
    with torch.no_grad():
        expected = model(x)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(twin(x), expected)
        double = model.double()(x.double())
        torch.testing.assert_close(double.float(), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model.float()(x), expected, rtol=1e-4, atol=1e-4)


def test_a_large_model_is_not_copied(monkeypatch):
    monkeypatch.setattr(products, "LARGEST_MODEL", 4 * WIDE[0] * WIDE[1])
    small, large = (nn.Sequential(*(nn.Linear(*WIDE, bias=False) for _ in range(count))) for count in (1, 2))
    freeze_products(small)
    freeze_products(large)
    assert small[0].product.copy and not large[0].product.copy
