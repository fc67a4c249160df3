"""Confidence head: how likely slot k is accepted, given that all before it were (method 2.2).

    c_k = σ(w^T [h_k ; W_1[x_{k-1}]] + b)                      without a markov table the feature is h_k alone

It returns logits; the loss, calibration and decoding apply the sigmoid. The module knows nothing of labels.

    confidence = torch.sigmoid(head(hidden, head_features))    # [..., D], [..., R] -> [...]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConfidenceHead(nn.Module):
    """One linear unit over D (+ R) features."""

    def __init__(self, hidden_size: int, rank: int = 0) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size + rank, 1)
        nn.init.zeros_(self.proj.bias)

    def forward(self, hidden: Tensor, previous_features: Tensor | None) -> Tensor:
        """Logits [...] of c_k from h_k [..., D] and W_1[x_{k-1}] [..., R] (None: there is no table)."""
        features = hidden
        if previous_features is not None:
            features = torch.cat([hidden, previous_features.to(hidden.dtype)], dim=-1)
        return self.proj(features).squeeze(-1)
