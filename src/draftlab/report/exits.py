"""What early exits save and what they cost: one point a policy, from its rounds and the seconds of its drafting.

    layer passes   Σ depth / Σ rounds                layers run a round and row, against all n of them
    draft ms       seconds of drafting / rounds      rows of a batch together, so of one request at batch size 1
    cost           accepted length of the policy less that of drafting to the end, intervals over prompts

Drafting to the end is a policy, too: the one with survival 0 and without sitting out. It knows nothing of decoding.

    figure = saving_figure(saving_table(rounds, seconds, num_layers=4))
"""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from draftlab.report.bootstrap import quantile_interval, resample_counts, resampled_ratio
from draftlab.report.style import BLUE, INK, MUTED, ORANGE, STYLE, panels

WHOLE = "to the end"
COLUMNS = ("policy", "prompt", "depth", "committed")


def saving_table(rounds: pd.DataFrame, seconds: pd.DataFrame, num_layers: int) -> pd.DataFrame:
    """One row a policy, in the order in which they come.

    Args:
        rounds: a row a round, with COLUMNS; ``policy`` WHOLE is what the others are compared with.
        seconds: policy, draft (seconds of drafting) and passes (of the loop), a row a group of prompts.

    Raises:
        ValueError: no rounds of drafting to the end.
    """
    names = list(dict.fromkeys(rounds["policy"]))
    if WHOLE not in names:
        raise ValueError(f"expected rounds of the policy {WHOLE!r}, which the others are compared with, got {names}")
    prompts = np.unique(rounds["prompt"])  # one that a policy answered with a stop token alone has no round there
    sums = {name: _sums(part).reindex(prompts, fill_value=0.0) for name, part in rounds.groupby("policy", sort=False)}
    counts = resample_counts(len(prompts))
    lengths = {name: _length(of_policy, counts) for name, of_policy in sums.items()}
    time = seconds.groupby("policy")[["draft", "passes"]].sum()
    milliseconds = 1000 * time["draft"] / time["passes"]
    rows = []
    for name in names:
        (value, samples), (whole, whole_samples) = lengths[name], lengths[WHOLE]
        total = sums[name].sum()
        low, high = quantile_interval(samples - whole_samples)
        own_low, own_high = quantile_interval(samples)
        rows.append(
            {
                "policy": name,
                "rounds": int(total["rounds"]),
                "layers_a_round": total["depth"] / total["rounds"],
                "layers_saved": 1.0 - total["depth"] / total["rounds"] / num_layers,
                "sat_out": total["sat_out"] / total["rounds"],
                "draft_ms": milliseconds[name],
                "time_saved": 1.0 - milliseconds[name] / milliseconds[WHOLE],
                "accepted_length": value,
                "accepted_length_low": own_low[0],
                "accepted_length_high": own_high[0],
                "lost": whole - value,
                "lost_low": 0.0 - high[0],
                "lost_high": 0.0 - low[0],
            }
        )
    return pd.DataFrame(rows)


def saving_figure(table: pd.DataFrame) -> Figure:
    """Accepted length against layer passes saved, and against seconds of drafting saved; a mark a policy.

    Nothing joins the marks: their intervals overlap, and policies of different kinds do not lie on one curve.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(2, width=5.4)
        shown = (("layers_saved", "layer passes saved", BLUE), ("time_saved", "seconds of drafting saved", ORANGE))
        for panel, (column, label, colour) in zip(axes, shown, strict=True):
            rows = table.sort_values(column)
            x, y = rows[column].to_numpy(), rows["accepted_length"].to_numpy()
            panel.plot(
                x, y, color=colour, linestyle="none", marker="o", markeredgecolor="white", markeredgewidth=0.8, zorder=3
            )
            panel.vlines(
                x, rows["accepted_length_low"], rows["accepted_length_high"], color=colour, linewidth=1.3, alpha=0.45
            )
            whole = float(table.loc[table["policy"] == WHOLE, "accepted_length"].iloc[0])
            panel.axhline(whole, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
            for place, (_, row) in enumerate(rows.iterrows()):
                above = place % 2 == 0
                end = row["accepted_length_high"] if above else row["accepted_length_low"]
                panel.annotate(
                    row["policy"],
                    (row[column], row["accepted_length"] if np.isnan(end) else end),
                    xytext=(0, 4 if above else -4),
                    textcoords="offset points",
                    color=INK,
                    fontsize=8.5,
                    ha="center",
                    va="bottom" if above else "top",
                )
            panel.margins(x=0.12, y=0.16)
            panel.set_xlabel(label)
            panel.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[0].set_ylabel("accepted length (with bonus)")
        return figure


def _sums(rounds: pd.DataFrame) -> pd.DataFrame:
    """Sums by prompt: rounds, depth, committed, rounds without a draft."""
    counted = rounds.assign(rounds=1, sat_out=rounds["depth"] == 0)
    return counted.groupby("prompt", sort=True)[["rounds", "depth", "committed", "sat_out"]].sum().astype(np.float64)


def _length(sums: pd.DataFrame, counts: np.ndarray) -> tuple[float, np.ndarray]:
    """Accepted length, and that of every resample [resamples, 1]; the same resamples for every policy."""
    committed, rounds = sums[["committed"]].to_numpy(), sums[["rounds"]].to_numpy()
    samples = resampled_ratio(committed, rounds, counts)
    return float(committed.sum() / rounds.sum()), samples if len(sums) > 1 else np.full_like(samples, np.nan)
