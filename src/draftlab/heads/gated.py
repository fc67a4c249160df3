"""``head=gated``: the markov bias with a gate that sees the draft's hidden state (method 2.2).

    B_k = (σ(W_g [h_k ; W_1[x_{k-1}]]) ⊙ W_1[x_{k-1}]) W_2          W_g in R^{R x (D+R)}

``gate_proj`` carries a bias, 0 at the start, as released checkpoints do. The module knows nothing of base logits.

    head = GatedHead(vocab_size=49152, draft_vocab_size=4096, hidden_size=576, rank=256)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftlab.heads.markov import MarkovHead


class GatedHead(MarkovHead):
    """Bias from the previous token, weighed component by component by h_k; arguments as :class:`MarkovHead`."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, hidden_size: int, rank: int = 256) -> None:
        super().__init__(vocab_size, draft_vocab_size, hidden_size, rank)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)
        nn.init.zeros_(self.gate_proj.bias)

    def codes(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """The gated W_1[x_{k-1}] [..., R] from hidden states [..., D] and previous tokens [...], each slot by itself."""
        features = self.previous_features(previous)  # [..., R]
        gate = torch.sigmoid(self.gate_proj(torch.cat([hidden.to(features.dtype), features], dim=-1)))
        return gate * features
