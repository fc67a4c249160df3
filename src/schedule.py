"""Schedule verification on this machine: measure it, and serve with it.

    python src/schedule.py profile run=outputs/demo        SPS of the target and of drafting: sps.json, draft_sps.json
    python src/schedule.py serve run=outputs/demo schedule=early_stop concurrency=[1,2,4,8]
    python src/schedule.py serve experiment=pareto run=outputs/demo mtp=outputs/mtp       several cells, in turns
    python src/schedule.py simulate                        Figures 7 and 8 on synthetic rounds and a GPU-like staircase
    python src/schedule.py simulate run=outputs/demo table=outputs/demo/sps.json     recorded rounds, a measured table
    python src/schedule.py simulate experiment=bursts      what stale budgets lose under bursty traffic

``serve`` answers prompts with an engine in this process under so many users at a time and writes steps.parquet,
requests.parquet, summary.csv and figures into serve.folder. It is for experiments; production means exporting to an engine.

Stop it at any moment; the same command goes on with what was not finished.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig, OmegaConf

from draftlab.cli import entry
from draftlab.runs import named_folder, read_run_config

if TYPE_CHECKING:  # slow to import, so whoever needs them does it
    from draftlab.serving.stage import ServeOptions


def run_profile(cfg: DictConfig) -> None:
    """Write sps.json, draft_sps.json and profile.csv into the run folder."""
    from draftlab.decode.budget import DRAFT_SPS, SPS
    from draftlab.decode.trained import open_drafter
    from draftlab.hardware import machine
    from draftlab.report.throughput import show_profile
    from draftlab.serving.profile import ProfileSettings, profile, tables

    folder, trained = Path(cfg.run), open_drafter(cfg.run, cfg.checkpoint)
    settings = ProfileSettings(**OmegaConf.to_container(cfg.profile, resolve=True))
    settings.check(trained.drafter.spec, trained.drafter.block.block_size)
    identity = {**machine(cfg.device), "drafter": trained.identity}
    frame = profile(trained.load_target(cfg.device), trained.drafter, settings, folder / "profile", identity)
    frame.to_csv(folder / "profile.csv", index=False)
    table, drafting = tables(frame, settings.main_context)
    drafting.save(folder / DRAFT_SPS)
    table.save(folder / SPS)
    show_profile(frame, table, folder)
    print(f"tables: {folder / SPS} and {folder / DRAFT_SPS}; all passes: {folder / 'profile.csv'}")


def run_serve(cfg: DictConfig) -> None:
    """Measure the cells of ``cfg`` under load, print and draw them."""
    from draftlab.decode.suites import find_benchmarks
    from draftlab.decode.trained import open_drafter
    from draftlab.hardware import machine
    from draftlab.report.measured import show_serving, summary_table
    from draftlab.report.serving import About
    from draftlab.serving.cells import read_plans
    from draftlab.serving.stage import serve

    trained, options = open_drafter(cfg.run, cfg.checkpoint), serve_options(cfg)
    plans = read_plans(hydra.utils.instantiate(cfg.cells, _convert_="all"))
    benchmarks = find_benchmarks(cfg.prompts_dir, cfg.benchmarks, cfg.domains, cfg.limit, cfg.seed)
    steps, requests = serve(trained, cfg.run, plans, benchmarks, options, machine(cfg.device))
    command = shlex.join(["python", "src/schedule.py", *sys.argv[1:]])
    text = "A real target in this process under a closed loop of users, all cells in turns on one machine."
    about = About("measured", text, {"run": cfg.run, **machine(cfg.device)}, command)
    show_serving(summary_table(steps, requests), options.folder, about)


def serve_options(cfg: DictConfig) -> ServeOptions:
    """The settings of stage ``serve`` among the keys of ``cfg``."""
    from draftlab.sampling import Sampling
    from draftlab.serving.measured import ServeSettings
    from draftlab.serving.stage import ServeOptions

    given = OmegaConf.to_container(cfg.serve, resolve=True)
    sampling = Sampling(**{name: given.pop(name) for name in ("temperature", "top_k", "top_p", "min_p")})
    timing = ServeSettings(**{name: given.pop(name) for name in ("turns", "seconds", "warm_up")})
    concurrency = OmegaConf.to_container(cfg)["concurrency"]
    folder = Path(given.pop("folder"))
    return ServeOptions(folder, concurrency, sampling, timing=timing, seed=cfg.seed, sps=cfg.sps, **given)


def run_simulate(cfg: DictConfig) -> None:
    """Simulate what ``simulation`` says, on recorded rounds of ``run`` if there is one, and write its page."""
    from draftlab.report.simulation import simulate

    experiment = hydra.utils.instantiate(cfg.simulation, _convert_="all")
    settings = OmegaConf.to_container(cfg.simulation, resolve=True)
    command = shlex.join(["python", "src/schedule.py", *sys.argv[1:]])
    print(f"report: {simulate(experiment, settings, Path(cfg.out), command)}")


STAGES = {"profile": run_profile, "serve": run_serve, "simulate": run_simulate}
WITHOUT_RUN = ("simulate",)


@hydra.main(config_path="../conf", config_name="schedule", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Compose, instantiate, run."""
    if cfg.stage not in STAGES:
        got = repr(cfg.stage) if cfg.stage is not None else "none"
        raise ValueError(f"the stage, the first word of the command, must be one of {', '.join(STAGES)}; got {got}")
    if cfg.stage not in WITHOUT_RUN:
        read_run_config(named_folder(cfg, "run", "outputs/demo"))
    STAGES[cfg.stage](cfg)


if __name__ == "__main__":
    if len(sys.argv) > 1 and "=" not in sys.argv[1] and not sys.argv[1].startswith("-"):
        sys.argv[1] = f"stage={sys.argv[1]}"
    main()
