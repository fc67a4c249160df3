"""How stale budgets lose under bursty traffic: an open question of the paper, as regret against an oracle.

    oracle            the best number of tokens of each step, by the survivals of that very step (``global``; not lossless)
    lag L             asynchronous: the best budget of L steps ago
    early_stop        Algorithm 1 on the current survivals, for reference; early_stop_smooth over the table's convex form

    choice regret     1 - Σ E_i / Σ Θ*_i t_i      of the tokens that the oracle would have committed, in expectation, in the
                                                  time of the steps that were made, the share that was lost
    speed regret      1 - speed / oracle's speed  of the mean tokens/s a user, both served the same requests

E_i = R + Σ a of what a step verified and t_i its verification time; Θ* is the oracle's expected rate for that step's
requests. The first looks at one step at a time; the second holds what follows from it: slower steps, longer queues. What is
measured here is for one set of tables, and says nothing of other machines.

    watched = Watched(Asynchronous(lag=4))
    steps, served = simulation.run(traffic, watched, seed=0)
    watched.regret
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from draftlab.scheduling import GlobalSearch, Scheduler, Throughput

ORACLE, EARLY_STOP, SMOOTH = "global", "early_stop", "early_stop_smooth"
SPEED, CHOICE = "speed_regret", "choice_regret"


class Watched(Scheduler):
    """``inner``, counting what its choices lose against the best ones. Needs an SPS table."""

    def __init__(self, inner: Scheduler) -> None:
        self.inner, self._oracle = inner, GlobalSearch()
        self.is_lossless = inner.is_lossless
        self.reset()

    def reset(self) -> None:
        """See :class:`Scheduler`."""
        self.inner.reset()
        self._expected = self._best = 0.0

    def draft_length(self, gamma: int) -> int:
        """See :class:`Scheduler`."""
        return self.inner.draft_length(gamma)

    def __call__(self, confidence: np.ndarray, table: Throughput | None = None) -> np.ndarray:
        """See :class:`Scheduler`."""
        lengths = self.inner(confidence, table)
        survival = np.cumprod(confidence, axis=1)
        chosen, seconds = _expected(survival, lengths, table)
        best, best_seconds = _expected(survival, self._oracle(confidence, table), table)
        self._expected += chosen
        self._best += best / best_seconds * seconds
        return lengths

    @property
    def regret(self) -> float:
        """Choice regret since the last reset; NaN before a step."""
        return 1.0 - self._expected / self._best if self._best else float("nan")


def _expected(survival: np.ndarray, lengths: np.ndarray, table: Throughput) -> tuple[float, float]:
    """Expected committed tokens of a step, and seconds of its pass."""
    rows, gamma = survival.shape
    taken = survival[np.arange(gamma) < lengths[:, None]].sum()
    return rows + float(taken), 1.0 / float(table(rows + int(lengths.sum())))


def regret_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Regrets by burstiness and scheduler, the mean over seeds with the lowest and highest as ``_low`` and ``_high``.

    Args:
        rows: a cell each: burstiness, scheduler, lag (NaN for others), seed, user_speed_mean, choice_regret.

    Raises:
        ValueError: a burstiness or seed without the oracle.
    """
    keys = ["burstiness", "seed"]
    oracle = rows[rows["scheduler"] == ORACLE].set_index(keys)["user_speed_mean"]
    others = rows[rows["scheduler"] != ORACLE].copy()
    index = pd.MultiIndex.from_frame(others[keys])
    missing = sorted(set(index) - set(oracle.index))
    if missing:
        raise ValueError(f"no oracle ({ORACLE}) was run for burstiness and seed {missing}; run the study again")
    others[SPEED] = 1.0 - others["user_speed_mean"].to_numpy() / oracle.loc[index].to_numpy()
    grouped = others.groupby(["burstiness", "scheduler", "lag"], dropna=False, sort=True)
    table = grouped[[SPEED, CHOICE, "user_speed_mean", "concurrency"]].mean().reset_index()
    for name in (SPEED, CHOICE):
        table[f"{name}_low"], table[f"{name}_high"] = grouped[name].min().to_numpy(), grouped[name].max().to_numpy()
    return table


