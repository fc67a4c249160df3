"""When drafting stops early: how deep a block is computed, and whether a request drafts at all in a round.

    depth   a row stops behind the first exit i with c_1^(i) < survival                 (:mod:`draftlab.drafters.exits`)
    none    a request with  m < accepted  drafts nothing for ``rest`` rounds, then once, to see whether it got easier:
            m <- memory · m + (1 - memory) · accepted tokens, after every round with a draft; m = 1 at first

Both are known before a token of the round is drawn: c_1 reads the context and the anchor, m what earlier rounds came to. Given
everything up to a round, its draft is one of a fixed law that the proposal states, so what the round commits follows the
target's law, and so does the whole output. The module knows nothing of models.

    policy = ExitPolicy(survival=0.2, accepted=None, memory=0.8, rest=4)
    habits = [Habit(), Habit()]                              # one a request
    drafter.propose(…, leaving_out=policy.leave_out(habits, device))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftlab.drafters.exits import LeaveOut

HOPE = 1.0  # accepted tokens a round that a request is believed to have before its first one


@dataclass(frozen=True)
class ExitPolicy:
    """What may be left out of drafting.

    Args:
        survival: predicted survival of the first token below which a row stops at an exit; None: no row does.
        accepted: mean accepted tokens a round below which a request sits out; None: none does.
        memory: share of the mean that one more round leaves of it, 0 to below 1.
        rest: rounds to sit out before the next try.

    Raises:
        ValueError: a value outside its range.
    """

    survival: float | None
    accepted: float | None
    memory: float
    rest: int

    def __post_init__(self) -> None:
        if self.survival is not None and not (_is_number(self.survival) and 0 < self.survival <= 1):
            raise ValueError(f"exit.survival must be null (off) or a number above 0, at most 1, got {self.survival!r}")
        if self.accepted is not None and not (_is_number(self.accepted) and self.accepted > 0):
            raise ValueError(f"exit.accepted must be null (off) or a number of tokens above 0, got {self.accepted!r}")
        if not (_is_number(self.memory) and 0 <= self.memory < 1):
            raise ValueError(f"exit.memory must be at least 0 and below 1, got {self.memory!r}")
        if not isinstance(self.rest, int) or isinstance(self.rest, bool) or self.rest < 1:
            raise ValueError(f"exit.rest must be at least 1 and whole, in rounds, got {self.rest!r}")

    @property
    def is_off(self) -> bool:
        """Whether everything is drafted to the end."""
        return self.survival is None and self.accepted is None

    def check(self, drafter) -> None:
        """Refuse what ``drafter`` cannot leave out.

        Raises:
            ValueError: no exits, or a family that drafts all rows alike.
        """
        if self.survival is not None and not drafter.exit_layers:
            raise ValueError(
                f"exit.survival={self.survival} needs a drafter with early exits, and this one ({drafter.family}) was trained "
                "without; train one with drafter=dspark_exits, or set exit.survival=null"
            )
        if self.accepted is not None and not drafter.can_sit_out:
            raise ValueError(
                f"exit.accepted={self.accepted}: {drafter.family} drafts all rows alike; use drafter=dspark or dflash, or set "
                "exit.accepted=null"
            )

    def leave_out(self, habits: Sequence[Habit], device: torch.device) -> LeaveOut:
        """What the coming round leaves out, for one request a row."""
        drafts = None
        if self.accepted is not None:
            drafts = torch.tensor([habit.drafts(self) for habit in habits], device=device)
        return LeaveOut(self.survival or 0.0, drafts)


@dataclass
class Habit:
    """What earlier rounds of one request came to."""

    mean: float = HOPE  # running mean of accepted tokens
    waited: int = 0  # rounds without a draft since the last one with

    def drafts(self, policy: ExitPolicy) -> bool:
        """Whether the request drafts in the coming round."""
        return policy.accepted is None or self.mean >= policy.accepted or self.waited >= policy.rest

    def note(self, policy: ExitPolicy | None, proposed: int, accepted: int) -> None:
        """Take in a round that has been verified."""
        if policy is None:
            return
        if proposed == 0:
            self.waited += 1
            return
        self.waited = 0
        self.mean = policy.memory * self.mean + (1.0 - policy.memory) * accepted


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
