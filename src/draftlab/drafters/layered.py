"""What drafters with draft layers share: sizes, the stack of layers and its final norm, rotation, embedding, an empty cache.

    x_0 -> layer 1 -> … -> layer n -> norm -> h_k          parallel over a block (backbone), or slot after slot (chain)

What goes in and who attends whom is the subclass's. The module knows nothing of blocks, heads, logits or losses.

    class MyDrafter(LayeredDrafter):
        def __init__(self, spec, block, head, num_layers=1, **sizes):
            super().__init__(spec, block, head, False, None, num_layers, **sizes)
            self.fc = nn.Linear(spec.feature_size, spec.hidden_size, bias=False)
            self._stack([DraftLayer(self.sizes) for _ in range(num_layers)])
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from draftlab.blocks import BlockSpec
from draftlab.drafters.base import Drafter
from draftlab.drafters.cache import DraftCache
from draftlab.drafters.layers import DraftLayer, LayerSizes, LayerStyle, RMSNorm, Rotation, rotation
from draftlab.heads import Head
from draftlab.target.spec import TargetSpec

INIT_STD = 0.02
SIZES = ("num_heads", "num_kv_heads", "head_dim", "intermediate_size")


class LayeredDrafter(Drafter):
    """A drafter made of draft layers.

    Args:
        spec, block, head, confidence_head, draft_vocab_size, train_head: see :class:`draftlab.drafters.base.Drafter`.
        num_layers: draft layers.
        qk_norm: whether attention norms each head's queries and keys.
        style: what else a layer does; None: as Qwen3.
        sizes: num_heads, num_kv_heads, head_dim, intermediate_size; what is missing or None is taken from the target.

    Raises:
        ValueError: fewer than one layer, or sizes that attention cannot be built with.
    """

    hidden_norm: nn.Module | None  # of what the target's features become; None where they are not normed
    attention: Callable | None = None  # of training blocks, in place of BlockAttention; takes the same arguments
    state_size: int = 0  # width of the target's state that decoding keeps for the next round

    def __init__(
        self,
        spec: TargetSpec,
        block: BlockSpec,
        head: Callable[..., Head],
        confidence_head: bool,
        draft_vocab_size: int | None,
        num_layers: int,
        train_head: bool = False,
        qk_norm: bool = True,
        style: LayerStyle | None = None,
        **sizes: int | None,
    ) -> None:
        if num_layers < 1:
            raise ValueError(f"drafter.num_layers must be at least 1, got {num_layers}")
        layer_sizes = _layer_sizes(spec, qk_norm, style or LayerStyle(), sizes)
        super().__init__(spec, block, head, confidence_head, draft_vocab_size, train_head)
        self.sizes = layer_sizes

    @property
    @abstractmethod
    def projection(self) -> nn.Linear:
        """The linear that brings the target's states to width D; they are its last D inputs."""

    @abstractmethod
    def kept_values(self, num_sequences: int, num_tokens: int) -> int:
        """Numbers that a training step over sequences of ``num_tokens`` tokens keeps for its backward pass, about."""

    def start(self, batch_size: int, max_length: int, device=None, dtype: torch.dtype | None = None) -> DraftCache:
        """Empty cache, by default on the drafter's device and in its dtype."""
        weight = self.norm.weight
        return DraftCache(
            num_layers=len(self.layers),
            num_rows=batch_size,
            num_kv_heads=self.sizes.num_kv_heads,
            head_dim=self.sizes.head_dim,
            max_length=max_length,
            device=device or weight.device,
            dtype=dtype or weight.dtype,
            state_size=self.state_size,
        )

    # Inner workings

    def _stack(self, layers: Sequence[DraftLayer]) -> None:
        """Take ``layers`` and a final norm, and give all projections small normal weights.

        What is added to the residual stream is smaller the deeper the drafter.
        """
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(self.spec.hidden_size, self.spec.rms_norm_eps)
        for layer in self.layers:
            for linear in (m for m in layer.modules() if isinstance(m, nn.Linear)):
                nn.init.normal_(linear.weight, std=INIT_STD)
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                nn.init.normal_(linear.weight, std=INIT_STD / math.sqrt(2 * len(self.layers)))
        nn.init.normal_(self.projection.weight, std=INIT_STD)

    def _embed(self, ids: Tensor) -> Tensor:
        """Embeddings [..., D] of token ids [...] in the dtype of the drafter's weights."""
        self._require_ready()
        return self.ends.embed(ids).to(self.norm.weight.dtype)

    def _rotation(self, positions: Tensor) -> Rotation:
        return rotation(positions, self.sizes.head_dim, self.spec.rope_theta, self.sizes.style.rotary_share)

    def _check_features(self, features: Tensor | None) -> None:
        if features is None:
            raise ValueError("the batch has no target features; let the target read it first (target.read(batch))")
        if features.shape[-1] != self.spec.feature_size:
            raise ValueError(
                f"target features must be {self.spec.feature_size} wide ({self.spec.num_features} layers of "
                f"{self.spec.hidden_size}, target.target_layer_ids {list(self.spec.target_layer_ids)}), "
                f"got {features.shape[-1]}"
            )


def _layer_sizes(spec: TargetSpec, qk_norm: bool, style: LayerStyle, sizes: dict[str, int | None]) -> LayerSizes:
    """The sizes given, and the target's for the rest."""
    unknown = sorted(set(sizes) - set(SIZES))
    if "exits" in unknown:
        raise ValueError(
            "drafter.exits: this drafter cannot stop early; use drafter=dspark_exits, or leave the exits out"
        )
    if unknown:
        raise ValueError(f"unknown drafter setting {', '.join(unknown)}; layer sizes are {', '.join(SIZES)}")
    chosen = {name: getattr(spec, name) if sizes.get(name) is None else sizes[name] for name in SIZES}
    return LayerSizes(
        hidden_size=spec.hidden_size, rms_norm_eps=spec.rms_norm_eps, qk_norm=qk_norm, style=style, **chosen
    )
