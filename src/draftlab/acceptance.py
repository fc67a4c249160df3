"""Accept rate, survival and expected accepted length: one function per quantity (method 1).

    accept_rate      c*_k = Σ_v min(p_d^k(v), p_t^k(v)) = 1 - ½ ‖p_d^k - p_t^k‖_1     conditional on all before it
    survival         a_k  = Π_{i≤k} c_i                                               probability of the whole prefix
    accepted_length  τ    = 1 + Σ_k a_k                                               expected, bonus token included

Loss, confidence label, metrics and scheduler all call these. The module knows nothing of models or temperature.

    >>> accept_rate(torch.tensor([0.5, 0.5]), torch.tensor([0.7, 0.3]))
    tensor(0.8000)
"""

from __future__ import annotations

import torch
from torch import Tensor


def accept_rate(draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """Probability [...] that a token of law ``draft_probs`` [..., W] passes the test against ``target_probs`` [..., W].

    Over a reduced draft vocabulary, pass the target's probabilities of those W tokens (they sum to less than 1): tokens
    outside it have draft probability 0 and add nothing to Σ min, so the value stays exact.
    """
    return torch.minimum(draft_probs, target_probs).sum(-1)


def l1_distance(draft_probs: Tensor, target_probs: Tensor) -> Tensor:
    """‖p_d - p_t‖_1 [...] in [0, 2], of full laws [..., W] or of a reduced draft vocabulary.

    The target mass outside a reduced vocabulary is met by draft probability 0, so it adds itself: 1 - Σ_W p_t(v).
    """
    outside = (1.0 - target_probs.sum(-1)).clamp_min(0.0)
    return (draft_probs - target_probs).abs().sum(-1) + outside


def survival(conditional: Tensor) -> Tensor:
    """Prefix probabilities a_k [..., G] from conditional ones c_k [..., G]."""
    return conditional.cumprod(-1)


def expected_accepted_length(conditional: Tensor) -> Tensor:
    """Expected accepted length τ [...] of one round, bonus token included, from c_k [..., G]."""
    return 1.0 + survival(conditional).sum(-1)
