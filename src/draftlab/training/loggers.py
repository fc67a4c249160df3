"""Loggers that never ask: metrics.csv straight in the run folder, and W&B online when logged in, else offline.

    logger=default      both            logger=csv      the file alone            WANDB_MODE=disabled, offline, online is honoured

The module knows nothing of what is logged.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import wandb
from lightning.pytorch.loggers import CSVLogger, WandbLogger

from draftlab.accounts import logged_in

INIT_SECONDS = 30  # of waiting for W&B's server before logging offline


class MetricsFile(CSVLogger):
    """Writes ``<folder>/metrics.csv`` and goes on in the file of the run that is resumed, which Lightning's own logger deletes.

    Args:
        folder: run folder. flush_every: rows kept in memory at most.
    """

    def __init__(self, folder: str, flush_every: int = 10) -> None:
        super().__init__(folder, name="", version="", flush_logs_every_n_steps=flush_every)

    @property
    def experiment(self):
        """Lightning's writer, with the earlier rows put back in place."""
        path = Path(self.log_dir) / "metrics.csv"
        kept = path.read_text(encoding="utf-8") if self._experiment is None and path.is_file() else ""
        with warnings.catch_warnings():  # Lightning says that it deletes earlier rows; they are put back below
            warnings.filterwarnings("ignore", message=".*Experiment logs directory.*")
            experiment = super().experiment
        if kept.strip() and not path.is_file():
            path.write_text(kept, encoding="utf-8")
            experiment.metrics_keys = kept.splitlines()[0].split(",")
        return experiment


def wandb_logger(folder: str, project: str, name: str | None = None, host: str = "api.wandb.ai") -> WandbLogger:
    """W&B logger, online if an API key is known for ``host``, else offline with one line on how to upload later.

    It never prompts for a login; the key itself is neither read here nor logged.
    """
    os.environ.setdefault("WANDB_SILENT", "true")
    Path(folder).mkdir(parents=True, exist_ok=True)
    mode, reason = os.environ.get("WANDB_MODE") or ("online" if logged_in(host) else "offline"), ""
    if mode == "online":
        try:
            return _started(folder, project, name, mode)
        except wandb.Error as error:  # no network, or a key that is not accepted: training must not depend on it
            reason, mode = f" ({type(error).__name__}: {str(error).splitlines()[0]})", "offline"
    if mode == "offline":
        upload = f"wandb login, then wandb sync {folder}/wandb/offline-run-*"
        print(f"W&B: logging offline{reason}; to upload later: {upload}", flush=True)
    return _started(folder, project, name, mode)


def _started(folder: str, project: str, name: str | None, mode: str) -> WandbLogger:
    """A logger whose run exists, so that what can fail has failed before training."""
    settings = wandb.Settings(init_timeout=INIT_SECONDS, login_timeout=INIT_SECONDS)
    logger = WandbLogger(
        project=project, name=name, save_dir=folder, offline=mode == "offline", mode=mode, settings=settings
    )
    logger._wandb_init.pop("anonymous", None)  # Lightning passes it on, and W&B warns that it means nothing any more
    _ = logger.experiment
    return logger
