"""What the parts of a step cost, in seconds: tables for the simulator, given, generated, or taken from an engine's steps.

    step = prefill + draft + schedule + verify, and ``between`` seconds to the next one
    prefill    seconds a request that joins        draft    interpolated over requests in the step
    schedule   seconds a drafted token             verify   1 / SPS(B), B = requests + verified tokens

    drafting k of G tokens takes 1 - draft_slots · (1 - k/G) of the time of whole blocks

    staircase  SPS of a GPU: a pass costs the reading of the weights until ``saturation`` tokens fill the arithmetic units,
               then in proportion to its tokens, in tiles; odd tiles cost a share ``jag`` more (half-filled waves)

        1 / SPS(B) = base · max(1, tile·⌈B/tile⌉ / saturation) · (1 + jag · [⌈B/tile⌉ odd])

The module knows nothing of requests.

    costs = Costs([1, 256], [0.002, 0.004], prefill=0.01, schedule=1e-7)
    table = staircase(limit=4096, base=0.02, saturation=512, tile=64)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftlab.scheduling import Throughput
from draftlab.serving.records import Served, Step

BINS = 48  # of tokens a pass, in a table from an engine's steps: each is a mean over enough of them


@dataclass(frozen=True)
class Costs:
    """Seconds of everything but verification.

    Args:
        draft_requests: requests in a step, whole and increasing; beyond the ends the nearest holds.
        draft_seconds: of drafting for so many. prefill: a joining request. schedule: a drafted token.
        between: from the end of a step to the start of the next: what an engine does besides.
        draft_slots: share of drafting that goes with the tokens drafted: 1 for a chain of passes, 0 for blocks whose length
            costs nothing.

    Raises:
        ValueError: no point, requests that do not increase, negative seconds, or a share outside [0, 1].
    """

    draft_requests: Sequence[int] = (1,)
    draft_seconds: Sequence[float] = (0.0,)
    prefill: float = 0.0
    schedule: float = 0.0
    between: float = 0.0
    draft_slots: float = 0.0

    def __post_init__(self) -> None:
        requests, seconds = np.asarray(self.draft_requests), np.asarray(self.draft_seconds, dtype=np.float64)
        if requests.ndim != 1 or not len(requests) or requests.shape != seconds.shape or np.any(np.diff(requests) <= 0):
            raise ValueError(
                f"a drafting table needs increasing requests and a time for each, got {list(self.draft_requests)} and "
                f"{list(self.draft_seconds)}"
            )
        times = np.array([*seconds, self.prefill, self.schedule, self.between])
        if not np.isfinite(times).all() or times.min() < 0:
            raise ValueError(
                f"drafting, prefill, schedule and between are finite seconds of at least 0, got {times.tolist()}"
            )
        if not 0.0 <= self.draft_slots <= 1.0:
            raise ValueError(f"draft_slots is a share of drafting in [0, 1], got {self.draft_slots}")

    def of_part(self, drafted: int, gamma: int) -> float:
        """Time of drafting the first ``drafted`` of ``gamma`` tokens, in that of all; 0 of none."""
        return 1.0 - self.draft_slots * (1.0 - drafted / gamma) if drafted else 0.0

    def draft_upto(self, requests: int) -> np.ndarray:
        """Seconds [requests + 1] of drafting for 0, 1, …, ``requests`` requests; none costs nothing."""
        seconds = np.interp(np.arange(requests + 1), self.draft_requests, self.draft_seconds)
        seconds[0] = 0.0
        return seconds


def staircase(limit: int, base: float, saturation: int, tile: int = 64, jag: float = 0.0) -> Throughput:
    """The SPS table of a GPU as above, for passes of 1 to ``limit`` tokens.

    Args:
        base: seconds of a pass that only reads the weights. saturation: tokens from which arithmetic is the limit.

    Raises:
        ValueError: a value outside its range.
    """
    if tile < 1 or limit <= tile or saturation < 1 or not base > 0 or not 0 <= jag < 1:
        raise ValueError(
            "a staircase needs tile >= 1, limit > tile, saturation >= 1, base > 0 and 0 <= jag < 1, got "
            f"{tile}, {limit}, {saturation}, {base:g}, {jag:g}"
        )
    tiles = np.arange(1, -(-limit // tile) + 1)
    seconds = base * np.maximum(1.0, tiles * tile / saturation) * (1.0 + jag * (tiles % 2))
    return Throughput((tiles - 1) * tile + 1, 1.0 / seconds)


def open_table(table: str, generated: Throughput, look_up: str = "floor") -> Throughput:
    """The ``generated`` table where ``table`` is ``staircase``, else the file of that path (``sps.json``).

    Raises:
        ValueError: no such file, or one that is no SPS table.
    """
    return generated if table == "staircase" else Throughput.load(table, look_up)


def measured_costs(steps: Sequence[Step], requests: Sequence[Served]) -> Costs:
    """The costs that an engine's steps had: drafting by requests in the step, prefill a request, scheduling a drafted token.

    Between steps the median counts, so that waits for an arrival do not.

    Raises:
        ValueError: no step or no request.
    """
    if not steps or not requests:
        raise ValueError(f"costs need steps and finished requests, got {len(steps)} and {len(requests)}")
    drafted = [step for step in steps if step.drafted]
    sizes = np.array([step.requests for step in drafted] or [1])
    points, means = _means(sizes, np.array([step.draft for step in drafted] or [0.0]))
    gaps = [after.start - before.start - before.seconds for before, after in itertools.pairwise(steps)]
    return Costs(
        points,
        means,
        prefill=sum(step.prefill for step in steps) / len(requests),
        schedule=sum(step.schedule for step in drafted) / max(sum(step.drafted for step in drafted), 1),
        between=max(float(np.median(gaps)), 0.0) if gaps else 0.0,
    )


def measured_table(steps: Sequence[Step]) -> Throughput:
    """The SPS table that an engine's own verification passes make: mean seconds by tokens in the pass, read linearly.

    Raises:
        ValueError: no step with a request.
    """
    steps = [step for step in steps if step.requests]
    if not steps:
        raise ValueError("an SPS table from steps needs at least one step with a request")
    points, means = _means(
        np.array([step.requests + step.verified for step in steps]), np.array([step.verify for step in steps])
    )
    if len(points) == 1:  # every pass had the same size: the one value is all that is known
        points, means = np.array([points[0], points[0] + 1]), np.repeat(means, 2)
    return Throughput(points, 1.0 / means, "linear")


def _means(sizes: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sizes, joined into at most BINS of about equal counts, and the mean seconds of each."""
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, BINS + 1), method="lower"))
    place = np.searchsorted(edges, sizes, side="right") - 1
    count = np.bincount(place, minlength=len(edges))
    used = count > 0
    centre = np.rint(np.bincount(place, sizes, minlength=len(edges))[used] / count[used]).astype(np.int64)
    mean = np.bincount(place, seconds, minlength=len(edges))[used] / count[used]
    unique, first = np.unique(centre, return_index=True)
    return unique, mean[first]
