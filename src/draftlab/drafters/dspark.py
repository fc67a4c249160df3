"""DSpark: the parallel backbone, then a sequential head along the block, and a confidence for every slot (method 2.2).

    h_1..h_G = backbone(context, [x_0, MASK, …])                parallel, once a block
    p_k(v | x_0, x_<k) = softmax_v(LMHead(h_k) + B_k(x_<k, v))   sequential: only the head runs slot by slot
    c_k = σ(w^T [h_k ; W_1[x_{k-1}]] + b)

The module knows nothing of how heads make B_k, nor of losses. Example:

    drafter = DSpark(spec, BlockSpec(block_size=7), partial(MarkovHead, rank=256), num_layers=5)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftlab.blocks import BlockSpec
from draftlab.drafters.backbone import BlockDrafter
from draftlab.heads import Head
from draftlab.target.spec import TargetSpec


class DSpark(BlockDrafter):
    """Semi-autoregressive drafter.

    Args:
        spec: the target's sizes, layer ids and mask token.
        block: block size, layout and anchors.
        head: builds the sequential head (``head=markov|gated|rnn|domino|none``).
        num_layers: draft layers.
        confidence_head: whether to predict confidences.
        confidence_input: what confidences read, h_k (``normed``) or h_k before the final norm (``unnormed``).
        exits: layers after which a block may stop (:mod:`draftlab.drafters.exits`); none: it never does.
        draft_vocab_size: W of a reduced draft vocabulary; None drafts over the whole one.
        train_head: train a copy of the target's LM head, which starts as it is; False: the frozen head itself.
        num_heads, num_kv_heads, head_dim, intermediate_size: of the draft layers; None takes the target's. ``style``: what
            they do beside (:class:`draftlab.drafters.layers.LayerStyle`); None: as Qwen3.

    Raises:
        ValueError: sizes that do not fit together, named with what to do.
    """

    def __init__(
        self,
        spec: TargetSpec,
        block: BlockSpec,
        head: Callable[..., Head],
        num_layers: int = 5,
        confidence_head: bool = True,
        confidence_input: str = "normed",
        exits: Sequence[int] = (),
        draft_vocab_size: int | None = None,
        train_head: bool = False,
        **sizes: int | None,
    ) -> None:
        options = {"confidence_input": confidence_input, "exits": exits}
        super().__init__(
            spec, block, head, confidence_head, draft_vocab_size, num_layers, train_head, **options, **sizes
        )
