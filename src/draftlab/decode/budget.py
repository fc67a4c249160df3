"""What a decode loop asks a scheduler with: calibrated confidences of the drafter, and the tables of the machine (method 5).

    ĉ = STS(c)                                    the run's calibration.json, if there is one; it says what c is: the
                                                  confidence head's, or max_v p_d^k(v) (``draft_top``) without a head
    SPS(B) = 1 / (T_verify(B) + T_draft(R, G))    steps a second of R requests: a step drafts, too, where that is measured
    lengths [R] = scheduler(ĉ [R, G], SPS)

It knows nothing of models. Example:

    budget = Budget(EarlyStop(), table=Throughput.load("outputs/demo/sps.json")).check(drafter)
    lengths = budget(proposal)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from draftlab.calibration import FILE, Calibration, confidence_logits
from draftlab.calibration.rounds import CONFIDENCE
from draftlab.scheduling import Drafting, Scheduler, Throughput
from draftlab.types import Proposal

SPS, DRAFT_SPS = "sps.json", "draft_sps.json"


@dataclass
class Budget:
    """Chooses how much of each block is verified.

    Args:
        scheduler: see :mod:`draftlab.scheduling`.
        table: SPS of the target by tokens. drafting: seconds of the drafter by rows and tokens; None: not counted.
        calibration: of the drafter, read by a scheduler that reads confidences; None leaves them as they are.
    """

    scheduler: Scheduler
    table: Throughput | None = None
    drafting: Drafting | None = None
    calibration: Calibration | None = None
    _tables: dict[tuple[int, int], Throughput] = field(default_factory=dict, repr=False)

    @classmethod
    def of_run(cls, scheduler: Scheduler, run: str | Path, identity: dict[str, Any], sps: str | None = None) -> Budget:
        """With what lies in run folder ``run``: its calibration, which must be of drafter ``identity``, and its tables.

        ``sps`` is the path of another SPS table. Drafting is counted where ``draft_sps.json`` lies beside the table.

        Raises:
            ValueError: a calibration of another drafter, or a table that cannot be read or is needed and missing.
        """
        run = Path(run)
        calibrated = scheduler.reads_confidence and (run / FILE).is_file()
        calibration = Calibration.load(run / FILE).check(identity) if calibrated else None
        path = Path(sps) if sps is not None else run / SPS
        if not path.is_file():
            if scheduler.reads_table or sps is not None:
                raise ValueError(
                    f"{type(scheduler).__name__} needs an SPS table, but there is none at {path}; make one with "
                    f"python src/schedule.py profile run={run}, or give one as sps=FILE"
                )
            return cls(scheduler, calibration=calibration)
        drafting = path.with_name(DRAFT_SPS)
        return cls(
            scheduler,
            Throughput.load(path, "linear"),
            Drafting.load(drafting) if drafting.is_file() else None,
            calibration,
        )

    def check(self, drafter) -> Budget:
        """This budget, if ``drafter`` gives what the scheduler reads.

        Raises:
            ValueError: a drafter without confidences for a scheduler that reads them, a missing table, a calibration of
                another block size, or a scheduler that wants more tokens than a block has.
        """
        gamma, name = drafter.block.block_size, type(self.scheduler).__name__
        if self.scheduler.reads_confidence and self._source == CONFIDENCE and not drafter.has_confidence:
            raise ValueError(
                f"{name} reads confidences, but the drafter has no confidence head; calibrate it (src/calibrate.py), which "
                "takes the top probability of its draft law instead, or use schedule=fixed or a drafter with "
                "drafter.confidence_head=true"
            )
        if self.calibration is not None and len(self.calibration.temperatures) != gamma:
            raise ValueError(
                f"the calibration has {len(self.calibration.temperatures)} temperatures, but blocks have {gamma} tokens; "
                "calibrate this drafter"
            )
        if self.scheduler.reads_table and self.table is None:
            raise ValueError(f"{name} needs an SPS table; make one with python src/schedule.py profile")
        self.scheduler(np.zeros((0, gamma)), self.table)  # refuses what does not fit the block
        self.scheduler.reset()
        return self

    def reset(self) -> None:
        """Forget earlier steps."""
        self.scheduler.reset()

    def draft_length(self, gamma: int) -> int:
        """Tokens that the step that comes drafts a row, 0..``gamma``."""
        return self.scheduler.draft_length(gamma)

    def __call__(self, proposal: Proposal) -> np.ndarray:
        """Tokens to verify [B] of the blocks of ``proposal``."""
        rows, gamma = proposal.tokens.shape
        return self.scheduler(self._confidence(proposal, rows, gamma), self._step_table(rows, gamma))

    @property
    def _source(self) -> str:
        """The field of a proposal that confidences are read from."""
        return CONFIDENCE if self.calibration is None else self.calibration.source

    def _confidence(self, proposal: Proposal, rows: int, gamma: int) -> np.ndarray:
        """Calibrated conditional confidences [B, G]; 1 where the scheduler reads none."""
        scores = getattr(proposal, self._source) if self.scheduler.reads_confidence else None
        if scores is None or gamma == 0:
            return np.ones((rows, gamma))
        values = scores.double().cpu().numpy()
        return values if self.calibration is None else self.calibration.of_first(confidence_logits(values))

    def _step_table(self, rows: int, gamma: int) -> Throughput | None:
        if self.table is None or self.drafting is None or not rows:
            return self.table
        if (rows, gamma) not in self._tables:
            seconds, more = self.drafting.seconds(rows, gamma), self.drafting.token_seconds(rows)
            self._tables[rows, gamma] = self.table.plus(seconds, more)
        return self._tables[rows, gamma]

    def identity(self) -> dict[str, Any]:
        """In plain types what the choices depend on, for keys and reports."""
        inner = getattr(self.scheduler, "inner", None)
        return {
            "scheduler": type(self.scheduler).__name__ + (f"({type(inner).__name__})" if inner is not None else ""),
            "settings": _settings(self.scheduler),
            **({"inner": _settings(inner)} if inner is not None else {}),
            "lossless": self.scheduler.is_lossless,
            "reads": self._source,
            "calibrated": list(self.calibration.temperatures) if self.calibration is not None else None,
            "table": _plain(self.table),
            "drafting": _plain(self.drafting),
        }


def _settings(scheduler: Scheduler) -> dict[str, Any]:
    return {k: v for k, v in vars(scheduler).items() if isinstance(v, int | float | str) and not k.startswith("_")}


def _plain(table: Throughput | Drafting | None) -> dict[str, Any] | None:
    if table is None:
        return None
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in asdict(table).items()}
