"""Eagle3: a chain over fused features of the target, one wide layer by default (method 2.3).

    g_t  = W_c [H^(l1); …; H^(lm)]                                     no norm
    slot 0:  y_0 = layer([N(embed(x_a)) ; N'(g_{a-1})]),  slot k:  y_k = layer([N(embed(x_{a+k})) ; N'(y_{k-1})])

Attention of the first layer reads both parts, 2D wide, and adds to the second; layers behind it, if any, are ordinary
ones. Tensors have the names of released checkpoints (``fc``, ``layers.0.input_layernorm`` of the embedding,
``layers.0.hidden_norm`` of the state, ``norm``). Its usual block is the Training-Time Test (``block=ttt7``), its loss the
soft cross-entropy (``loss=eagle3``). The module knows nothing of either. Example:

    drafter = Eagle3(spec, BlockSpec.training_time_test(7, 0.8))
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor, nn

from draftlab.blocks import BlockSpec
from draftlab.drafters.chain import ChainDrafter
from draftlab.drafters.layers import DraftLayer, LayerSizes, RMSNorm
from draftlab.heads import Head, NoHead
from draftlab.target.spec import TargetSpec


class PairLayer(DraftLayer):
    """A draft layer that reads an embedding beside its state: x is [embedding ; state], 2D wide."""

    target_names = MappingProxyType({"hidden_norm": "input_layernorm", "input_layernorm": None})

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes, attention_size=2 * sizes.hidden_size)
        self.hidden_norm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)

    def normed(self, x: Tensor) -> Tensor:
        """Embedding and state, each behind its norm, [..., 2D]."""
        embedding, state = x.chunk(2, dim=-1)
        return torch.cat([self.input_layernorm(embedding), self.hidden_norm(state)], dim=-1)

    def residual(self, x: Tensor) -> Tensor:
        """The state [..., D]."""
        return x.chunk(2, dim=-1)[1]


class Eagle3(ChainDrafter):
    """Autoregressive drafter over fused features.

    Args:
        spec: the target's sizes and layer ids.
        block: block size and anchors; ``BlockSpec.training_time_test`` for the usual training.
        head: must be ``none``.
        num_layers: the wide layer, and ordinary ones behind it.
        draft_vocab_size: W of a reduced draft vocabulary; None drafts over the whole one.
        train_head: train a copy of the target's LM head; False: the frozen head itself.
        qk_norm: per-head norms on queries and keys; engines expect none.
        num_heads, num_kv_heads, head_dim, intermediate_size: of the draft layers; None takes the target's. ``style``: what
            they do beside (:class:`draftlab.drafters.layers.LayerStyle`); None: as Qwen3.

    Raises:
        ValueError: any head but ``none``, the 1+N layout, or sizes that do not fit together.
    """

    def __init__(
        self,
        spec: TargetSpec,
        block: BlockSpec,
        head: Callable[..., Head] = NoHead,
        num_layers: int = 1,
        draft_vocab_size: int | None = None,
        train_head: bool = False,
        qk_norm: bool = False,
        **sizes: int | None,
    ) -> None:
        super().__init__(spec, block, head, draft_vocab_size, num_layers, train_head, qk_norm, **sizes)
        self.fc = nn.Linear(spec.feature_size, spec.hidden_size, bias=False)
        self._stack([PairLayer(self.sizes), *(DraftLayer(self.sizes) for _ in range(num_layers - 1))])

    @property
    def projection(self) -> nn.Linear:
        """fc [D, M*D]; the deepest tapped layer stands last."""
        return self.fc

    def states(self, features: Tensor | None, last_hidden: Tensor | None) -> Tensor:
        """g [..., D] of the tapped layers [..., M*D]; in full precision also under autocast, since it is the residual."""
        self._check_features(features)
        weight = self.fc.weight
        return self.fc(features.to(weight.dtype)).to(weight.dtype)

    def pair(self, state: Tensor, embedding: Tensor) -> Tensor:
        """[embedding ; state], 2D wide; the layer norms them."""
        return torch.cat([embedding, state.to(embedding.dtype)], dim=-1)
