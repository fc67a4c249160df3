"""The report of a run on its W&B page: tables and pictures of the evaluation, and the headline figures in the summary.

It sends what :func:`draftlab.report.write_report` has written into the run folder, to the W&B run that is open in this
process, online or offline; without one it does nothing.

    log_report("outputs/demo")
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import wandb

from draftlab.report.tables import ALL

PAGE = "evaluation"


def log_report(folder: str | Path) -> None:
    """Log tables/*.csv, figures/*.png and the accepted length at each temperature of run ``folder`` under ``evaluation/``."""
    if wandb.run is None:
        return
    folder = Path(folder)
    tables = {path.stem: pd.read_csv(path) for path in sorted((folder / "tables").glob("*.csv"))}
    pictures = sorted((folder / "figures").glob("*.png"))
    wandb.run.log(
        {f"{PAGE}/tables/{name}": wandb.Table(dataframe=frame) for name, frame in tables.items()}
        | {f"{PAGE}/figures/{path.stem}": wandb.Image(str(path)) for path in pictures}
    )
    wandb.run.summary.update(headline(tables["accepted_length"]))


def headline(lengths: pd.DataFrame) -> dict[str, float]:
    """Accepted length with its interval over all prompts, by temperature, named for W&B's summary."""
    overall = lengths[lengths["scope"] == ALL]
    return {
        f"{PAGE}/{column}_T{row['temperature']:g}": float(row[column])
        for _, row in overall.iterrows()
        for column in ("accepted_length", "accepted_length_low", "accepted_length_high")
    }
