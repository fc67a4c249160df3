"""The draft layer: a Qwen3-style decoder layer whose queries come from the block only (method 2.1).

    K = [W_K H_ctx ; W_K N(x)],  V = [W_V H_ctx ; W_V N(x)]            the same W_K, W_V for context and block
    x <- x + W_O attention(W_Q N(x), K, V),   x <- x + MLP(N'(x))      per-head norm and RoPE on q and k

Who attends whom is not decided here: a layer hands its block queries, keys and values to an ``attend`` function,
which adds context, mask or cache. So training and decoding run this same code. The module knows nothing of blocks,
anchors or caches.

    keys, values = layer.self_attn.keys_values(context, context_rotation)   # once per layer, for all T context tokens
    x = layer(x, rotation, attend)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Rotation = tuple[Tensor, Tensor]  # cos and sin, each [B, 1, L, head_dim]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q [B, H, Q, hd], k, v [B, Hkv, Q, hd] -> [B, H, Q, hd]


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of a draft layer.

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
    """x / rms(x) · weight over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., size]."""
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def rotation(positions: Tensor, head_dim: int, theta: float) -> Rotation:
    """cos and sin [B, 1, L, head_dim] of the RoPE angles at ``positions`` [B, L], float32."""
    steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions.unsqueeze(-1).float() * theta ** (-steps / head_dim)  # [B, L, head_dim/2]
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
        self.v_proj = nn.Linear(input_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, sizes.hidden_size, bias=False)
        self.q_norm = RMSNorm(sizes.head_dim, sizes.rms_norm_eps) if sizes.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(sizes.head_dim, sizes.rms_norm_eps) if sizes.qk_norm else nn.Identity()

    def queries(self, x: Tensor, rotation: Rotation) -> Tensor:
        """[B, H, L, head_dim] of x [B, L, input_size]."""
        return rotate(self.q_norm(self._split(self.q_proj(x))), rotation)

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Keys and values [B, Hkv, L, head_dim] of x [B, L, input_size], of context and of block inputs alike."""
        return rotate(self.k_norm(self._split(self.k_proj(x))), rotation), self._split(self.v_proj(x))

    def output(self, attended: Tensor) -> Tensor:
        """[B, L, D] of attended values [B, H, L, head_dim]."""
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """[B, L, H*head_dim] -> [B, H, L, head_dim]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class MLP(nn.Module):
    """W_down (silu(W_gate x) ⊙ W_up x)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] -> [B, L, D]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


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
        self.mlp = MLP(sizes.hidden_size, sizes.intermediate_size)

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
        x = self.residual(x) + self.self_attn.output(attended)
        return x + self.mlp(self.post_attention_layernorm(x))

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
