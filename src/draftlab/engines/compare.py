"""What an engine wrote with a drafter, held against what it writes without, and its counts against ours; pure functions.

    greedy    equal: the same tokens.  tie: they part where the two best logits differ by less than rounding.  different: else
    τ         1 + accepted / passes, passes being those that verify a draft

An engine drafts no more than may still be written, and counts no pass without a draft; :func:`counted` counts ours so. The
module knows nothing of engines' protocols.

    >>> parting([5, 6, 7], [5, 6, 8])
    2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftlab.decode.generation import Round

EQUAL, TIE, DIFFERENT = "equal", "tie", "different"
# Logits that differ by less are a tie: a pass of one token and one of several add up in another order, and in these widths.
ROUNDING = {"f32": 1e-3, "f16": 0.05, "bf16": 0.4, "q8_0": 0.2}
ROUNDING_QUANTISED = 0.5  # of files with fewer bits, whose activations are rounded to 8 bits, too
TOLERANCE = 0.05  # of accepted lengths, relative


@dataclass(frozen=True)
class Counts:
    """Verification passes and the drafted tokens that they accepted, summed over prompts."""

    passes: int = 0
    accepted: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passes + other.passes, self.accepted + other.accepted)

    @property
    def accepted_length(self) -> float | None:
        """τ, the bonus or corrected token counted; None without a pass."""
        return 1 + self.accepted / self.passes if self.passes else None


def parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token in which two answers differ (the length of one that stops earlier); None if they are equal."""
    for k, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return k
    return None if len(one) == len(other) else min(len(one), len(other))


def verdict(gap: float, best: Sequence[int], chosen: Sequence[int | None], rounding: float) -> str:
    """Tie if the tokens ``chosen`` by the two sides are the two ``best`` ones and lie within ``rounding`` of each other."""
    return TIE if gap < rounding and set(chosen) == set(best) else DIFFERENT


def counted(rounds: Sequence[Round], block_size: int, max_new_tokens: int) -> Counts:
    """Counts of one prompt's rounds as an engine has them.

    The first token comes from reading the prompt. With R tokens left an engine drafts at most R - 1 of them, since a pass
    writes one of its own; with one left it drafts nothing, which is no pass here.
    """
    total, left = Counts(), max_new_tokens - 1
    for each in rounds:
        drafted = min(block_size, left - 1)
        if drafted < 1:
            break
        accepted = min(each.accepted, drafted)
        total += Counts(1, accepted)
        left -= accepted + 1
    return total


def agrees(ours: float | None, theirs: float | None) -> bool:
    """Whether two accepted lengths lie within TOLERANCE of each other."""
    return ours is not None and theirs is not None and abs(theirs / ours - 1) <= TOLERANCE


def break_even(plain_ms: float, draft_ms: float, verify_ms: float) -> float:
    """The accepted length from which drafting pays: a round must cost no more than the plain tokens that it writes."""
    return (draft_ms + verify_ms) / plain_ms
