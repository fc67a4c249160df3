"""A swept parameter: the values it can take in a grid, and one draw of it in a random sweep.

    {value: 3}   {values: [a, b]}   {min: 1, max: 5}   {distribution: log_uniform_values, min: 1.0e-4, max: 1.0e-2}

Names, defaults and laws are W&B's: ``log_uniform_values`` is exp(U(ln min, ln max)), and a ``q_`` law is rounded to multiples
of q. The module knows nothing of what the parameter means.

    >>> read_parameter("head.rank", {"min": 1, "max": 3}).choices()
    [1, 2, 3]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

Draw = Callable[[Random, Mapping[str, Any]], float]
DIGITS = 6  # of a drawn number: folder, command and record say exactly what ran


def _log_uniform(rng: Random, of: Mapping[str, Any]) -> float:
    return math.exp(rng.uniform(math.log(of["min"]), math.log(of["max"])))


CONTINUOUS: dict[str, Draw] = {
    "uniform": lambda rng, of: rng.uniform(of["min"], of["max"]),
    "log_uniform_values": _log_uniform,
    "inv_log_uniform_values": _log_uniform,  # 1/x is log-uniform, hence x too
    "normal": lambda rng, of: rng.gauss(of["mu"], of["sigma"]),
    "log_normal": lambda rng, of: rng.lognormvariate(of["mu"], of["sigma"]),
    "beta": lambda rng, of: rng.betavariate(of["a"], of["b"]),
}
QUANTIZED = {f"q_{name}": draw for name, draw in CONTINUOUS.items() if not name.startswith("inv_")}
LISTED: dict[str, Callable] = {
    "constant": lambda rng, of: of["value"],
    "categorical": lambda rng, of: rng.choice(of["values"]),
    "categorical_w_probabilities": lambda rng, of: rng.choices(of["values"], of["probabilities"])[0],
    "int_uniform": lambda rng, of: rng.randint(of["min"], of["max"]),
}
RANGE: dict[str, Any] = {"min": None, "max": None}
# Settings of a distribution with their defaults; None: it must be given.
SETTINGS: dict[str, dict[str, Any]] = {
    "constant": {"value": None},
    "categorical": {"values": None},
    "categorical_w_probabilities": {"values": None, "probabilities": None},
    "int_uniform": RANGE,
    "uniform": RANGE,
    "log_uniform_values": RANGE,
    "inv_log_uniform_values": RANGE,
    "normal": {"mu": 0.0, "sigma": 1.0},
    "log_normal": {"mu": 0.0, "sigma": 1.0},
    "beta": {"a": 1, "b": 1},
}
SETTINGS |= {name: SETTINGS[name.removeprefix("q_")] | {"q": 1.0} for name in QUANTIZED}
ABOVE_ZERO, NOT_BELOW_ZERO = ("q", "a", "b"), ("sigma",)


@dataclass(frozen=True)
class Parameter:
    """A checked parameter: its name, its distribution and every setting of it, defaults filled in."""

    name: str
    distribution: str
    settings: dict[str, Any]

    def choices(self) -> list[Any] | None:
        """The values of a grid, in order; None if a grid cannot list them."""
        of = self.settings
        if self.distribution == "q_uniform":
            steps = math.ceil((of["max"] - of["min"]) / of["q"] - 1e-9)  # max itself is left out, as W&B does
            return [_tidy(of["min"] + step * of["q"]) for step in range(steps)]
        if self.distribution == "int_uniform":
            return list(range(of["min"], of["max"] + 1))
        return {"constant": [of.get("value")], "categorical": of.get("values")}.get(self.distribution)

    def draw(self, rng: Random) -> Any:
        """One value; the same for the same state of ``rng``.

        Raises:
            ValueError: a drawn number is larger than a float can be.
        """
        if self.distribution in LISTED:
            return LISTED[self.distribution](rng, self.settings)
        try:
            value = self._draw_number(rng)
        except OverflowError:  # of the exponential, or of a rounded infinity
            value = math.inf
        if not math.isfinite(value):
            given = ", ".join(f"{key} {number}" for key, number in self.settings.items())
            raise ValueError(f"{self.name}: {self.distribution} with {given} draws numbers beyond those of a float")
        return value

    def _draw_number(self, rng: Random) -> float:
        if self.distribution in CONTINUOUS:
            return float(f"{CONTINUOUS[self.distribution](rng, self.settings):.{DIGITS}g}")
        step = self.settings["q"]
        return _tidy(round(QUANTIZED[self.distribution](rng, self.settings) / step) * step)


def _tidy(number: float) -> float:
    """``number`` without the rounding noise of a multiple, as 0.30000000000000004; whole numbers stay whole."""
    return number if isinstance(number, int) else float(f"{number:.12g}")


def read_parameter(name: str, given: Any) -> Parameter:
    """The parameter ``name`` of a sweep file.

    Raises:
        ValueError: settings that name no distribution, are missing, empty, of another type or out of range.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{name}: expected settings such as values: [1, 2], got {given!r}")
    odd = [key for key in given if not isinstance(key, str)]
    if odd:
        raise ValueError(f"{name}: the names of settings are words such as values, got {odd[0]!r}")
    if "parameters" in given:
        raise ValueError(f"{name}: nested parameters are not run here; write each as one dotted name, as {name}.key")
    distribution = given.get("distribution", _usual(given))
    if not isinstance(distribution, str) or distribution not in SETTINGS:
        if "distribution" in given:
            raise ValueError(f"{name}: unknown distribution {distribution!r}; choose one of {', '.join(SETTINGS)}")
        raise ValueError(f"{name}: expected value, values, min and max, or a distribution, got {sorted(given)}")
    known = SETTINGS[distribution]
    settings = known | {key: value for key, value in given.items() if key != "distribution"}
    unknown = sorted(set(settings) - set(known))
    missing = [key for key, value in settings.items() if value is None]
    if unknown or missing:
        wrong = [f"{key} is not one of its settings" for key in unknown] + [f"{key} has no value" for key in missing]
        raise ValueError(f"{name}: distribution {distribution} takes {', '.join(known)}; {'; '.join(wrong)}")
    _check_values(name, settings)
    _check_numbers(name, distribution, settings)
    return Parameter(name, distribution, settings)


