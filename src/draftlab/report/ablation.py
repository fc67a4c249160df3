"""Tables of an ablation: accepted length by seed, by drafter depth and by draft length.

    mean over the runs of a group ± t(0.975, n - 1) · s / √n     over its n seeds
    mean over the runs of a group, prompts drawn again           over prompts, as everywhere in the report

Runs that differ in nothing but ``seed`` are a group and one point; a seed counts once. The first interval says how far
another training run may land, the second how far other prompts may move these runs; neither holds the other. It knows
nothing of files or pictures.

    >>> groups, reasons = find_groups(runs)                     # doctest: +SKIP
    >>> sweep_table(groups, [1.0], DRAFT_LENGTH)                # doctest: +SKIP
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftlab.report.bootstrap import quantile_interval, resample_counts, resampled_ratio
from draftlab.report.cost import round_milliseconds, speed_row
from draftlab.report.differences import (
    SEED,
    Config,
    differing,
    drafter_name,
    flat_config,
    labels,
    seed_groups,
    without,
)
from draftlab.report.run import Run
from draftlab.report.tables import PROMPT, length_sums

BASELINE = "dflash"
SEEDS, PROMPTS = "seeds", "prompts"
ENOUGH = (
    3  # seeds from which a point's interval is over seeds; of two it would be the t quantile, 12.7, and little else
)
# t(0.975, df) for df = 1..30: NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Sweep:
    """A key whose values make the x axis: any of ``keys`` holds it; ``measured`` is what the evaluation calls it."""

    name: str
    keys: tuple[str, ...]
    measured: str | None = None


DEPTH = Sweep("drafter depth", ("drafter.num_layers",))
DRAFT_LENGTH = Sweep("draft length", ("block.block_size", "block.ttt_length"), measured="gamma")


@dataclass(frozen=True)
class Group:
    """Runs of one configuration (``config``, without the seed); ``drafter`` is family and head."""

    label: str
    drafter: str
    config: Config
    runs: tuple[Run, ...]
    seeds: tuple[str, ...]  # one a run, each once

    def value(self, sweep: Sweep) -> int | None:
        """The swept value; None where it is not recorded as a whole number. What was decoded counts before the plan."""
        found = [self.runs[0].settings.get(sweep.measured), *(self.config.get(key) for key in sweep.keys)]
        return next((int(value) for value in map(str, found) if value.isdigit()), None)


def flat_configs(runs: Sequence[Run]) -> tuple[dict[str, Config], dict[str, str]]:
    """Flat configurations by the name of the run, and by name the reason of every run without a readable one."""
    configs, reasons = {}, {}
    for run in runs:
        try:
            configs[run.name] = flat_config(run.config)
        except ValueError as error:
            reasons[run.name] = str(error)
    return configs, reasons


def find_groups(runs: Sequence[Run]) -> tuple[list[Group], dict[str, str]]:
    """Runs by configuration, each seed once, and by name the reason of every run that cannot be placed.

    A seed again is no second training, or not one that its configuration tells apart: the first run with it counts.
    """
    configs, reasons = flat_configs(runs)
    for name, config in list(configs.items()):
        try:
            drafter_name(config)
        except ValueError as error:
            reasons[name] = str(error)
            del configs[name]
    by_name = {run.name: run for run in runs}
    names = seed_groups(configs)
    shared = [without(configs[members[0]], {SEED}) for members in names]
    groups = []
    for label, config, members in zip(labels(shared), shared, names, strict=True):
        by_seed: dict[str, str] = {}
        for name in members:
            seed = configs[name].get(SEED, "")
            first = by_seed.setdefault(seed, name)
            if first != name:
                reasons[name] = f"its configuration and its seed ({seed or 'none recorded'}) are those of {first}"
        if len(by_seed) > 1 and label in by_name:  # the group is a line beside runs: one of them is called like it
            label = _free(f"{label} (seeds {', '.join(by_seed)})", by_name)
        kept = tuple(by_name[name] for name in by_seed.values())
        groups.append(Group(label, drafter_name(config), config, kept, tuple(by_seed)))
    return groups, reasons


def _free(name: str, taken: Collection[str]) -> str:
    """``name``, with dashes behind it while it is taken."""
    return name if name not in taken else _free(f"{name}-", taken)


def aligned_sums(runs: Sequence[Run], temperature: float) -> np.ndarray:
    """Rounds and committed tokens [runs, P, 2] by prompt, prompts in one order; zeros where a run needed no round."""
    sums = [length_sums(run.rounds[run.rounds["temperature"] == temperature]) for run in runs]
    index = sums[0].index
    for part in sums[1:]:
        index = index.union(part.index)
    return np.stack([part.reindex(index.set_names(PROMPT), fill_value=0.0)[["rounds", "committed"]] for part in sums])


def resampled_lengths(runs: Sequence[Run], temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Accepted length (bonus included) of each run [runs], and in resamples of prompts shared by all [resamples, runs].

    One prompt alone shows nothing when drawn again: its samples are NaN.
    """
    sums = aligned_sums(runs, temperature)
    counts = resample_counts(sums.shape[1])
    samples = np.stack([resampled_ratio(part[:, 1:], part[:, :1], counts)[:, 0] for part in sums], axis=1)
    values = sums[:, :, 1].sum(axis=1) / sums[:, :, 0].sum(axis=1)
    return values, np.full_like(samples, np.nan) if sums.shape[1] < 2 else samples


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % t-interval of the mean; NaN for a single value. Beyond 31 values it is a little wider than it need be."""
    if len(values) < 2:
        return float("nan"), float("nan")
    quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
    mean, half = statistics.fmean(values), quantile * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def seed_table(groups: Sequence[Group], temperatures: Sequence[float]) -> pd.DataFrame:
    """Groups of two or more seeds: a row for the group (``run`` empty), then a row a run.

    Columns: temperature, group, run, seed, accepted_length; of groups also its _min and _max over runs and seeds_low,
    seeds_high (t-interval over seeds); prompts_low, prompts_high (bootstrap over prompts of the mean, or of the run).
    """
    rows = []
    groups = [group for group in groups if len(group.seeds) > 1]
    for temperature in temperatures:
        for group in groups:
            values, samples = resampled_lengths(group.runs, temperature)
            low, high = quantile_interval(np.column_stack([samples.mean(axis=1), samples]))
            over_seeds = t_interval(values.tolist())
            keys = {"temperature": temperature, "group": group.label}
            names, seeds = ["", *(run.name for run in group.runs)], [", ".join(group.seeds), *group.seeds]
            for place, length in enumerate([values.mean(), *values]):
                row = {**keys, "run": names[place], "seed": seeds[place], "accepted_length": float(length)}
                whole = place == 0
                row["accepted_length_min"] = float(values.min()) if whole else np.nan
                row["accepted_length_max"] = float(values.max()) if whole else np.nan
                row["seeds_low"], row["seeds_high"] = over_seeds if whole else (np.nan, np.nan)
                row["prompts_low"], row["prompts_high"] = float(low[place]), float(high[place])
                rows.append(row)
    return pd.DataFrame(rows)


def sweep_table(groups: Sequence[Group], temperatures: Sequence[float], sweep: Sweep) -> pd.DataFrame:
    """One row a temperature, line and value of the swept key: what Figures 3 and 4 of the paper draw.

    Columns: temperature, line, group, value, runs; accepted_length with _low, _high and ``interval`` ('seeds' from three
    seeds on, else 'prompts'); baseline, gain with _low, _high (tokens a round more than DFlash of the same value, the same
    resamples of prompts for both); draft_ms, verify_ms (milliseconds a round). NaN or None where there is no such thing.
    Empty where the groups do not hold two different values.
    """
    groups = [group for group in groups if group.value(sweep) is not None]
    if len({group.value(sweep) for group in groups}) < 2:
        return pd.DataFrame()
    lines, rows = _lines(groups, sweep), []
    runs = [run for group in groups for run in group.runs]
    members = np.split(np.arange(len(runs)), np.cumsum([len(group.runs) for group in groups])[:-1])
    for temperature in temperatures:
        values, samples = resampled_lengths(runs, temperature)
        means = [float(values[part].mean()) for part in members]
        drawn = [samples[:, part].mean(axis=1) for part in members]
        for place, (group, line) in enumerate(zip(groups, lines, strict=True)):
            row = {"temperature": temperature, "line": line, "group": group.label, "value": group.value(sweep)}
            row |= {"runs": len(group.runs), "accepted_length": means[place]}
            row |= _interval(group, values[members[place]].tolist(), drawn[place])
            other = _baseline(group, groups, sweep)
            row["baseline"] = None if other is None else groups[other].label
            gain = np.full_like(drawn[place], np.nan) if other is None else drawn[place] - drawn[other]
            low, high = quantile_interval(gain[:, None])
            row["gain"] = np.nan if other is None else means[place] - means[other]
            row |= {"gain_low": float(low[0]), "gain_high": float(high[0])}
            rows.append(row | _milliseconds(group.runs, temperature))
    table = pd.DataFrame(rows)
    return table.sort_values(["temperature", "line", "value"], kind="stable", ignore_index=True)


def _interval(group: Group, values: list[float], samples: np.ndarray) -> dict[str, float | str]:
    """Over seeds where there are enough, else over prompts."""
    if len(group.seeds) >= ENOUGH:
        (low, high), over = t_interval(values), SEEDS
    else:
        (low,), (high,) = quantile_interval(samples[:, None])
        over = PROMPTS
    return {"accepted_length_low": float(low), "accepted_length_high": float(high), "interval": over}


def _lines(groups: Sequence[Group], sweep: Sweep) -> list[str]:
    """The line that each group is a point of: its drafter, and more only where two groups would share a point."""
    points = [(group.drafter, group.value(sweep)) for group in groups]
    crowded = {point[0] for point in points if points.count(point) > 1}
    named = labels([without(group.config, sweep.keys) for group in groups])
    return [name if group.drafter in crowded else group.drafter for group, name in zip(groups, named, strict=True)]


def _baseline(group: Group, groups: Sequence[Group], sweep: Sweep) -> int | None:
    """Place of the DFlash group of the same swept value, the most alike where there are several."""
    places = [
        place
        for place, other in enumerate(groups)
        if other.drafter == BASELINE and other.value(sweep) == group.value(sweep)
    ]
    if group.drafter == BASELINE or not places:
        return None
    return min(places, key=lambda place: len(differing([group.config, groups[place].config])))


def _milliseconds(runs: Sequence[Run], temperature: float) -> dict[str, float]:
    """Mean over runs of the milliseconds that a round drafts and verifies; NaN where a run did not record its rounds."""
    parts = [round_milliseconds(speed_row(run, temperature)) for run in runs]
    return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
