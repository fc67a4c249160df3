"""Evaluate a trained drafter: decode benchmarks with it, count every round, time it against plain decoding, report.

    python src/evaluate.py run=outputs/demo                                       the built-in held-out prompts
    python src/evaluate.py run=outputs/demo prompts_dir=path/to/benchmarks limit=20 temperatures=[1.0]
    python src/evaluate.py run=outputs/demo schedule=threshold schedule.value=0.6     verifies chosen prefixes only
    python src/evaluate.py run=outputs/demo diagnose=true                             why is the accepted length low?

Written into the run folder: rounds.parquet, outputs.jsonl, evaluation.json, report.html. Stop it at any moment; the same
command goes on with what was not finished.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig, OmegaConf

from draftlab.cli import entry
from draftlab.runs import named_folder, read_run_config

if TYPE_CHECKING:  # slow to import, so whoever needs them does it
    from draftlab.decode.budget import Budget
    from draftlab.decode.evaluation import EvaluationSettings
    from draftlab.decode.suites import Benchmark
    from draftlab.decode.trained import TrainedDrafter


def evaluate_run(folder: str | Path, cfg: DictConfig, command: str | None = None) -> Path:
    """Evaluate run ``folder`` as the ``evaluation`` group ``cfg`` says; returns the path of the report.

    Everything that can be refused is refused before the target's weights load.
    """
    folder = Path(folder)
    read_run_config(folder)
    settings = read_settings(cfg)

    from draftlab.data.chat import Chat
    from draftlab.decode.evaluation import Evaluation
    from draftlab.decode.trained import open_drafter
    from draftlab.report import write_report
    from draftlab.target import load_tokenizer

    trained = open_drafter(folder, cfg.checkpoint)
    check_evaluation(cfg, trained.drafter)
    budget = read_budget(cfg, folder, trained)
    benchmarks = read_benchmarks(cfg)
    spec = trained.drafter.spec
    chat = Chat(load_tokenizer(spec), spec.thinking if cfg.thinking is None else cfg.thinking, spec.eos_token_ids)
    print(f"{trained.checkpoint}: {sum(len(b.prompts) for b in benchmarks)} prompts of {len(benchmarks)} benchmarks")
    target = trained.load_target(cfg.device)
    Evaluation(target, trained.drafter, chat, settings, folder, trained.identity, budget).run(benchmarks, command)
    return write_report(folder)


def check_evaluation(cfg: DictConfig, drafter) -> None:
    """Refuse an ``evaluation`` group that ``drafter`` cannot be evaluated with, before training or loading anything.

    Raises:
        ValueError: values out of range, missing prompts, or more tokens than the target has positions for.
    """
    read_benchmarks(cfg)
    read_settings(cfg).check(drafter)


def read_settings(cfg: DictConfig) -> EvaluationSettings:
    """The settings among the keys of ``cfg``."""
    from draftlab.decode.evaluation import EvaluationSettings, SpeedSettings
    from draftlab.decode.exits import ExitPolicy

    names = {field.name for field in dataclasses.fields(EvaluationSettings)} - {"speed", "exit"}
    plain = OmegaConf.to_container(cfg, resolve=True)
    policy = ExitPolicy(**plain["exit"])
    return EvaluationSettings(
        **{name: plain[name] for name in names},
        speed=SpeedSettings(**plain["speed"]),
        exit=None if policy.is_off else policy,
    )


def read_budget(cfg: DictConfig, folder: Path, trained: TrainedDrafter) -> Budget | None:
    """The scheduler that ``cfg`` names, with the tables and the calibration of run ``folder``; None without one."""
    if cfg.get("schedule") is None:
        return None
    from draftlab.decode.budget import Budget

    scheduler = hydra.utils.instantiate(cfg.schedule)
    if not scheduler.is_lossless:
        print("warning: this schedule is not lossless: the outputs are not the target's law; for analysis only")
    return Budget.of_run(scheduler, folder, trained.identity, cfg.sps).check(trained.drafter)


def read_benchmarks(cfg: DictConfig) -> list[Benchmark]:
    """The benchmarks that ``cfg`` names."""
    from draftlab.decode.suites import find_benchmarks

    return find_benchmarks(cfg.prompts_dir, cfg.benchmarks, cfg.domains, cfg.limit, cfg.seed)


@hydra.main(config_path="../conf", config_name="evaluate", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Compose, instantiate, run."""
    run = named_folder(cfg, "run", "outputs/demo")
    if cfg.diagnose:
        from draftlab.decode.diagnosis import Questions, diagnose

        asked = Questions(read_benchmarks(cfg), cfg.max_new_tokens, cfg.thinking, cfg.device, cfg.checkpoint)
        return diagnose(run, asked)
    evaluate_run(run, cfg, shlex.join(["python", "src/evaluate.py", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
