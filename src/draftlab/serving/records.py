"""What a serving experiment leaves: one row a step, one row a request, and the figures of a cell that come from them.

    throughput        committed tokens a second, over all users, while the experiment was at its load
    user_speed        tokens a second that one request got, from its first token to its last; mean and 5th percentile
    budget            tokens that the target scored for a request and step, its anchor included
    wasted            share of the verified draft tokens that were rejected
    scheduling        share of the time that choosing prefix lengths took

The same rows come from the engine (seconds of a clock) and from the simulator (seconds of its tables), so that one can be
held against the other. The module knows neither.

    summarise(steps, requests, warm_up=10.0)["throughput"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Step:
    """One engine step. ``start`` and the four durations are seconds; the rest are counts over the requests in it."""

    start: float
    prefill: float  # reading the prompts that joined
    draft: float
    schedule: float
    verify: float
    requests: int
    drafted: int
    verified: int  # draft tokens that went to the target
    accepted: int
    committed: int  # accepted ones, and one bonus or corrected token a request

    @property
    def seconds(self) -> float:
        return self.prefill + self.draft + self.schedule + self.verify


@dataclass(frozen=True)
class Served:
    """One finished request; times are seconds since the start of the experiment, ``tokens`` those of its answer."""

    request: int
    domain: str
    arrival: float
    joined: float
    first_token: float
    finished: float
    tokens: int


def frame(rows: Sequence[Step] | Sequence[Served]) -> pd.DataFrame:
    """Rows as a table, with a column a field."""
    return pd.DataFrame([asdict(row) for row in rows])


def summarise(steps: Sequence[Step], requests: Sequence[Served], warm_up: float = 0.0) -> dict[str, Any]:
    """The figures of one cell; steps that start, and requests that arrive, before ``warm_up`` seconds do not count.

    Raises:
        ValueError: nothing is left after the warm-up.
    """
    steps = [step for step in steps if step.start >= warm_up]
    requests = [request for request in requests if request.arrival >= warm_up]
    if not steps or not requests:
        raise ValueError(
            f"after a warm-up of {warm_up:g} s {len(steps)} steps and {len(requests)} finished requests are left; "
            "serve longer or warm up less"
        )
    totals = {name: sum(getattr(step, name) for step in steps) for name in ("verified", "accepted", "committed")}
    rows = sum(step.requests for step in steps)
    busy = sum(step.seconds for step in steps)
    elapsed = steps[-1].start + steps[-1].seconds - steps[0].start
    speeds = user_speeds(requests)
    return {
        "steps": len(steps),
        "requests": len(requests),
        "seconds": elapsed,
        "throughput": totals["committed"] / elapsed,
        "user_speed_mean": float(np.mean(speeds)) if len(speeds) else float("nan"),
        "user_speed_p5": float(np.percentile(speeds, 5)) if len(speeds) else float("nan"),
        "concurrency": rows / len(steps),
        "budget": (totals["verified"] + rows) / rows if rows else float("nan"),
        "accepted_length": totals["committed"] / rows if rows else float("nan"),
        "wasted": 1.0 - totals["accepted"] / totals["verified"] if totals["verified"] else 0.0,
        "draft_share": sum(step.draft for step in steps) / busy,
        "scheduling_share": sum(step.schedule for step in steps) / busy,
    }


def user_speeds(requests: Sequence[Served]) -> np.ndarray:
    """Tokens a second [n] that each request of two tokens or more got after its first token."""
    return np.array([(r.tokens - 1) / (r.finished - r.first_token) for r in requests if r.finished > r.first_token])
