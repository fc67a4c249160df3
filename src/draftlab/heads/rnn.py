"""``head=rnn``: a gated recurrence over the block, so that the bias depends on the whole drafted prefix (method 2.2).

    z_k = [s_{k-1} ; W_1[x_{k-1}] ; h_k]                       (2R + D wide),  s_0 = 0
    (g, c, o) = W_z z_k                                        one linear, each R wide
    s_k = σ(g) ⊙ s_{k-1} + (1 - σ(g)) ⊙ tanh(c)
    B_k = tanh(o) W_2

``joint_proj`` carries a bias, 0 at the start, as released checkpoints do. The module knows nothing of base logits.

    head = RNNHead(vocab_size=49152, draft_vocab_size=4096, hidden_size=576, rank=256)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draftlab.heads.markov import MarkovHead


class RNNHead(MarkovHead):
    """Bias from all tokens drafted so far in the block; arguments as :class:`MarkovHead`."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, hidden_size: int, rank: int = 256) -> None:
        super().__init__(vocab_size, draft_vocab_size, hidden_size, rank)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)
        nn.init.zeros_(self.joint_proj.bias)

    def codes(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """tanh(o) [..., G, R]; what does not depend on the state runs for all slots at once."""
        given = self._given(hidden, previous)  # [..., G, 3R]
        state = given.new_zeros(*given.shape[:-2], self.rank)
        outputs = []
        for slot in given.unbind(-2):
            output, state = self._advance(slot, state)
            outputs.append(output)
        return torch.stack(outputs, dim=-2)

    def start(self, batch_size: int) -> Tensor:
        """s_0 = 0, [B, R]."""
        return self.markov_w1.weight.new_zeros(batch_size, self.rank)

    def step(self, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """B_k [B, W] and s_k [B, R] from h_k [B, D], x_{k-1} [B] and s_{k-1} [B, R]."""
        output, state = self._advance(self._given(hidden, previous), state)
        return self.markov_w2(output), state

    def _given(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """The part of W_z z_k [..., 3R] that is known before the recurrence: previous token, hidden state, bias."""
        features = self.previous_features(previous)
        known = torch.cat([features, hidden.to(features.dtype)], dim=-1)
        return F.linear(known, self.joint_proj.weight[:, self.rank :], self.joint_proj.bias)

    def _advance(self, given: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """tanh(o) and s_k [..., R] from the known part [..., 3R] and s_{k-1} [..., R]."""
        joint = given + F.linear(state, self.joint_proj.weight[:, : self.rank])
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        state = gate * state + (1.0 - gate) * torch.tanh(candidate)
        return torch.tanh(output), state
