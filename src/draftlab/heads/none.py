"""``head=none``: no sequential stage; every slot is drafted from its base logits alone, as DFlash does (method 2.2).

    B_k = 0

It has the interface of every head and no parameters. The module knows nothing of base logits. Example:

    >>> NoHead(vocab_size=8, draft_vocab_size=8, hidden_size=4).bias(torch.zeros(1, 4), torch.zeros(1).long()) is None
    True
"""

from __future__ import annotations

from torch import Tensor

from draftlab.heads.base import Head


class NoHead(Head):
    """A head without parameters and without bias; takes the sizes that every head is built with."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, hidden_size: int) -> None:
        super().__init__()

    def previous_features(self, previous: Tensor) -> None:
        """None: there is no table of previous tokens."""
        return None

    def codes(self, hidden: Tensor, previous: Tensor) -> None:
        """None: the base logits stay as they are."""
        return None

    def start(self, batch_size: int) -> None:
        """None: there is no memory."""
        return None

    def step(self, hidden: Tensor, previous: Tensor, state: None) -> tuple[None, None]:
        """No bias and no state."""
        return None, None
