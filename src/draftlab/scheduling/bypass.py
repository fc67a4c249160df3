"""Bypass: around another scheduler, drafts no more tokens than have paid, or none at all (method 5).

Drafting costs time also when little of it is verified, and with some drafters every further token costs more. What a step gains
by drafting j tokens a row is what it is expected to commit, over what plain decoding commits in the same time:

    gain(j) = [R + Σ_r Σ_{i ≤ min(l_r, j)} a_{r,i}  -  R · SPS(R) · T(j)] / R            plain steps; gain(0) = 0
    T(j)    = 1 / SPS(R + Σ_r min(l_r, j)) + T_draft(R, j)                               l_r: what ``inner`` verifies

    whole blocks --(the best j is shorter)--> a rest: j tokens for some steps --> whole blocks again, to see what has changed

Decided before drafting by steps that are over, hence lossless if ``inner`` is.

    Bypass(EarlyStop(smooth=True), longest=256)
"""

from __future__ import annotations

import numpy as np

from draftlab.scheduling.schedulers import Scheduler, sizes
from draftlab.scheduling.throughput import Throughput


class Bypass(Scheduler):
    """``inner``, drafting in rests only as many tokens as had the largest mean gain in the steps before; often 0.

    One block says little, so means are over about the last ``memory`` steps. They fade in rests, too: after a long one the steps
    that draft whole blocks again decide alone. While they find the same, rests double.

    Args:
        patience: whole blocks before the first decision; half as many after a rest.
        rest: steps of the first rest. longest: steps that it grows to; None: rests do not grow.

    Raises:
        ValueError: patience, rest or memory below 1, or a longest rest below the first.
    """

    def __init__(
        self, inner: Scheduler, patience: int = 16, rest: int = 16, longest: int | None = None, memory: int = 32
    ) -> None:
        for name, value in (("patience", patience), ("rest", rest), ("memory", memory)):
            if value < 1:
                unit = "block" if name == "patience" else "step"
                raise ValueError(f"schedule.{name} must be at least 1 {unit}, got {value}")
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
        self._gain = self._weight = np.zeros(0)  # [G + 1] by tokens drafted: sums over steps, fading
        self._needed, self._seen = self.patience, 0  # whole blocks before a decision, and so far
        self._length, self._left = 0, 0  # tokens drafted in a rest, and its steps to come
        self._rests = False  # whether the step that runs is of a rest
        self._next_rest = self.rest

    def draft_length(self, gamma: int) -> int:
        """See :class:`Scheduler`."""
        fade = 1.0 - 1.0 / self.memory
        self._gain, self._weight = self._gain * fade, self._weight * fade
        whole = self.inner.draft_length(gamma)
        self._rests = self._left > 0
        if not self._rests:
            return whole
        self._left -= 1
        return min(self._length, whole)

    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """See :class:`Scheduler`."""
        lengths = self.inner(confidence, table)
        rows, drafted = sizes(confidence)
        if not rows or not drafted:
            return lengths
        self._note(gains(confidence, lengths, table))
        best = self._best(drafted)
        if self._rests:
            self._length = min(self._length, best)
            return lengths
        self._seen += rows
        if self._seen >= self._needed:
            self._decide(best, drafted)
        return lengths

    def _note(self, gain: np.ndarray) -> None:
        missing = len(gain) - len(self._gain)
        if missing > 0:
            self._gain, self._weight = np.pad(self._gain, (0, missing)), np.pad(self._weight, (0, missing))
        self._gain[: len(gain)] += gain
        self._weight[: len(gain)] += 1.0

    def _best(self, drafted: int) -> int:
        """The number of tokens up to ``drafted`` with the largest mean gain, the smallest of several."""
        return int(np.argmax(self._gain[: drafted + 1] / self._weight[: drafted + 1]))

    def _decide(self, best: int, drafted: int) -> None:
        if best == drafted:
            self._next_rest = self.rest
            return
        self._length, self._left = best, self._next_rest
        self._next_rest = min(2 * self._next_rest, self.longest)
        self._needed, self._seen = -(-self.patience // 2), 0


def gains(confidence: np.ndarray, lengths: np.ndarray, table: Throughput | None) -> np.ndarray:
    """Gain [G + 1] of a step in which 0..G tokens had been drafted, from what it drafted (confidences [R, G]) and verified
    (``lengths`` [R]); without a table, time counts for nothing."""
    rows, drafted = sizes(confidence)
    sent = np.arange(drafted) < np.asarray(lengths)[:, None]
    expected = np.append(0.0, np.cumsum((np.cumprod(confidence, axis=1) * sent).sum(axis=0)))
    if table is None:
        return expected / rows
    verified = np.append(0, np.cumsum(sent.sum(axis=0)))
    spared = np.arange(drafted, -1, -1) * table.token_seconds
    seconds = 1.0 / table.passes(rows + verified) + np.maximum(table.fixed_seconds - spared, 0.0)
    gain = 1.0 + expected / rows - table.passes(rows) * seconds
    gain[0] = 0.0
    return gain
