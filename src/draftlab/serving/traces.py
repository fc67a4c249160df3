"""Traces: what a drafter would have proposed in a round, and how far the target would have accepted it.

    confidence  c_{r,k}   calibrated conditional confidences [R, G], what a scheduler sees
    reach       A_r       tokens of the block that would be accepted if all were verified [R]

A block of which K tokens are verified has min(A, K) accepted. That is exact for the round itself: whether token k is accepted
does not depend on later ones. It says nothing of the path after a truncation: with K < A the engine commits K of the
accepted tokens and one of the target's, and drafts anew from there, which was never recorded. Replaying takes the *next
recorded round of the same prompt* all the same, from the beginning again where a prompt has no more. So every policy sees
rounds as they begin after a full verification, each as often; in a passage that a policy crosses in short rounds, real
difficulty would stay for more rounds than here. At full verification the replay is exact.

    recorded    rounds.parquet of a run, confidences calibrated with its calibration.json
    synthetic   difficulty by request and by token around given conditional acceptances; confidences calibrated or not
    none        no drafter: blocks of no tokens

The module knows nothing of time.

    trace = SyntheticTrace([0.8, 0.75, 0.7, 0.7, 0.65], request_spread=0.8, token_spread=1.0)
    state = trace.begin(np.array(["chat"] * 4), np.random.default_rng(0))
    confidence, reach, state = trace.round(state, np.random.default_rng(1))
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from draftlab.calibration import FILE, Calibration
from draftlab.calibration.rounds import round_arrays, with_counts
from draftlab.serving.traffic import ANY

COLUMNS = (
    "temperature",
    "benchmark",
    "domain",
    "prompt_id",
    "round",
    "proposed",
    "accepted",
    "committed",
    "confidence",
)


class Trace(ABC):
    """Rounds of ``gamma`` drafted tokens for any number of requests at once; ``state`` [n, S] is what it knows of each."""

    gamma: int

    @abstractmethod
    def begin(self, domain: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """State [n, S] of new requests of these domains [n]; the empty name takes any."""

    @abstractmethod
    def round(self, state: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Confidences [R, G], reach [R] of one round of the requests with ``state`` [R, S], and their state after it."""


