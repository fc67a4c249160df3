"""The two ends where a drafter meets its target: the frozen embedding and the frozen LM head.

    embed(x) = embedding_scale · E[x]        z = logit_scale · (W h + b),  logits(h) = c · tanh(z / c), or z without cap

The tensors are shared with the target, not copied, and they are plain attributes instead of buffers: they never enter a
checkpoint, and data-parallel training does not broadcast them at every step. ``.to(device)`` moves them all the same,
and tied ends stay one tensor. The module knows nothing of decoder layers.

    ends = TargetEnds(embedding=E, head=None)              # tied: the head is the embedding
    logits = ends.logits(hidden, draft_ids)                # [..., W] of a reduced draft vocabulary
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draftlab.target.products import FrozenProduct


class TargetEnds(nn.Module):
    """Frozen embedding [V, D] and LM head [V, D] of a target.

    Args:
        embedding: token embedding [V, D].
        head: LM head weight [V, D]; None (or the embedding itself) ties it to the embedding.
        head_bias: bias [V] of the LM head, if the target has one.
        embedding_scale: factor on embeddings, as Gemma's √D.
        logit_scale: factor on logits before the cap.
        logit_softcap: c of the soft cap; None leaves logits as they are.

    Raises:
        ValueError: shapes that do not fit each other.
    """

    def __init__(
        self,
        embedding: Tensor,
        head: Tensor | None = None,
        head_bias: Tensor | None = None,
        embedding_scale: float = 1.0,
        logit_scale: float = 1.0,
        logit_softcap: float | None = None,
    ) -> None:
        super().__init__()
        if embedding.dim() != 2 or (head is not None and head.shape != embedding.shape):
            raise ValueError(
                "the target's embedding and LM head must both be [V, D], "
                f"got {list(embedding.shape)} and {None if head is None else list(head.shape)}"
            )
        self.embedding_scale = float(embedding_scale)
        self.logit_scale = float(logit_scale)
        self.logit_softcap = logit_softcap
        self.share(embedding, head, head_bias)

    def share(self, embedding: Tensor, head: Tensor | None = None, head_bias: Tensor | None = None) -> None:
        """Take these tensors as the ends, without copying them."""
        tied = head is None or head.data_ptr() == embedding.data_ptr()
        self.embedding = embedding.detach()
        self.head = self.embedding if tied else head.detach()
        self.head_bias = None if head_bias is None else head_bias.detach()
        self._rows: tuple[Tensor, Tensor, Tensor | None] | None = None  # the last draft_ids, their rows and bias
        self._products = FrozenProduct(), FrozenProduct()  # with the whole head, and with those rows

    @property
    def vocab_size(self) -> int:
        """V, rows of the embedding."""
        return self.embedding.shape[0]

    @property
    def hidden_size(self) -> int:
        """D."""
        return self.embedding.shape[1]

    @property
    def tied(self) -> bool:
        """True when the LM head is the embedding."""
        return self.head is self.embedding

    def embed(self, ids: Tensor) -> Tensor:
        """Scaled embeddings [..., D] of token ids [...], in the dtype of the target."""
        embedded = F.embedding(ids, self.embedding)
        if self.embedding_scale == 1.0:
            return embedded
        # Targets round the factor to their own dtype (Gemma's √3072 is 55.5 in bfloat16); so must we.
        return embedded * torch.tensor(self.embedding_scale, dtype=embedded.dtype, device=embedded.device)

    def logits(self, hidden: Tensor, draft_ids: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """Logits [..., V] of final-normed states [..., D]; with ``draft_ids`` [W] only those columns, [..., W].

        The product runs in the dtype of the head, as in the target itself, and is differentiable in ``hidden``. ``rows``
        [V or W, D] stand in for the head's own, where a drafter trains a copy of them; bias, scale and cap stay the target's.
        """
        own, bias = (self.head, self.head_bias) if draft_ids is None else self._draft_rows(draft_ids)
        product = F.linear if rows is not None else self._products[draft_ids is not None]
        rows = own if rows is None else rows
        bias = None if bias is None else bias.to(rows.dtype)
        logits = product(hidden.to(rows.dtype), rows, bias)
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        if self.logit_softcap is not None:
            logits = torch.tanh(logits / self.logit_softcap) * self.logit_softcap
        return logits

    def head_rows(self, draft_ids: Tensor) -> Tensor:
        """Contiguous rows [W, D] of the LM head for target ids ``draft_ids`` [W]; the last selection is kept."""
        return self._draft_rows(draft_ids)[0]

    def _draft_rows(self, draft_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        # Comparing by identity needs no look at the values, which on a GPU would stall every step.
        if self._rows is None or self._rows[0] is not draft_ids:
            ids = draft_ids.to(self.head.device)
            bias = None if self.head_bias is None else self.head_bias[ids]
            self._rows = (draft_ids, self.head[ids].contiguous(), bias)
        return self._rows[1:]

    def _apply(self, fn, recurse: bool = True):
        """Move or cast with the module that holds the ends (``.to``, ``.cuda``, ``.double`` …)."""
        super()._apply(fn, recurse)
        with torch.no_grad():
            embedding = fn(self.embedding)
            head = None if self.tied else fn(self.head)
            head_bias = None if self.head_bias is None else fn(self.head_bias)
        if embedding is not self.embedding or head is not (None if self.tied else self.head):
            self.share(embedding, head, head_bias)
        return self

    def extra_repr(self) -> str:
        """Sizes, for printing a module."""
        return f"vocab_size={self.vocab_size}, hidden_size={self.hidden_size}, tied={self.tied}"
