"""The draft layer: a Qwen3-style decoder layer whose queries come from the block only (method 2.1).

    K = [W_K H_ctx ; W_K N(x)],  V = [W_V H_ctx ; W_V N(x)]            the same W_K, W_V for context and block
    x <- x + W_O attention(W_Q N(x), K, V),   x <- x + MLP(N'(x))      per-head norm and RoPE on q and k

What other families do otherwise inside a layer (Gemma's norms behind attention and MLP, values that are the keys, its own
attention scale) are values of :class:`LayerStyle`.
Who attends whom is not decided here: a layer hands its block queries, keys and values to an ``attend`` function,
which adds context, mask or cache. So training and decoding run this same code. The module knows nothing of blocks,
anchors or caches.

    keys, values = layer.self_attn.keys_values(context, context_rotation)   # once per layer, for all T context tokens
    x = layer(x, rotation, attend)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Rotation = tuple[Tensor, Tensor]  # cos and sin, each [B, 1, L, head_dim]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q [B, H, Q, hd], k, v [B, Hkv, Q, hd] -> [B, H, Q, hd]


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"silu": F.silu, "gelu_tanh": partial(F.gelu, approximate="tanh")}
)


@dataclass(frozen=True)
class LayerStyle:
    """What a draft layer does beside its sizes. The defaults are Qwen3's, ``conf/drafter/dspark_gemma4.yaml`` has Gemma 4's.

    Args:
        sandwich_norms: attention and MLP are normed before *and* behind, and a stored factor multiplies the layer's output.
        keys_as_values: there is no W_V; values are W_K x, before norm and rotation.
        value_norm: each head's values are normed, without weights.
        attention_scale: factor on q·k; None: 1/√head_dim.
        activation: of the MLP, ``silu`` or ``gelu_tanh``.
        rotary_share: share of the component pairs that RoPE turns; the slower ones stay.

    Raises:
        ValueError: an unknown activation, or a scale or share out of its range.
    """

    sandwich_norms: bool = False
    keys_as_values: bool = False
    value_norm: bool = False
    attention_scale: float | None = None
    activation: str = "silu"
    rotary_share: float = 1.0

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"drafter.style.activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}"
            )
        if self.attention_scale is not None and not self.attention_scale > 0:
            raise ValueError(
                f"drafter.style.attention_scale must be positive, got {self.attention_scale}; null is 1/√head_dim"
            )
        if not 0 < self.rotary_share <= 1:
            raise ValueError(f"drafter.style.rotary_share must lie in (0, 1], got {self.rotary_share}")


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of a draft layer, and its style.

    Raises:
        ValueError: sizes that attention cannot be built with.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    qk_norm: bool = True  # whether each head's queries and keys are normed
    style: LayerStyle = LayerStyle()

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_kv_heads", "head_dim", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"drafter.{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"drafter.num_heads ({self.num_heads}) must be a multiple of drafter.num_kv_heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"drafter.head_dim must be even, since RoPE turns pairs of components, got {self.head_dim}"
            )


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension; without weight where ``scaled`` is False."""

    def __init__(self, size: int, eps: float, scaled: bool = True) -> None:
        super().__init__()
        self.size, self.eps = size, eps
        self.register_parameter("weight", nn.Parameter(torch.ones(size)) if scaled else None)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., size]."""
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, (self.size,), weight, self.eps)


def rotation(positions: Tensor, head_dim: int, theta: float, share: float = 1.0) -> Rotation:
    """cos and sin [B, 1, L, head_dim] of the RoPE angles at ``positions`` [B, L], float32.

    Only the first ``share`` of the head_dim/2 pairs turn; the others have angle 0.
    """
    steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    speeds = theta ** (-steps / head_dim)
    speeds[int(share * head_dim // 2) :] = 0.0
    angles = positions.unsqueeze(-1).float() * speeds  # [B, L, head_dim/2]
    angles = torch.cat([angles, angles], dim=-1).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn each pair (i, i + head_dim/2) of x [B, H, L, head_dim] by its angle."""
    cos, sin = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Projections of grouped-query attention, with per-head norms if the sizes say so; no biases.

    Args:
        input_size: width of what is read; None: D. What is written is D wide.
    """

    def __init__(self, sizes: LayerSizes, input_size: int | None = None) -> None:
        super().__init__()
        self.head_dim = sizes.head_dim
        width, kv_width = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        input_size = input_size or sizes.hidden_size
        self.q_proj = nn.Linear(input_size, width, bias=False)
        self.k_proj = nn.Linear(input_size, kv_width, bias=False)
        self.v_proj = None if sizes.style.keys_as_values else nn.Linear(input_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, sizes.hidden_size, bias=False)
        self.q_norm = RMSNorm(sizes.head_dim, sizes.rms_norm_eps) if sizes.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(sizes.head_dim, sizes.rms_norm_eps) if sizes.qk_norm else nn.Identity()
        self.v_norm = (
            RMSNorm(sizes.head_dim, sizes.rms_norm_eps, scaled=False) if sizes.style.value_norm else nn.Identity()
        )
        scale = sizes.style.attention_scale
        # Every way to attend divides by √head_dim, so another scale goes into the queries.
        self.query_scale = None if scale is None else scale * math.sqrt(sizes.head_dim)

    def queries(self, x: Tensor, rotation: Rotation) -> Tensor:
        """[B, H, L, head_dim] of x [B, L, input_size]."""
        queries = rotate(self.q_norm(self._split(self.q_proj(x))), rotation)
        return queries if self.query_scale is None else queries * self.query_scale

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Keys and values [B, Hkv, L, head_dim] of x [B, L, input_size], of context and of block inputs alike."""
        keys = self._split(self.k_proj(x))
        values = keys if self.v_proj is None else self._split(self.v_proj(x))
        return rotate(self.k_norm(keys), rotation), self.v_norm(values)

    def output(self, attended: Tensor) -> Tensor:
        """[B, L, D] of attended values [B, H, L, head_dim]."""
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """[B, L, H*head_dim] -> [B, H, L, head_dim]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class MLP(nn.Module):
    """W_down (f(W_gate x) ⊙ W_up x); f is SiLU in the default style."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str = "silu") -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] -> [B, L, D]."""
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream.

    Args:
        sizes: of attention and MLP. attention_size: width of what attention reads; None: D.
    """

    # Own module -> the module of a target's decoder layer that does the same (None: there is none); others share its name.
    target_names: Mapping[str, str | None] = MappingProxyType({})

    def __init__(self, sizes: LayerSizes, attention_size: int | None = None) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.self_attn = Attention(sizes, attention_size)
        self.post_attention_layernorm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.mlp = MLP(sizes.hidden_size, sizes.intermediate_size, sizes.style.activation)
        self.sandwich = sizes.style.sandwich_norms
        if self.sandwich:
            self.pre_feedforward_layernorm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
            self.post_feedforward_layernorm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
            self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, x: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """Block states [B, L, D] after this layer; ``attend`` joins them with their context."""
        return self.after(x, attend(*self.before(x, rotation)))

    # The two halves around attention; torch.compile takes each whole (draftlab.training.acceleration).

    def before(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, L, head_dim], keys and values [B, Hkv, L, head_dim] of x [B, L, D]."""
        normed = self.normed(x)
        return self.self_attn.queries(normed, rotation), *self.self_attn.keys_values(normed, rotation)

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [B, L, D] from its input and the attended values [B, H, L, head_dim]."""
        written = self.self_attn.output(attended)
        if not self.sandwich:
            x = self.residual(x) + written
            return x + self.mlp(self.post_attention_layernorm(x))
        x = self.residual(x) + self.post_attention_layernorm(written)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """The keys and values that ``forward`` hands to ``attend``, where its output is not needed."""
        return self.self_attn.keys_values(self.normed(x), rotation)

    def normed(self, x: Tensor) -> Tensor:
        """What attention reads of the layer's input."""
        return self.input_layernorm(x)

    def residual(self, x: Tensor) -> Tensor:
        """What the layer adds to, [B, L, D]."""
        return x


def kept_per_token(sizes: LayerSizes) -> tuple[int, int]:
    """Numbers that a layer keeps for the backward pass: of a token that runs through it, and of one key with its value.

    A token leaves its input to both norms and what they make of it on the way, seven in all; query before and behind norm
    and rotation, attention output of a group of blocks and of all; gate, its activation, the other MLP input, their product.
    """
    passed = 7 * sizes.hidden_size + 5 * sizes.num_heads * sizes.head_dim + 4 * sizes.intermediate_size
    return passed, 2 * sizes.num_kv_heads * sizes.head_dim