class NoDrafter(Trace):
    """Plain decoding: no token is drafted."""

    gamma = 0

    def begin(self, domain: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """See :class:`Trace`; there is nothing to know."""
        return np.zeros((len(domain), 0))

    def round(self, state: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See :class:`Trace`."""
        return np.zeros((len(state), 0)), np.zeros(len(state), dtype=np.int64), state


class RecordedTrace(Trace):
    """Recorded rounds by prompt; a request replays a prompt of its domain, drawn at random, from its first round on.

    Args:
        rounds: a table as ``rounds.parquet`` holds it, decoded with the whole block verified. Of a drafter without
            confidence head, each position gets its mean conditional acceptance instead.
        temperature: whose rounds to take. calibration: of the drafter; None leaves confidences as recorded.
        gamma: block size; None: the longest that was proposed.

    Raises:
        ValueError: a missing column, no round of that temperature, a calibration of another block size, or blocks that
            were cut before the end of an answer: a cut block does not tell what would have come after the cut.
    """

    def __init__(
        self,
        rounds: pd.DataFrame,
        temperature: float = 1.0,
        calibration: Calibration | None = None,
        gamma: int | None = None,
    ) -> None:
        missing = [name for name in COLUMNS if name not in rounds.columns]
        if missing:
            raise ValueError(
                f"recorded rounds need the columns {', '.join(COLUMNS)}; {', '.join(missing)} is missing; evaluate again"
            )
        rounds = with_counts(rounds.assign(**{name: rounds[name].astype(str) for name in ("benchmark", "prompt_id")}))
        rounds = rounds.sort_values(["benchmark", "prompt_id", "round"], kind="stable")
        rounds = (
            rounds[rounds["temperature"] == temperature] if (rounds["temperature"] == temperature).any() else rounds
        )
        if gamma is None:
            gamma = int(rounds["proposed"].max()) if len(rounds) else 0
        arrays = round_arrays(_with_confidence(rounds, gamma), temperature, gamma)
        if np.isnan(arrays.logits[np.arange(gamma) < arrays.proposed[:, None]]).any():
            raise ValueError("some recorded confidences are not finite; train the drafter again, then evaluate it")
        calibration = calibration or Calibration.identity(gamma)
        self.gamma = gamma
        # Slots beyond the end of an answer were never proposed: no confidence, so that only fixed lengths verify them.
        self.confidence = np.nan_to_num(calibration(arrays.logits), nan=0.0)  # [n, G]
        self.reach = arrays.accepted
        self.first = np.flatnonzero(np.diff(arrays.prompt, prepend=-1))  # [P] row of a prompt's first round
        self.count = np.diff(self.first, append=len(arrays))  # [P]
        self.domain = arrays.domain[self.first]
        last = np.zeros(len(arrays), dtype=bool)
        last[self.first + self.count - 1] = True
        cut = int(((arrays.proposed < gamma) & ~last).sum())
        if cut:
            raise ValueError(
                f"{cut} recorded rounds proposed fewer than {gamma} tokens before the end of their answer; what a cut block "
                "would have reached is not known: record rounds with schedule=fixed"
            )
        self.tokens = (
            np.add.reduceat(rounds["committed"].to_numpy(), self.first) + 1
        )  # [P]; the first token comes from reading the prompt

    def begin(self, domain: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """See :class:`Trace`; state is (prompt, next round).

        Raises:
            ValueError: a domain of which nothing was recorded.
        """
        prompt = np.empty(len(domain), dtype=np.int64)
        for name in np.unique(domain):
            known = np.arange(len(self.first)) if name == ANY else np.flatnonzero(self.domain == name)
            if not len(known):
                there = ", ".join(sorted(set(self.domain)))
                raise ValueError(f"no round of the domain {str(name)!r} was recorded; there are {there}")
            rows = domain == name
            prompt[rows] = known[generator.integers(0, len(known), int(rows.sum()))]
        return np.stack([prompt, np.zeros_like(prompt)], axis=1)

    @property
    def digest(self) -> str:
        """Of what is replayed: other rounds, or another calibration, have another one."""
        content = (np.ascontiguousarray(array).tobytes() for array in (self.confidence, self.reach, self.count))
        return hashlib.sha256(b"".join(content)).hexdigest()[:16]

    def lengths(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Lengths [n] in tokens, drawn from those of the recorded answers."""
        return self.tokens[generator.integers(0, len(self.tokens), count)]

    def round(self, state: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See :class:`Trace`; nothing is drawn."""
        prompt, number = state[:, 0], state[:, 1]
        row = self.first[prompt] + number
        after = np.stack([prompt, (number + 1) % self.count[prompt]], axis=1)
        return self.confidence[row], self.reach[row], after


def recorded_run(run: str | Path, temperature: float = 1.0) -> RecordedTrace:
    """The trace of an evaluated run folder: its rounds, calibrated if it has a ``calibration.json``.

    Raises:
        ValueError: no rounds in the folder, or such that cannot be replayed (the folder is named).
    """
    path, calibration = Path(run) / "rounds.parquet", Path(run) / FILE
    if not path.is_file():
        raise ValueError(
            f"{path}: missing; name the folder of an evaluated run, or evaluate it: src/evaluate.py run={run}"
        )
    try:
        fitted = Calibration.load(calibration) if calibration.is_file() else None
        gamma = len(fitted.temperatures) if fitted else None
        return RecordedTrace(pd.read_parquet(path), temperature, fitted, gamma)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise ValueError(f"{run}: {error}") from None


class SyntheticTrace(Trace):
    """Rounds drawn from a model: token k of a block of request r is accepted, given those before it, with probability

        p_{r,k} = σ(logit q_k + request_spread · u_r + token_spread · v_{r,k})           u, v standard normal
        c_{r,k} = σ(logit p_{r,k} / sharpness)

    Args:
        acceptance: q_1..q_G, inside (0, 1). request_spread: how unlike requests are. token_spread: how unlike tokens are.
        sharpness: 1 gives calibrated confidences; below 1 they are over-confident, above 1 too modest.

    Raises:
        ValueError: a value outside its range.
    """

    def __init__(
        self,
        acceptance: Sequence[float],
        request_spread: float = 0.0,
        token_spread: float = 0.0,
        sharpness: float = 1.0,
    ) -> None:
        values = np.asarray(acceptance, dtype=np.float64)
        if values.ndim != 1 or not len(values) or not ((values > 0) & (values < 1)).all():
            raise ValueError(f"acceptance must be conditional probabilities inside (0, 1), got {list(acceptance)}")
        if min(request_spread, token_spread) < 0 or sharpness <= 0:
            raise ValueError(
                "request_spread and token_spread must be at least 0 and sharpness positive, got "
                f"{request_spread:g}, {token_spread:g}, {sharpness:g}"
            )
        self.gamma = len(values)
        self._logits = np.log(values) - np.log1p(-values)
        self._request, self._token, self._sharpness = request_spread, token_spread, sharpness

    def begin(self, domain: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """See :class:`Trace`; state is the logit that a request adds. Domains make no difference."""
        return self._request * generator.standard_normal((len(domain), 1))

    def round(self, state: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See :class:`Trace`."""
        logits = self._logits + state
        if self._token:
            logits = logits + self._token * generator.standard_normal(logits.shape)
        probability = 1.0 / (1.0 + np.exp(-logits))
        accepted = generator.random(logits.shape) < probability
        reach = np.where(accepted.all(axis=1), self.gamma, (~accepted).argmax(axis=1))
        confidence = probability if self._sharpness == 1.0 else 1.0 / (1.0 + np.exp(-logits / self._sharpness))
        return confidence, reach, state


def open_trace(synthetic: SyntheticTrace, run: str | None = None, temperature: float = 1.0) -> Trace:
    """The recorded rounds of ``run`` where one is named, else the ``synthetic`` ones; raises as :func:`recorded_run`."""
    return synthetic if run is None else recorded_run(run, temperature)


def _with_confidence(rounds: pd.DataFrame, gamma: int) -> pd.DataFrame:
    """``rounds``, with mean conditional acceptances as confidences where the drafter gave none at all."""
    if rounds["confidence"].map(lambda value: 0 if value is None else len(value)).any():
        return rounds
    slots = np.arange(gamma)
    accepted, proposed = (rounds[name].to_numpy()[:, None] for name in ("accepted", "proposed"))
    tested = ((accepted >= slots) & (proposed > slots)).sum(axis=0)
    mean = (accepted > slots).sum(axis=0) / np.maximum(tested, 1)
    return rounds.assign(confidence=[mean[:length] for length in rounds["proposed"]])
