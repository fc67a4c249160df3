"""calibration.json: the temperatures of one drafter, in the keys that engines read, with what they were fitted on.

    temperatures, dataset, num_samples, ece_before, ece_after       as engines read them; the ECEs are of survival
    drafter, measures                                               whose they are, and all measures before and after
    source                                                          what is scaled: confidence, or draft_top without a head

A calibration belongs to one checkpoint: its block size, layout and digest stand in it, and another drafter refuses it.

    calibration = Calibration.load("outputs/demo/calibration.json").check(trained.identity)
    conditional = calibration(logits)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftlab.calibration.rounds import CONFIDENCE, DRAFT_TOP
from draftlab.calibration.sts import calibrated
from draftlab.data.files import read_json, write_json

FILE = "calibration.json"


@dataclass(frozen=True)
class Calibration:
    """Temperatures T_1..T_G > 0 and where they come from.

    Raises:
        ValueError: no temperature, one that is not positive and finite, or an unknown source.
    """

    temperatures: Sequence[float]
    dataset: str = ""
    num_samples: int = 0
    ece_before: Sequence[float] = ()
    ece_after: Sequence[float] = ()
    drafter: Mapping[str, Any] = field(default_factory=dict)
    measures: Sequence[Mapping[str, Any]] = ()
    source: str = CONFIDENCE

    def __post_init__(self) -> None:
        given = self.temperatures if isinstance(self.temperatures, Sequence | np.ndarray) else ()
        values = np.asarray([value if _is_number(value) else np.nan for value in given], dtype=np.float64)
        if not len(values) or not (np.isfinite(values).all() and (values > 0).all()):
            raise ValueError(
                f"temperatures must be one positive finite number a position, got {self.temperatures!r}; calibrate again"
            )
        object.__setattr__(self, "temperatures", tuple(values.tolist()))
        for name, fits, expected in (
            ("drafter", isinstance(self.drafter, Mapping), "an object"),
            ("measures", _holds(self.measures, lambda row: isinstance(row, Mapping)), "a list of objects"),
            *(
                (name, _holds(getattr(self, name), _is_number), "a list of numbers")
                for name in ("ece_before", "ece_after")
            ),
        ):
            if not fits:
                raise ValueError(
                    f"{name} of a calibration must be {expected}, got {getattr(self, name)!r:.200}; calibrate again"
                )
        if self.source not in (CONFIDENCE, DRAFT_TOP):
            raise ValueError(
                f"the source of a calibration must be {CONFIDENCE} or {DRAFT_TOP}, got {self.source!r}; calibrate again"
            )

    @classmethod
    def identity(cls, block_size: int) -> Calibration:
        """Temperatures of 1: confidences stay what they are."""
        return cls((1.0,) * block_size)

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """Calibrated conditional confidences [..., G] of ``logits`` [..., G].

        Raises:
            ValueError: logits of another block size.
        """
        if logits.shape[-1] != len(self.temperatures):
            raise ValueError(
                f"{len(self.temperatures)} temperatures do not fit confidences of gamma {logits.shape[-1]}"
            )
        return calibrated(logits, np.asarray(self.temperatures))

    def of_first(self, logits: np.ndarray) -> np.ndarray:
        """The same for ``logits`` [..., k] of the first k <= G positions: of blocks that were drafted in part."""
        return calibrated(logits, np.asarray(self.temperatures[: logits.shape[-1]]))

    def with_measures(self, rows: Sequence[Mapping[str, Any]]) -> Calibration:
        """The same with further measures."""
        return replace(self, measures=[*self.measures, *rows])

    def check(self, drafter: Mapping[str, Any]) -> Calibration:
        """This calibration, if it is of the drafter with that identity (see ``TrainedDrafter.identity``).

        Raises:
            ValueError: another block size, checkpoint, target or layout; the differing key is named.
        """
        for key in sorted(set(self.drafter) & set(drafter) - {"checkpoint"}):
            if self.drafter[key] != drafter[key]:
                raise ValueError(
                    f"the calibration is of another drafter: {key} is {self.drafter[key]!r} there and {drafter[key]!r} "
                    "here; calibrate this one"
                )
        return self

    def save(self, path: str | Path) -> None:
        """Write the file atomically."""
        write_json(Path(path), asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what :meth:`save` or an engine's tool wrote.

        Raises:
            ValueError: no such file, no temperatures in it, or bad ones.
        """
        content = read_json(Path(path))
        if not isinstance(content, dict) or "temperatures" not in content:
            raise ValueError(f"{path}: expected a calibration with the key temperatures")
        try:
            return cls(**{key: value for key, value in content.items() if key in cls.__dataclass_fields__})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _holds(values: Any, fits: Callable[[Any], bool]) -> bool:
    """Whether ``values`` is a list or the like of which every entry ``fits``."""
    return isinstance(values, list | tuple) and all(map(fits, values))
