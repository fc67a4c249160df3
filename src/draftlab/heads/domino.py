"""``head=domino``: a GRU along the block over hidden states and previous tokens; its state is the bias's code.

    s_k = GRU([W_1[x_{k-1}] ; h_k], s_{k-1})                   (R + D in, R wide),  s_0 = 0
    B_k = s_k W_2

The idea is Domino's (Huang et al., "Domino: Decoupling Causal Modeling from Autoregressive Drafting in Speculative Decoding",
2026, arXiv 2605.29707): a small causal encoder corrects the logits of a parallel backbone. There the GRU reads the target's
embeddings of the previous tokens alone, and a low-rank correction reads its state and h_k; here table, rank and W_2 are those of
the other heads, so that the four differ in the recurrence only. Unlike ``rnn``, what is kept is also what is read out, and a reset
gate can drop the prefix. The module knows nothing of base logits.

    head = DominoHead(vocab_size=49152, draft_vocab_size=4096, hidden_size=576, rank=256)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftlab.heads.markov import MarkovHead


class DominoHead(MarkovHead):
    """Bias from all tokens drafted so far in the block and the hidden states up to the slot; arguments as MarkovHead."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, hidden_size: int, rank: int = 256) -> None:
        super().__init__(vocab_size, draft_vocab_size, hidden_size, rank)
        self.gru = nn.GRUCell(rank + hidden_size, rank)
        nn.init.zeros_(self.gru.bias_ih)
        nn.init.zeros_(self.gru.bias_hh)

    def codes(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """s_1..s_G [..., G, R]."""
        given = self._given(hidden, previous).reshape(-1, *hidden.shape[-2:-1], self.gru.input_size)  # [K, G, R+D]
        state, states = self.start(len(given)), []
        for slot in given.unbind(-2):
            state = self.gru(slot, state)
            states.append(state)
        return torch.stack(states, dim=-2).view(*hidden.shape[:-1], self.rank)

    def start(self, batch_size: int) -> Tensor:
        """s_0 = 0, [B, R]."""
        return self.markov_w1.weight.new_zeros(batch_size, self.rank)

    def step(self, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """B_k [B, W] and s_k [B, R] from h_k [B, D], x_{k-1} [B] and s_{k-1} [B, R]."""
        state = self.gru(self._given(hidden, previous), state)
        return self.markov_w2(state), state

    def _given(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """[W_1[x_{k-1}] ; h_k] [..., R+D]."""
        features = self.previous_features(previous)
        return torch.cat([features, hidden.to(features.dtype)], dim=-1)
