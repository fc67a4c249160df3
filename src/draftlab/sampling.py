"""From logits to the law that tokens are really drawn from, to samples, and to the residual law (method 1).

The same :func:`probs` serves target and drafter, so both sides of the acceptance test are transformed alike;
temperature 0 yields a one-hot law, never un-tempered probabilities. The module knows nothing of models or batches.

    >>> probs(torch.tensor([1.0, 3.0, 2.0]), Sampling(temperature=0.0))
    tensor([0., 1., 0.])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MIN_TEMPERATURE = 1e-4  # above 0; logits divided by less leave float32
BROKEN = "the logits are broken (overflow in half precision?)"


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: temperature T, then top-k, then top-p, then min-p; the neutral values switch a step off.

    Raises:
        ValueError: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0 keeps every token
    top_p: float = 1.0  # 1 keeps every token
    min_p: float = 0.0  # 0 keeps every token

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"sampling.temperature must be a finite number >= 0, got {self.temperature}")
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"sampling.temperature must be 0 (greedy) or at least {MIN_TEMPERATURE:g}, got {self.temperature}"
            )
        if self.top_k < 0 or int(self.top_k) != self.top_k:
            raise ValueError(f"sampling.top_k must be a whole number >= 0 (0 keeps every token), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p must lie in (0, 1] (1 keeps every token), got {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"sampling.min_p must lie in [0, 1) (0 keeps every token), got {self.min_p}")

    @property
    def greedy(self) -> bool:
        """True at temperature 0: the law is one-hot on the argmax."""
        return self.temperature == 0


class RowDraws:
    """Random numbers drawn beforehand, in place of a generator: rows with generators of their own draw side by side.

    Args:
        uniform: [B, n] in [0, 1); each call of :func:`sample` takes the next column.
    """

    def __init__(self, uniform: Tensor) -> None:
        self.uniform, self.used = uniform, 0

    @classmethod
    def of(cls, generators: Sequence[torch.Generator], count: int) -> RowDraws:
        """``count`` numbers a row from each row's own generator (on the CPU), so that no row's depend on its company."""
        rows = [torch.rand(count, generator=generator, dtype=torch.float64) for generator in generators]
        return cls(torch.stack(rows))

    def next(self) -> Tensor:
        """The next column [B, 1]."""
        self.used += 1
        return self.uniform[:, self.used - 1 : self.used]


def probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Law [..., V] of logits [..., V] in float32 or better: one-hot at T = 0, else softmax(logits/T), then the cuts."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.greedy:
        return torch.zeros_like(logits).scatter_(-1, best_token(logits).unsqueeze(-1), 1.0)
    law = torch.softmax(logits / sampling.temperature, dim=-1)
    if 0 < sampling.top_k < law.shape[-1]:
        law = _renormalise(_keep_top_k(law, sampling.top_k))
    if sampling.top_p < 1:
        law = _renormalise(_keep_top_p(law, sampling.top_p))
    if sampling.min_p > 0:
        law = _renormalise(law.masked_fill(law < sampling.min_p * law.amax(-1, keepdim=True), 0.0))
    return law


def best_token(logits: Tensor) -> Tensor:
    """Most likely token [...] of logits [..., V], the first of equal ones.

    Raises:
        ValueError: a row whose largest logit is NaN or infinite; an argmax of it would be a token like any other.
    """
    largest, token = logits.max(-1)
    if not bool(largest.isfinite().all()):
        raise ValueError(f"the largest logit of a row is NaN or infinite; {BROKEN}")
    return token


def top_probability(logits: Tensor) -> Tensor:
    """Probability [...] of the most likely token under softmax(logits [..., V]), before temperature and cuts."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return torch.exp(logits.amax(-1) - logits.logsumexp(-1))


def sample(law: Tensor, generator: torch.Generator | RowDraws | None = None) -> Tensor:
    """Draw one token id [...] from each law [..., V] (rows need not be normalised).

    Raises:
        ValueError: a row without mass or with NaN, as broken logits make it.
    """
    return _draw(law.reshape(-1, law.shape[-1]), generator).reshape(law.shape[:-1])


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """norm(max(0, p_t - p_d)) [..., V], the law of the corrected token after a rejection (method 1).

    Where the two laws are equal no rejection can happen; rounding may still leave a zero row, which becomes p_t itself.
    """
    excess = (target_probs - draft_probs).clamp_min(0.0)
    total = excess.sum(-1, keepdim=True)
    return torch.where(total > 0, excess / total.clamp_min(torch.finfo(excess.dtype).tiny), target_probs)


def _draw(law: Tensor, generator: torch.Generator | RowDraws | None) -> Tensor:
    """Token ids [N] from laws [N, V], by inverting the cumulative sum: one random number a row, where multinomial draws V."""
    cumulative = law.double().cumsum(-1)
    total = cumulative[:, -1:]
    if not bool(((total > 0) & total.isfinite()).all()):
        raise ValueError(f"a law to sample from has no mass or is NaN; {BROKEN}")
    if isinstance(generator, RowDraws):
        uniform = generator.next().to(total.device)
    else:
        uniform = torch.rand(total.shape, generator=generator, dtype=total.dtype, device=total.device)
    # The first token whose cumulative mass exceeds the draw, hence never one of probability 0.
    return torch.searchsorted(cumulative, uniform * total, right=True).squeeze(-1).clamp_max(law.shape[-1] - 1)


def _renormalise(law: Tensor) -> Tensor:
    return law / law.sum(-1, keepdim=True)


def _keep_top_k(law: Tensor, k: int) -> Tensor:
    top = law.topk(k, dim=-1)
    return torch.zeros_like(law).scatter_(-1, top.indices, top.values)


def _keep_top_p(law: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches top_p (the token that crosses it included)."""
    ordered, indices = law.sort(dim=-1, descending=True)
    mass_before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(law).scatter_(-1, indices, ordered.masked_fill(mass_before >= top_p, 0.0))
