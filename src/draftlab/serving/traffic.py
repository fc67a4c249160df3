"""Traffic: when requests arrive, how many tokens each answer has, and of which domain it is.

    closed loop   C users, each of whom sends the next request as soon as the last is answered
    poisson       independent arrivals at one rate
    bursts        a two-state Markov-modulated Poisson process: ``burstiness`` times the rate in a burst, the same mean rate
    rollouts      many requests at once, then silence, as reinforcement learning samples; lengths with a heavy tail
    replayed      a trace file, CSV or JSONL, with the columns arrival (seconds), tokens and domain

Arrival processes are functions from a generator to seconds [n] that do not fall. The module knows nothing of who serves.

    generator = np.random.default_rng(0)
    Traffic(answer_lengths(1000, 200.0, 0.8, generator), arrival=bursts(1000, 8.0, generator, burstiness=10.0))
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from draftlab.data.files import read_jsonl

COLUMNS = ("arrival", "tokens", "domain")
LONGEST = 10**9  # tokens of an answer
ANY = ""  # the domain of a request that may be any


@dataclass(frozen=True)
class Traffic:
    """Requests [n] in the order of their arrival.

    Args:
        tokens: of each answer, at least 1. arrival: seconds [n], or None in a closed loop.
        users: of a closed loop, or None. domain: names [n]; None: any.

    Raises:
        ValueError: neither or both of arrival and users, columns of unequal length, or values that cannot be.
    """

    tokens: np.ndarray
    arrival: np.ndarray | None = None
    users: int | None = None
    domain: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if (self.arrival is None) == (self.users is None):
            raise ValueError("traffic needs either arrivals (open loop) or users (closed loop)")
        tokens = np.asarray(self.tokens)
        count = len(tokens)
        domain = np.full(count, ANY) if self.domain is None else np.asarray(self.domain, dtype=str)
        if not count or len(domain) != count or (self.arrival is not None and len(self.arrival) != count):
            raise ValueError(f"traffic needs a length, a domain and an arrival for each of its {count} requests")
        if not np.all(tokens == np.floor(tokens)) or tokens.min() < 1 or tokens.max() > LONGEST:
            raise ValueError(
                f"tokens of an answer must be whole, from 1 to {LONGEST:,}, got {tokens.min():g} to {tokens.max():g}"
            )
        if self.users is not None and self.users < 1:
            raise ValueError(f"users must be at least 1, got {self.users}")
        if self.arrival is not None:
            arrival = np.asarray(self.arrival, dtype=np.float64)
            if not np.isfinite(arrival).all() or arrival[0] < 0 or np.any(np.diff(arrival) < 0):
                raise ValueError("arrivals must be finite seconds from 0 on that do not fall")
            object.__setattr__(self, "arrival", arrival)
        object.__setattr__(self, "tokens", tokens.astype(np.int64))
        object.__setattr__(self, "domain", domain)

    def __len__(self) -> int:
        return len(self.tokens)


def answer_lengths(count: int, mean: float, spread: float, generator: np.random.Generator) -> np.ndarray:
    """Log-normal lengths [n] of the given mean, whole and at least 1; ``spread`` is the deviation of their logarithm.

    From about 1 on the tail is heavy: a few answers hold most of the tokens.

    Raises:
        ValueError: a count below 1, a mean below 1 or a negative spread.
    """
    if count < 1 or mean < 1 or spread < 0:
        raise ValueError(
            f"lengths need a count and a mean of at least 1 and a spread of at least 0, got {count}, {mean:g}, {spread:g}"
        )
    drawn = generator.lognormal(np.log(mean) - spread**2 / 2, spread, count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)


def poisson(count: int, rate: float, generator: np.random.Generator) -> np.ndarray:
    """Arrivals [n] of a Poisson process of ``rate`` requests a second.

    Raises:
        ValueError: a count below 1 or a rate that is not positive.
    """
    _check(count, rate)
    return np.cumsum(generator.exponential(1.0 / rate, count))


def bursts(
    count: int,
    rate: float,
    generator: np.random.Generator,
    burstiness: float = 10.0,
    share: float = 0.1,
    dwell: float = 1.0,
) -> np.ndarray:
    """Arrivals [n] of a Markov-modulated Poisson process with two states (MMPP-2).

    Args:
        rate: requests a second on the mean, whatever the burstiness.
        burstiness: rate in a burst over the rate between bursts; 1 is a Poisson process.
        share: of the time that is burst. dwell: mean seconds of a burst.

    Raises:
        ValueError: a value outside its range.
    """
    _check(count, rate)
    if burstiness < 1 or not 0 < share < 1 or dwell <= 0:
        raise ValueError(
            "bursts need a burstiness of at least 1, a share inside (0, 1) and a positive dwell, got "
            f"{burstiness:g}, {share:g}, {dwell:g}"
        )
    calm = rate / (share * burstiness + 1.0 - share)
    rates = np.array([calm, burstiness * calm])
    means = np.array([dwell * (1.0 - share) / share, dwell])
    state = int(generator.random() < share)
    begins, found, times = 0.0, 0, []
    cycles = int(np.ceil(count / (rate * means.sum()))) + 16
    while found < count:
        states = (state + np.arange(2 * cycles)) % 2
        seconds = generator.exponential(means[states])
        ends = begins + np.cumsum(seconds)
        arrivals = generator.poisson(rates[states] * seconds)
        place = np.repeat(ends - seconds, arrivals) + generator.random(arrivals.sum()) * np.repeat(seconds, arrivals)
        times.append(np.sort(place))  # of a Poisson process, given how many there are, times are uniform
        begins, found = float(ends[-1]), found + len(place)
    return np.concatenate(times)[:count]


def rollouts(count: int, batch: int, period: float) -> np.ndarray:
    """Arrivals [n] of ``batch`` requests at once every ``period`` seconds; what is not served by then queues up.

    Raises:
        ValueError: a count or batch below 1, or a period that is not positive.
    """
    if count < 1 or batch < 1 or period <= 0:
        raise ValueError(
            f"rollouts need a count and a batch of at least 1 and a positive period, got {count}, {batch}, {period:g}"
        )
    return (np.arange(count) // batch) * float(period)


def read_trace(path: str | Path) -> Traffic:
    """Traffic of a file: ``.csv`` or ``.jsonl`` with the columns arrival, tokens and domain; others are passed over.

    Rows are put in the order of their arrival, and the first arrives at second 0.

    Raises:
        ValueError: another kind of file, a missing column (named), or values that cannot be.
    """
    path = Path(path)
    if path.suffix not in (".csv", ".jsonl"):
        raise ValueError(f"{path}: a traffic trace is a .csv or .jsonl file, got {path.suffix or 'no suffix'!r}")
    table = pd.DataFrame([row for _, row in read_jsonl(path)]) if path.suffix == ".jsonl" else _read_csv(path)
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise ValueError(
            f"{path}: a traffic trace needs the columns {', '.join(COLUMNS)}; {', '.join(missing)} is missing "
            f"(there are {', '.join(map(str, table.columns)) or 'none'})"
        )
    for name in ("arrival", "tokens"):
        values = _numbers(table[name])
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(f"{path}: row {row + 1} has no finite number in the column {name}: {table[name][row]!r}")
        table[name] = values
    table = table.sort_values("arrival", kind="stable")
    arrival = table["arrival"].to_numpy(dtype=np.float64)
    try:
        return Traffic(table["tokens"].to_numpy(), arrival - arrival[:1], domain=[*map(_domain, table["domain"])])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(path, index_col=False)  # else a field too many makes the first one the name of its row
    except pd.errors.ParserWarning:
        raise ValueError(f"{path}: its rows have more fields than its header names") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected a table as CSV, got: {error}") from None


def _numbers(column: pd.Series) -> pd.Series:
    """The column's numbers in float64, also those that a CSV holds as text; NaN for anything else."""
    numbers = column.map(lambda value: np.nan if isinstance(value, bool | list | dict) else value)
    return pd.to_numeric(numbers, errors="coerce").astype(np.float64)


def _domain(value: object) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ANY
    if not isinstance(value, str):
        raise ValueError(f"a domain is a name, got {value!r:.100}")
    return value


def _check(count: int, rate: float) -> None:
    if count < 1 or not rate > 0 or not np.isfinite(rate):
        raise ValueError(f"arrivals need a count of at least 1 and a positive rate, got {count} and {rate:g}")
