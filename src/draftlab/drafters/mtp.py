"""MTP: multi-token prediction as DeepSeek-V3 does it, a chain over the target's last hidden state (method 2.4).

    x = W_p [N_e(embed(x_{a+k})) ; N_h(g)],  g = the target's last hidden state at a-1 for slot 0, then y_{k-1}
    y_k = block(x),  p_k = softmax(LMHead(norm(y_k)))                  the same head as the target's

One drafted token (``block=mtp1``) is MTP-1, the production baseline. ``block.block_size=k`` is MTP-k: the module is used
recurrently, in training as in decoding. Tensors have DeepSeek's names (``enorm``, ``hnorm``, ``eh_proj``); the embedding
comes first in ``eh_proj``, as in the released weights. The tapped layers are not read. The module knows nothing of losses.
Example:

    drafter = MTP(spec, BlockSpec(block_size=1))
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from draftlab.blocks import BlockSpec
from draftlab.drafters.chain import ChainDrafter
from draftlab.drafters.layers import DraftLayer, RMSNorm
from draftlab.heads import Head, NoHead
from draftlab.target.spec import TargetSpec


class MTP(ChainDrafter):
    """Autoregressive drafter over the target's last hidden state.

    Args:
        spec: the target's sizes.
        block: block size (1: MTP-1) and anchors.
        head: must be ``none``.
        num_layers: transformer blocks behind the projection.
        draft_vocab_size: W of a reduced draft vocabulary; None drafts over the whole one.
        train_head: train a copy of the target's LM head; False: the frozen head itself.
        qk_norm: per-head norms on queries and keys.
        num_heads, num_kv_heads, head_dim, intermediate_size: of the draft layers; None takes the target's.

    Raises:
        ValueError: any head but ``none``, the 1+N layout, or sizes that do not fit together.
    """

    reads_last_hidden, reads_layers = True, False

    def __init__(
        self,
        spec: TargetSpec,
        block: BlockSpec,
        head: Callable[..., Head] = NoHead,
        num_layers: int = 1,
        draft_vocab_size: int | None = None,
        train_head: bool = False,
        qk_norm: bool = True,
        **sizes: int | None,
    ) -> None:
        super().__init__(spec, block, head, draft_vocab_size, num_layers, train_head, qk_norm, **sizes)
        self.enorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.hnorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * spec.hidden_size, spec.hidden_size, bias=False)
        self._stack([DraftLayer(self.sizes) for _ in range(num_layers)])

    @property
    def projection(self) -> nn.Linear:
        """eh_proj [D, 2D]; the state stands last."""
        return self.eh_proj

    def states(self, features: Tensor | None, last_hidden: Tensor | None) -> Tensor:
        """The target's last hidden state [..., D], after its final norm."""
        if last_hidden is None:
            raise ValueError("the batch has no last hidden states of the target, which drafter=mtp reads")
        if last_hidden.shape[-1] != self.spec.hidden_size:
            raise ValueError(
                f"last hidden states must be {self.spec.hidden_size} wide, as target {self.spec.name!r} is, "
                f"got {last_hidden.shape[-1]}"
            )
        return last_hidden.to(self.eh_proj.weight.dtype)

    def pair(self, state: Tensor, embedding: Tensor) -> Tensor:
        """W_p [N_e(embedding) ; N_h(state)] [..., D]; in full precision also under autocast, since it is the residual."""
        normed = torch.cat([self.enorm(embedding), self.hnorm(state)], dim=-1)
        return self.eh_proj(normed).to(self.eh_proj.weight.dtype)
