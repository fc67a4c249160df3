"""What decoding gives for one prompt: its tokens, why they end, and the counts of every round.

Generation(tokens=[5, 9, 2], finish_reason="stop", rounds=[Round(proposed=7, accepted=1, committed=2, confidence=())])
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Round:
    """Counts of one round: ``proposed`` tokens were verified; ``committed`` is ``accepted`` plus the bonus or corrected
    token, if there was one."""

    proposed: int
    accepted: int
    committed: int
    confidence: tuple[float, ...]  # c_1..c_proposed; empty without a confidence head
    draft_top: tuple[float, ...] = ()  # of each proposed token's slot, see Proposal; empty where it is not told
    expected: tuple[float, ...] = ()  # c*_1..c*_proposed, see Verdict
    depth: int | None = None  # draft layers run, 0 if nothing was drafted; None: all, as nothing could be left out


@dataclass
class Generation:
    """What a prompt got. The first token comes from reading the prompt and belongs to no round."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None  # "stop", "length", or None while running
    rounds: list[Round] = field(default_factory=list)
