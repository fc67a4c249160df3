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
    bypass         around another one: does not even draft while that has not paid. Decided before drafting.

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

    def drafts(self) -> bool:
        """Whether to draft in the step that comes; asked once a step, before anything of it is known."""
        return True

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

    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """See :class:`Scheduler`; confidences give the sizes only."""
        rows, gamma = _sizes(confidence)
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
        _sizes(confidence)
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
        return _prefixes(order[: len(grows) if grows.all() else int(grows.argmin())], *_sizes(confidence))


class GlobalSearch(Scheduler):
    """The number of tokens with the largest expected throughput, the smallest of several. Not lossless in the same step."""

    is_lossless = False
    reads_table = True

    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """See :class:`Scheduler`."""
        order, throughput = _walk(confidence, _needed(table, self))
        return _prefixes(order[: int(throughput.argmax())], *_sizes(confidence))


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
        rows, gamma = _sizes(confidence)
        order, throughput = _walk(confidence, _needed(table, self))
        first = gamma if self.first is None else self.first
        per_request = self._budgets[0] if len(self._budgets) == self.lag else first
        if rows:
            self._budgets.append(int(throughput.argmax()) / rows)
        return _prefixes(order[: min(round(per_request * rows), rows * gamma)], rows, gamma)


class Bypass(Scheduler):
    """``inner``, and no drafting for ``rest`` steps once it was not worth it.

    Drafting costs time also when nothing is verified. What a step gains by it is the tokens that it is expected to commit,
    over those that plain decoding commits in the same time, which includes drafting where the table knows it
    (:meth:`Throughput.plus`). Drafting rests when the gains of about the last ``memory`` steps come to no more than nothing, or
    when the budget was 0 in ``patience`` steps running. One request's step says little, hence the memory; it fades in rests,
    too, so that after a long one the steps that draft again decide alone. While they find the same, rests double.
    Decided by steps that are over, hence lossless if ``inner`` is.

    Args:
        patience: drafted steps before the first decision. longest: steps that a rest grows to; None: rests do not grow.

    Raises:
        ValueError: patience, rest or memory below 1, or a longest rest below the first.
    """

    def __init__(
        self, inner: Scheduler, patience: int = 2, rest: int = 16, longest: int | None = None, memory: int = 32
    ) -> None:
        for name, value in (("patience", patience), ("rest", rest), ("memory", memory)):
            if value < 1:
                raise ValueError(f"schedule.{name} must be at least 1 step, got {value}")
        if longest is not None and longest < rest:
            raise ValueError(f"schedule.longest must be null or at least schedule.rest ({rest} steps), got {longest}")
        self.inner, self.patience, self.rest, self.longest = inner, patience, rest, longest or rest
        self.memory = memory
        self.is_lossless = inner.is_lossless
        self.reads_confidence, self.reads_table = inner.reads_confidence, inner.reads_table
        self.reset()

    def reset(self) -> None:
        """Forget earlier steps."""
        self.inner.reset()
        self._gain = 0.0  # of drafting, in plain steps; fades
        self._tried = self._empty = self._since = self._resting = 0
        self._next_rest = self.rest

    def drafts(self) -> bool:
        """See :class:`Scheduler`."""
        self._gain *= 1.0 - 1.0 / self.memory
        if self._resting == 0:
            return self.inner.drafts()
        self._resting -= 1
        return False

    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """See :class:`Scheduler`."""
        lengths = self.inner(confidence, table)
        if not len(lengths):
            return lengths
        self._tried, self._since = self._tried + 1, self._since + 1
        self._empty = 0 if lengths.any() else self._empty + 1
        self._gain += _gain(confidence, lengths, table)
        if self._empty >= self.patience or (self._tried >= self.patience and self._gain <= 0.0):
            self._resting, self._since = self._next_rest, 0
            self._next_rest = min(2 * self._next_rest, self.longest)
            self._tried = self._empty = self.patience - 1  # after the rest one such step is enough
        elif self._since >= self.patience:
            self._next_rest = self.rest
        return lengths


def _gain(confidence: np.ndarray, lengths: np.ndarray, table: Throughput | None) -> float:
    """Expected tokens of a step that verifies ``lengths`` [R], in those of plain decoding in the same time, minus 1."""
    if table is None:
        return float(lengths.any())
    rows, gamma = _sizes(confidence)
    survival = np.cumprod(confidence, axis=1)
    committed = rows + survival[np.arange(gamma) < lengths[:, None]].sum()
    plain = rows * table.passes(rows) / table(rows + lengths.sum())  # in the time of this step
    return float((committed - plain) / rows)


def _walk(confidence: np.ndarray, table: Throughput) -> tuple[np.ndarray, np.ndarray]:
    """Row of every candidate in descending survival [R*G], and Θ [R*G + 1] of admitting the first 0, 1, … of them."""
    rows, gamma = _sizes(confidence)
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


def _sizes(confidence: np.ndarray) -> tuple[int, int]:
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
