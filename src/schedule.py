"""Schedule verification on this machine: measure it, and serve with it.

    python src/schedule.py profile run=outputs/demo        SPS of the target and of drafting: sps.json, draft_sps.json

Stop it at any moment; the same command goes on with what was not finished.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig, OmegaConf

from draftlab.cli import entry
from draftlab.decode.budget import DRAFT_SPS, SPS
from draftlab.decode.trained import open_drafter
from draftlab.report.throughput import show_profile
from draftlab.serving.profile import DRAFTER, TARGET, ProfileSettings, profile, tables
from draftlab.target import find_device


def run_profile(cfg: DictConfig) -> None:
    """Write sps.json, draft_sps.json and profile.csv into the run folder."""
    folder, trained = Path(cfg.run), open_drafter(cfg.run, cfg.checkpoint)
    settings = ProfileSettings(**OmegaConf.to_container(cfg.profile, resolve=True))
    settings.check(trained.drafter.spec, trained.drafter.block.block_size)
    identity = {**machine(cfg.device), "drafter": trained.identity}
    frame = profile(trained.load_target(cfg.device), trained.drafter, settings, folder / "profile", identity)
    frame.to_csv(folder / "profile.csv", index=False)
    found = tables(frame, settings.main_context)
    found[DRAFTER].save(folder / DRAFT_SPS)
    found[TARGET].save(folder / SPS)
    show_profile(frame, found, folder)
    print(f"tables: {folder / SPS} and {folder / DRAFT_SPS}; all passes: {folder / 'profile.csv'}")


def machine(device: str) -> dict[str, str | int]:
    """What a speed depends on, besides models and sizes."""
    found = torch.device(find_device(device))
    name = torch.cuda.get_device_name(found) if found.type == "cuda" else platform.processor() or platform.machine()
    return {"device": found.type, "machine": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


STAGES = {"profile": run_profile}


@hydra.main(config_path="../conf", config_name="schedule", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Compose, instantiate, run."""
    if OmegaConf.is_missing(cfg, "stage") or cfg.stage not in STAGES:
        got = "none" if OmegaConf.is_missing(cfg, "stage") else repr(cfg.stage)
        raise ValueError(f"the stage, the first word of the command, must be one of {', '.join(STAGES)}; got {got}")
    if OmegaConf.is_missing(cfg, "run"):
        raise ValueError("run: name the folder of a trained drafter, as in run=outputs/demo")
    STAGES[cfg.stage](cfg)


if __name__ == "__main__":
    if len(sys.argv) > 1 and "=" not in sys.argv[1] and not sys.argv[1].startswith("-"):
        sys.argv[1] = f"stage={sys.argv[1]}"
    main()
