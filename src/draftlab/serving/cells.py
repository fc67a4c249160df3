"""The cells of an experiment from its configuration: which run drafts, how many tokens, under which scheduler.

    plain: {run: null}                                          no drafting
    mtp1: {run: outputs/mtp, block_size: 1, schedule: {_target_: draftlab.scheduling.Fixed}}

Drafters are opened once and share one target. A chain may draft another number of tokens than it was trained with
(``block_size``): its module is used as often as asked (method 2.4). Example:

    cells = Cells(base, prompts, decode, seed=0).make(plans, concurrency=[1, 4])
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from draftlab.decode.budget import Budget
from draftlab.decode.settings import DecodeSettings
from draftlab.decode.trained import TrainedDrafter, open_drafter
from draftlab.drafters.chain import ChainDrafter
from draftlab.scheduling import Scheduler
from draftlab.serving.engine import Engine
from draftlab.serving.measured import Cell


@dataclass(frozen=True)
class Plan:
    """One line of a comparison; ``run`` None decodes plainly, ``schedule`` None verifies whole blocks."""

    name: str
    run: str | None = None
    block_size: int | None = None
    schedule: Scheduler | None = None


class Cells:
    """Makes cells whose engines share one target.

    Args:
        trained: the run whose target serves, and whose SPS table is read.
        run: its folder. sps: path of another SPS table. checkpoint: best, last, or a file; of ``run`` only.
    """

    def __init__(self, trained: TrainedDrafter, run: str, sps: str | None, decode: DecodeSettings, seed: int) -> None:
        self.run, self.sps, self.decode, self.seed = run, sps, decode, seed
        self.opened = {run: trained}

    def check(self, plans: Sequence[Plan]) -> list[tuple[Plan, Any, Budget | None, dict[str, Any]]]:
        """Plan, drafter, budget and identity of every line, before any weights of the target load.

        Raises:
            ValueError: a run that cannot be opened, of another target, or that its scheduler does not fit.
        """
        return [self._check(plan) for plan in plans]

    def _check(self, plan: Plan) -> tuple[Plan, Any, Budget | None, dict[str, Any]]:
        if plan.run is None:
            return plan, None, None, {"plan": plan.name}
        if plan.run not in self.opened:
            self.opened[plan.run] = open_drafter(plan.run)
        trained, base = self.opened[plan.run], self.opened[self.run]
        if trained.drafter.spec != base.drafter.spec:
            raise ValueError(f"cell {plan.name}: {plan.run} was trained for another target than {self.run}")
        drafter = _with_block(trained.drafter, plan)
        identity = {"plan": plan.name, "drafter": trained.identity, "block_size": drafter.block.block_size}
        if plan.schedule is None:
            return plan, drafter, None, identity
        sps = self.sps if self.sps is not None or plan.run == self.run else None
        budget = Budget.of_run(plan.schedule, plan.run, trained.identity, sps).check(drafter)
        return plan, drafter, budget, identity | {"schedule": budget.identity()}

    def make(self, checked: Sequence, target, concurrency: Sequence[int], longest_prompt: int) -> list[Cell]:
        """Every line at every concurrency, on ``target``."""
        cells = []
        for users in concurrency:
            decode = replace(self.decode, batch_size=users)
            for plan, drafter, budget, identity in checked:
                if drafter is not None:
                    drafter.to(target.device).attach(target.ends)
                make = partial(_engine, target, drafter, decode, budget, longest_prompt, self.seed)
                scheduler = "all" if budget is None else _words(type(budget.scheduler).__name__)
                cells.append(
                    Cell(plan.name, _called(drafter), scheduler, users, make, identity | {"decode": asdict(decode)})
                )
        return cells


def read_plans(cells: Mapping[str, Mapping[str, Any] | None]) -> list[Plan]:
    """Plans from a mapping of names to their settings (built objects); a cell set to null is left out.

    Raises:
        ValueError: an unknown key, a name that is no file name, or a schedule without a run to draft.
    """
    plans = []
    for name, given in cells.items():
        if given is None:
            continue
        unknown = sorted(set(given) - {"run", "block_size", "schedule"})
        if unknown or not str(name).replace("_", "").isalnum():
            raise ValueError(
                f"cells.{name}: expected letters, digits and _ for the name, and the keys run, block_size and schedule; got "
                f"{', '.join(map(str, given))}"
            )
        plan = Plan(name, **given)
        if plan.run is None and (plan.block_size is not None or plan.schedule is not None):
            raise ValueError(
                f"cells.{name} has no run to draft with; name its folder (mtp=FOLDER, or cells.{name}.run=FOLDER), or take the "
                f"cell out with cells.{name}=null"
            )
        plans.append(plan)
    return plans


def _with_block(drafter, plan: Plan):
    if plan.block_size is None or plan.block_size == drafter.block.block_size:
        return drafter
    if not isinstance(drafter, ChainDrafter):
        raise ValueError(
            f"cell {plan.name}: a {drafter.family} drafter has blocks of {drafter.block.block_size} tokens, got block_size "
            f"{plan.block_size}; use schedule=fixed schedule.length={plan.block_size}, or a chain (mtp, eagle3)"
        )
    changed = copy.copy(drafter)
    changed.block = replace(drafter.block, block_size=plan.block_size)
    return changed


def _called(drafter) -> str:
    """Name in tables: a chain with the tokens it drafts, as mtp1."""
    if drafter is None:
        return "none"
    return drafter.family.lower() + (str(drafter.block.block_size) if isinstance(drafter, ChainDrafter) else "")


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _engine(target, drafter, decode, budget, longest_prompt: int, seed: int, turn: int) -> Engine:
    return Engine(target, drafter, decode, budget, longest_prompt, seed + turn)
