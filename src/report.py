"""Rebuild the report of evaluated runs and, for two or more, compare them.

    python src/report.py runs=[outputs/demo]
    python src/report.py runs=[outputs/a,outputs/b] out=outputs/compare
    python src/report.py runs=[outputs/a,outputs/b] report=wandb          also as a W&B Report, if logged in

A run that cannot be read or compared is named with the reason; the rest goes on. Nothing is decoded again.
"""

from __future__ import annotations

import hydra
from omegaconf import DictConfig, OmegaConf

from draftlab.cli import entry

REPORTS = ("local", "wandb")


@hydra.main(config_path="../conf", config_name="report", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    if OmegaConf.is_missing(cfg, "runs"):
        raise ValueError("runs: name the folders of evaluated runs, as in runs=[outputs/demo]")

    from draftlab.report import comparable_runs, compare_runs, write_reports  # brings pandas and Matplotlib
    from draftlab.report.comparable import check_out, run_folders

    runs = run_folders(OmegaConf.to_container(cfg, resolve=True)["runs"])
    if cfg.report not in REPORTS:
        raise ValueError(f"report must be one of {', '.join(REPORTS)}, got {cfg.report!r}")
    if cfg.report == "wandb":
        from draftlab.report.wandb_report import check_ready, publish  # brings PyTorch, which nothing else here needs

        if len(runs) < 2:
            raise ValueError("report=wandb compares two or more runs; the page of one run has its report already")
        check_ready()
    if len(runs) > 1:
        check_out(cfg.out)
    write_reports(runs)
    if len(runs) > 1:
        compare_runs(runs, cfg.out)
    if cfg.report == "wandb":
        kept = [run.folder for run in comparable_runs(runs)[0]]
        print(f"W&B report: {publish(kept, cfg.out, cfg.project, cfg.entity)}")


if __name__ == "__main__":
    main()