def recommendation(table: pd.DataFrame, tolerance: float = 0.01) -> list[str]:
    """What to do, in sentences that follow from a :func:`regret_table`; ``tolerance`` is the regret that is called small."""
    stale = table[table["lag"].notna()]
    lags, levels = sorted(stale["lag"].unique()), sorted(table["burstiness"].unique())
    if not lags or not levels:
        raise ValueError("a recommendation needs at least one lag and one burstiness")
    grid = stale.pivot(index="burstiness", columns="lag", values=SPEED)
    sentences = [_largest_lag(grid, lags, tolerance)]
    sentences += [_growth(grid, lags[0], levels), *([_growth(grid, lags[-1], levels)] if len(lags) > 1 else [])]
    for name, words in (
        (EARLY_STOP, "Algorithm 1 (early stop)"),
        (SMOOTH, "Early stop over the convex form of the table"),
    ):
        reference = table[table["scheduler"] == name].set_index("burstiness")[SPEED]
        if len(reference):
            sentences.append(_against(words, grid, reference, lags))
    worst = table.groupby("scheduler")[SPEED].max()
    best = worst.idxmin()
    sentences.append(
        f"The least regret at worst, of all that are lossless, has {best.replace('_', ' ')}: {worst[best]:.1%}."
    )
    return sentences


def _largest_lag(grid: pd.DataFrame, lags: Sequence[float], tolerance: float) -> str:
    worst = grid.max(axis=0)
    fine = [lag for lag in lags if (worst[[other for other in lags if other <= lag]] <= tolerance).all()]
    if not fine:
        where = grid.index[grid[lags[0]] > tolerance][0]
        return (
            f"Even a lag of {lags[0]:g} loses more than {tolerance:.1%} of the speed from burstiness {where:g} on: decide the "
            "budget as late as the engine allows."
        )
    if len(fine) == len(lags):
        return (
            f"Every lag up to {lags[-1]:g} steps stays within {tolerance:.1%} of the oracle's speed at every burstiness tried: "
            "take the lag that hides the scheduler best."
        )
    first = lags[len(fine)]
    where = grid.index[grid[first] > tolerance][0]
    return (
        f"A lag of up to {fine[-1]:g} steps stays within {tolerance:.1%} of the oracle's speed at every burstiness tried; a lag "
        f"of {first:g} loses {worst[first]:.1%} at worst, and more than that bound from burstiness {where:g} on: keep the lag at "
        f"{fine[-1]:g} or below."
    )


def _growth(grid: pd.DataFrame, lag: float, levels: Sequence[float]) -> str:
    calm, wild = grid.loc[levels[0], lag], grid.loc[levels[-1], lag]
    return f"At a lag of {lag:g} the regret goes from {calm:.1%} at burstiness {levels[0]:g} to {wild:.1%} at {levels[-1]:g}."


def _against(words: str, grid: pd.DataFrame, reference: pd.Series, lags: Sequence[float]) -> str:
    """How a scheduler without lag compares with every lag, over all levels of burstiness."""
    better = [lag for lag in lags if (grid[lag] <= reference.loc[grid.index]).all()]
    worse = [lag for lag in lags if (grid[lag] >= reference.loc[grid.index]).all() and lag not in better]
    parts = [f"{words} loses {reference.min():.1%} to {reference.max():.1%}"]
    for found, verdict in (
        (worse, "less than a lag of {} everywhere"),
        (better, "at least as much as a lag of {} everywhere"),
    ):
        if found:
            parts.append(verdict.format(" or ".join(f"{lag:g}" for lag in found)))
    return ", ".join(parts) + "."
