"""The comparison of runs as a W&B Report: its tables as text, curves and pictures from the runs' own pages.

It needs a login and the wandb-workspaces package (``pip install -e ".[wandb-report]"``). Runs are found on W&B by the name
that training gave them (``run_name``). Nothing is computed here: tables are those that the comparison wrote.

    check_ready()
    url = publish(["outputs/a", "outputs/b"], "outputs/compare", project="draftlab")
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import yaml

from draftlab.accounts import logged_in
from draftlab.report.online import PAGE
from draftlab.report.run import read_run
from draftlab.report.tables import ALL, with_interval

PACKAGE = "wandb_workspaces"
CURVES = {
    **{key: [key] for key in ("train/loss", "val/loss", "val/accepted_length", "val/roc_auc", "val/ece")},
    # What Sequential Temperature Scaling would make of the confidences (draftlab.callbacks.calibration).
    **{
        f"val/sts/{name} before and after": [f"val/sts/{name}_before", f"val/sts/{name}_after"]
        for name in ("survival_ece", "survival_roc_auc", "conditional_ece", "conditional_roc_auc")
    },
}
POSITIONS = "val/conditional_acceptance_.*"
PICTURES = ("conditional_acceptance", "accepted_length", "reliability")


def check_ready(host: str = "api.wandb.ai") -> None:
    """Refuse before any work what would fail at its end.

    Raises:
        ValueError: not logged in to W&B at ``host``, or the package is missing.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise ValueError('report=wandb needs the wandb-workspaces package: pip install -e ".[wandb-report]"')
    if not logged_in(host):
        raise ValueError("report=wandb needs a W&B login: run `wandb login`, or leave report=local")


def publish(run_dirs: Sequence[str | Path], out: str | Path, project: str, entity: str | None = None) -> str:
    """Save the report of ``run_dirs``, the runs that the comparison in ``out`` kept, and return its address."""
    report = build_report(run_dirs, Path(out), project, entity)
    report.save()
    return report.url


def build_report(run_dirs: Sequence[str | Path], out: Path, project: str, entity: str | None = None):
    """The report, not yet sent.

    Raises:
        ValueError: a run that was not evaluated, or ``out`` without a comparison.
    """
    import wandb_workspaces.reports.v2 as parts

    if not (out / "runs.csv").is_file():
        raise ValueError(f"{out} holds no comparison; compare two or more runs first (src/report.py)")
    names = [wandb_name(run_dir) for run_dir in run_dirs]
    owner = {} if entity is None else {"entity": entity}
    runset = parts.Runset(project=project, filters=f"Metric('displayName') in {names}", **owner)
    curves = [parts.LinePlot(title=title, x="Step", y=keys) for title, keys in CURVES.items()]
    curves.append(parts.LinePlot(title="conditional acceptance by position", x="Step", metric_regex=POSITIONS))
    pictures = [parts.MediaBrowser(title=name, media_keys=[f"{PAGE}/figures/{name}"]) for name in PICTURES]
    blocks = [
        parts.H1("Accepted length"),
        parts.MarkdownBlock(markdown(length_rows(pd.read_csv(out / "runs.csv")))),
        *(
            block
            for title, name in (("Configuration differences", "differences"), ("Seeds", "seeds"), ("Cost", "cost"))
            if (out / f"{name}.csv").is_file()
            for block in (parts.H1(title), parts.MarkdownBlock(markdown(pd.read_csv(out / f"{name}.csv").round(3))))
        ),
        parts.H1("Pictures of the evaluations"),
        parts.PanelGrid(runsets=[runset], panels=pictures),
        parts.H1("Training"),
        parts.PanelGrid(runsets=[runset], panels=curves),
    ]
    title = "Comparison: " + ", ".join(names)
    return parts.Report(project=project, title=title, description="Same target, same prompts.", blocks=blocks, **owner)


def wandb_name(run_dir: str | Path) -> str:
    """The name under which training logged run ``run_dir`` to W&B; its folder's where no name is recorded."""
    run = read_run(run_dir)
    try:
        config = yaml.safe_load(run.config or "")
    except (yaml.YAMLError, ValueError):  # the comparison has named it; its name on W&B is the folder's, as by default
        config = None
    return str((config.get("run_name") if isinstance(config, dict) else None) or run.name)


def length_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Accepted length with and without bonus of all prompts, one row a temperature and run, as text."""
    overall = runs[runs["scope"] == ALL]
    rows = [
        {
            "T": f"{row['temperature']:g}",
            "run": row["run"],
            "accepted length (with bonus)": with_interval(row, "accepted_length"),
            "accepted (without bonus)": with_interval(row, "accepted"),
        }
        for _, row in overall.iterrows()
    ]
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame) -> str:
    """A table as GitHub-style Markdown; a bar inside a cell is escaped, a missing value is a dash."""

    def line(cells) -> str:
        return "| " + " | ".join("–" if pd.isna(cell) else str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(table.columns), line(["---"] * table.shape[1]), *map(line, table.to_numpy().tolist())])
