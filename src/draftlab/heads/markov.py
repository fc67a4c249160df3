"""``head=markov``: a first-order, low-rank bias on the base logits (method 2.2).

    B_k = W_1[x_{k-1}] W_2          W_1 in R^{V x R} (a lookup),  W_2 in R^{R x W}

W_1 has a row for every token of the target, since any token can be an anchor; W_2 has columns for the draft
vocabulary only. The bias starts at 0 (W_2 = 0), so training starts from the parallel backbone. The module knows
nothing of base logits.

    head = MarkovHead(vocab_size=49152, draft_vocab_size=4096, hidden_size=576, rank=256)
    bias = head.bias(hidden, previous)                     # [..., G, D], [..., G] -> [..., G, W]
"""

from __future__ import annotations

from torch import Tensor, nn

from draftlab.heads.base import Head


class MarkovHead(Head):
    """Bias from the previous token alone.

    Args:
        vocab_size: V, rows of W_1 (token ids of the target).
        draft_vocab_size: W, columns of W_2.
        hidden_size: D (unused here; every head is built with the same sizes).
        rank: R.

    Raises:
        ValueError: a rank below 1.
    """

    def __init__(self, vocab_size: int, draft_vocab_size: int, hidden_size: int, rank: int = 256) -> None:
        super().__init__()
        if rank < 1:
            raise ValueError(f"head.rank must be at least 1, got {rank}; choose head=none to draft without a head")
        self.rank = rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        nn.init.zeros_(self.markov_w2.weight)

    def previous_features(self, previous: Tensor) -> Tensor:
        """W_1[x_{k-1}] [..., R] of target token ids [...]."""
        return self.markov_w1(previous)

    def codes(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """W_1[x_{k-1}] [..., R] of previous tokens [...]; slots do not depend on each other."""
        return self.previous_features(previous)

    def start(self, batch_size: int) -> Tensor | None:
        """None: one token back is all that this head remembers."""
        return None

    def step(self, hidden: Tensor, previous: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """B_k [B, W] from h_k [B, D] and x_{k-1} [B]."""
        return self.bias(hidden, previous), state