def _usual(given: Mapping[str, Any]) -> str | None:
    """The distribution that W&B takes if none is named."""
    if "values" in given:
        return "categorical_w_probabilities" if "probabilities" in given else "categorical"
    if "min" in given and "max" in given:
        whole = all(isinstance(given[key], int) and not isinstance(given[key], bool) for key in ("min", "max"))
        return "int_uniform" if whole else "uniform"
    return "constant" if "value" in given else None


def _check_values(name: str, settings: Mapping[str, Any]) -> None:
    values = settings.get("values", [settings["value"]] if "value" in settings else [0])
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name}: values must be a list with at least one entry, got {values!r}")
    for value in values:
        if value is None or isinstance(value, Mapping):
            raise ValueError(
                f"{name}: {value!r} cannot be written as an argument; for Hydra's null write 'null' in quotes"
            )
        if _holds_none(value):  # as text it would be the word None
            raise ValueError(
                f"{name}: the null in {value!r} cannot be written as an argument; write the whole list in quotes, as '[null]'"
            )
    words = [str(value) for value in values]
    if len(set(words)) < len(words):
        raise ValueError(f"{name}: values has the same entry twice: {values}")
    shares = settings.get("probabilities")
    if shares is None:
        return
    numbers = isinstance(shares, list) and all(_is_number(share) and share >= 0 for share in shares)
    if not numbers or len(shares) != len(values) or not math.isclose(sum(shares), 1.0, rel_tol=1e-5):
        raise ValueError(f"{name}: probabilities must be {len(values)} numbers that sum to 1, got {shares}")


def _check_numbers(name: str, distribution: str, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if key in ("value", "values", "probabilities"):
            continue
        if not _is_number(value) or (distribution == "int_uniform" and not isinstance(value, int)):
            kind = "a whole number" if distribution == "int_uniform" else "a number"
            hint = " (YAML reads 1e-3 as a word; write 1.0e-3)" if isinstance(value, str) else ""
            raise ValueError(f"{name}: {key} of {distribution} must be {kind}, got {value!r}{hint}")
        if (key in ABOVE_ZERO and value <= 0) or (key in NOT_BELOW_ZERO and value < 0):
            limit = "above 0" if key in ABOVE_ZERO else "0 or above"
            raise ValueError(f"{name}: {key} of {distribution} must be {limit}, got {value}")
    if "min" in settings and not settings["min"] < settings["max"]:
        raise ValueError(f"{name}: min {settings['min']} is not below max {settings['max']}")
    if "log_uniform_values" in distribution and settings["min"] <= 0:
        raise ValueError(f"{name}: min of {distribution} must be above 0, got {settings['min']}")


def _holds_none(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_none, value.values()))
    return any(map(_holds_none, value)) if isinstance(value, list) else value is None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
