"""DFlash: the parallel backbone alone; all slots of a block are drafted independently of each other (method 2.1).

    p_k(v | x_0) = softmax_v(LMHead(h_k))

Its usual loss is cross-entropy. The anchor-first layout is the paper's retrained baseline, 1+N the original one; that
is a value of :class:`draftlab.blocks.BlockSpec`. The module knows nothing of losses. Example:

    drafter = DFlash(spec, BlockSpec(block_size=7), num_layers=5)
"""

from __future__ import annotations

from collections.abc import Callable

from draftlab.blocks import BlockSpec
from draftlab.drafters.backbone import BlockDrafter
from draftlab.heads import Head, NoHead
from draftlab.target.spec import TargetSpec


class DFlash(BlockDrafter):
    """Parallel drafter without sequential head and without confidences; arguments as DSpark.

    Raises:
        ValueError: any head but ``none``, or sizes that do not fit together.
    """

    def __init__(
        self,
        spec: TargetSpec,
        block: BlockSpec,
        head: Callable[..., Head] = NoHead,
        num_layers: int = 5,
        draft_vocab_size: int | None = None,
        **sizes: int | None,
    ) -> None:
        super().__init__(spec, block, head, False, draft_vocab_size, num_layers, **sizes)
        if not isinstance(self.markov_head, NoHead):
            raise ValueError(
                "drafter=dflash drafts all slots in parallel and takes head=none, "
                f"got {type(self.markov_head).__name__}; use drafter=dspark to draft with a sequential head"
            )
