"""Schedulers: how many tokens of each drafted block go to the target (method 5, Algorithm 1).

    Θ(K) = (R + Σ of the K largest a_{r,j}) · SPS(R + K)          expected committed tokens a second of a step

Candidates (r, j) are admitted in descending survival a_{r,j} = Π_{i≤j} c_{r,i}; since a falls along a block, what a row
gets is always a prefix. They differ in how K is chosen:

    fixed          the same number a row
    threshold      each row up to its first c_j below a value
    early_stop     Algorithm 1: admit while Θ grows, stop at the first token that does not raise it. Lossless: a token is
                   admitted for what stands before it and never for what it turned out to be.
    global         the K with the largest Θ of all. NOT lossless in the same step: a later token's confidence, which knows
                   the sampled token, decides whether that token is verified (method 5, counterexample). For analysis.
    asynchronous   K by global search over the survivals of ``lag`` steps ago, order from the current ones. Lossless by the
                   time barrier: no current token has a say in K.
    bypass         around another one: drafts no more tokens than have paid, or none (:mod:`draftlab.scheduling.bypass`)

A scheduler sees numbers only. A request takes part in a step with its anchor, which costs one token and commits one.

    EarlyStop()(confidence, table)        # [R, G] -> [R] int64
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

import numpy as np

from draftlab.scheduling.throughput import Throughput


class Scheduler(ABC):
    """Chooses prefix lengths; ``is_lossless`` says whether the output law stays the target's."""

    is_lossless = True
    reads_confidence = True  # whether the drafter must predict confidences
    reads_table = False  # whether an SPS table is needed

    @abstractmethod
    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """Tokens to verify [R] int64, 0..G each, from calibrated conditional confidences [R, G] and the SPS table."""

    def draft_length(self, gamma: int) -> int:
        """Tokens to draft a row, 0..``gamma``, in the step that comes; asked once a step, before anything of it is known."""
        return gamma

    def reset(self) -> None:  # noqa: B027 - most schedulers have no memory
        """Forget earlier steps; a scheduler without memory has none."""


class Fixed(Scheduler):
    """The first ``length`` tokens of every block; None: all of them.

    Raises:
        ValueError: a negative length, or, when called, one beyond the block.
    """

    reads_confidence = False

    def __init__(self, length: int | None = None) -> None:
        if length is not None and length < 0:
            raise ValueError(f"schedule.length must be null or at least 0, got {length}")
        self.length = length

    def draft_length(self, gamma: int) -> int:
        """See :class:`Scheduler`: what is not verified need not be drafted."""
        return gamma if self.length is None else min(self.length, gamma)

    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """See :class:`Scheduler`; confidences give the sizes only."""
        rows, gamma = sizes(confidence)
        if self.length is not None and self.length > gamma:
            raise ValueError(
                f"schedule.length is {self.length}, but blocks have {gamma} tokens (gamma); make it smaller"
            )
        return np.full(rows, gamma if self.length is None else self.length, dtype=np.int64)


class Threshold(Scheduler):
    """Every block up to its first conditional confidence below ``value``.

    Raises:
        ValueError: a value outside [0, 1].
    """

    def __init__(self, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"schedule.value must lie in [0, 1], got {value}")
        self.value = value

    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """See :class:`Scheduler`; the table is not used."""
        sizes(confidence)
        return (np.asarray(confidence) >= self.value).cumprod(axis=1).sum(axis=1).astype(np.int64)


