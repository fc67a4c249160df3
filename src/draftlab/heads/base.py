"""Head: the sequential stage of a drafter, a prefix-dependent bias B_k on the base logits U_k (method 2.2).

    p_k(v | x_0, x_<k) = softmax_v(U_k(v) + B_k(x_<k, v))

Every head can be run in two ways that must agree (case 6): :meth:`Head.bias` for all slots at once with the true
previous tokens (training), and :meth:`Head.start` with :meth:`Head.step` slot by slot with the drafted ones
(decoding). The previous token of slot 0 is the anchor. A head knows nothing of base logits, sampling or draft
vocabularies beyond their size.

    state = head.start(batch_size)
    bias, state = head.step(hidden[:, 0], anchor, state)        # then hidden[:, 1] with the token drafted at slot 0, …
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Head(nn.Module, ABC):
    """Interface of all heads; ``rank`` is R, the width of the previous-token features (0: there are none)."""

    rank: int = 0

    @abstractmethod
    def previous_features(self, previous: Tensor) -> Tensor | None:
        """W_1[x_{k-1}] [..., R] of target token ids [...]; None for a head without a table."""

    @abstractmethod
    def codes(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """What the last product, ``markov_w2``, makes the bias of, [..., G, R]; None means no bias.

        From ``hidden`` [..., G, D] and true previous tokens [..., G].
        """

    def bias(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """B_1..B_G [..., G, W] from ``hidden`` [..., G, D] and true previous tokens [..., G]; None means no bias."""
        codes = self.codes(hidden, previous)
        return None if codes is None else self.markov_w2(codes)

    @abstractmethod
    def start(self, batch_size: int) -> Tensor | None:
        """State before slot 0, for :meth:`step`; None for a head without memory."""

    @abstractmethod
    def step(self, hidden: Tensor, previous: Tensor, state: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """B_k [B, W] and the next state, from h_k [B, D], x_{k-1} [B] and the state before slot k."""