class EarlyStop(Scheduler):
    """Algorithm 1: admit by descending survival while the expected throughput grows.

    ``smooth`` reads the convex form of the table, over which it does not halt at a step or bump that pays off further on.
    The table knows no token, so the decision stays as lossless as it was.
    """

    reads_table = True

    def __init__(self, smooth: bool = False) -> None:
        self.smooth = smooth
        self._passes: np.ndarray | None = None  # of the table that was read last
        self._convex: dict[float, Throughput] = {}  # its convex form by the seconds that a step takes besides

    def _read(self, table: Throughput) -> Throughput:
        if not self.smooth:
            return table
        if self._passes is not table.steps_per_second:
            self._passes, self._convex = table.steps_per_second, {}
        if table.fixed_seconds not in self._convex:
            self._convex[table.fixed_seconds] = table.convex()
        return self._convex[table.fixed_seconds]

    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """See :class:`Scheduler`."""
        order, throughput = _walk(confidence, self._read(_needed(table, self)))
        grows = throughput[1:] > throughput[:-1]
        return _prefixes(order[: len(grows) if grows.all() else int(grows.argmin())], *sizes(confidence))


class GlobalSearch(Scheduler):
    """The number of tokens with the largest expected throughput, the smallest of several. Not lossless in the same step."""

    is_lossless = False
    reads_table = True

    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """See :class:`Scheduler`."""
        order, throughput = _walk(confidence, _needed(table, self))
        return _prefixes(order[: int(throughput.argmax())], *sizes(confidence))


class Asynchronous(Scheduler):
    """Budget from the survivals of ``lag`` steps ago, order from the current ones.

    The budget is a number of tokens a request, so that it carries over when requests come and go; it is rounded for the
    step as a whole. Until ``lag`` steps were seen, ``first`` tokens a request (None: all).

    Raises:
        ValueError: a lag below 1, which would let current tokens decide on themselves.
    """

    reads_table = True

    def __init__(self, lag: int = 2, first: int | None = None) -> None:
        if lag < 1:
            raise ValueError(f"schedule.lag must be at least 1 step, got {lag}; 0 would not be lossless")
        if first is not None and first < 0:
            raise ValueError(f"schedule.first must be null or at least 0, got {first}")
        self.lag, self.first = lag, first
        self.reset()

    def reset(self) -> None:
        """Forget earlier steps."""
        self._budgets: deque[float] = deque(maxlen=self.lag)

    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """See :class:`Scheduler`; remembers the best budget of this step for ``lag`` steps later."""
        rows, gamma = sizes(confidence)
        order, throughput = _walk(confidence, _needed(table, self))
        first = gamma if self.first is None else self.first
        per_request = self._budgets[0] if len(self._budgets) == self.lag else first
        if rows:
            self._budgets.append(int(throughput.argmax()) / rows)
        return _prefixes(order[: min(round(per_request * rows), rows * gamma)], rows, gamma)


def _walk(confidence: np.ndarray, table: Throughput) -> tuple[np.ndarray, np.ndarray]:
    """Row of every candidate in descending survival [R*G], and Θ [R*G + 1] of admitting the first 0, 1, … of them."""
    rows, gamma = sizes(confidence)
    survival = np.cumprod(confidence, axis=1).ravel()
    order = np.argsort(-survival, kind="stable")  # of equal ones the earlier row, and in a row the earlier token
    committed = np.empty(rows * gamma + 1)
    committed[0] = rows
    np.cumsum(survival[order], out=committed[1:])
    committed[1:] += rows
    return order // gamma if gamma else order, committed * table.upto(rows * (gamma + 1))[rows:]


def _prefixes(admitted: np.ndarray, rows: int, gamma: int) -> np.ndarray:
    """How many candidates of each row are among ``admitted`` (their rows)."""
    return np.bincount(admitted, minlength=rows).astype(np.int64)


def sizes(confidence: np.ndarray) -> tuple[int, int]:
    confidence = np.asarray(confidence)
    if confidence.ndim != 2:
        raise ValueError(f"confidences are [requests, gamma], got shape {confidence.shape}")
    if confidence.size and not (confidence.min() >= 0.0 and confidence.max() <= 1.0):
        raise ValueError("confidences must be finite and lie in [0, 1]")
    return confidence.shape


def _needed(table: Throughput | None, scheduler: Scheduler) -> Throughput:
    if table is None:
        raise ValueError(f"{type(scheduler).__name__} needs an SPS table; make one with python src/schedule.py profile")
    return table
