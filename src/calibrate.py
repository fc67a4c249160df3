"""Calibrate the confidence head of a trained drafter: held-out decode rounds, then Sequential Temperature Scaling.

    python src/calibrate.py run=outputs/demo                         built-in prompts that evaluation does not use
    python src/calibrate.py run=outputs/demo prompts_dir=path/to/prompts skip=0 temperature=0.7 top_p=0.8
    python src/calibrate.py run=outputs/demo drift=[0.7,0.3]         also tests the temperatures on rounds sampled otherwise

Writes calibration.json into the run folder: the temperatures, and every measure before and after, on the rounds of the fit
and on those of the run's evaluation, which the fit has not seen; and calibration.html with pictures, baseline and ceiling. A
drafter without confidence head is calibrated by the top probability of its draft law. The rounds lie in calibration/. Stop
it at any moment; the same command goes on with what was not finished.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig

from draftlab.cli import entry
from draftlab.runs import named_folder, read_run_config

if TYPE_CHECKING:  # slow to import, so whoever needs them does it
    from draftlab.calibration.study import StudyRounds
    from draftlab.decode.evaluation import EvaluationSettings
    from draftlab.decode.suites import Benchmark
    from draftlab.decode.trained import TrainedDrafter


def read_prompts(cfg: DictConfig) -> list[Benchmark]:
    """The prompts to calibrate on, without the first ``skip`` of each benchmark."""
    from draftlab.decode.suites import find_benchmarks, without_first

    for key, least in (("limit", 1), ("skip", 0), ("drift_limit", 1)):
        if not isinstance(cfg[key], int) or cfg[key] < least:
            raise ValueError(f"{key} must be at least {least} and whole, in prompts a benchmark, got {cfg[key]!r}")
    found = find_benchmarks(cfg.prompts_dir, cfg.benchmarks, cfg.domains, cfg.limit + cfg.skip, cfg.seed)
    return without_first(found, cfg.skip)


def decode_settings(cfg: DictConfig) -> dict[float, EvaluationSettings]:
    """How the rounds are decoded, by temperature, that of the fit first: as in an evaluation, without a comparison of speed."""
    from draftlab.decode.evaluation import EvaluationSettings, SpeedSettings

    names = ("top_k", "top_p", "min_p", "max_new_tokens", "batch_size", "seed")
    no_speed = SpeedSettings(prompts=0, max_new_tokens=1, batch_size=1)
    base = EvaluationSettings((cfg.temperature,), **{name: cfg[name] for name in names}, speed=no_speed)
    drift = EvaluationSettings((cfg.temperature, *cfg.drift), **{name: cfg[name] for name in names}, speed=no_speed)
    return {value: replace(base, temperatures=(value,)) for value in drift.temperatures}


def decode_rounds(cfg: DictConfig, trained: TrainedDrafter, benchmarks: list[Benchmark], run: Path) -> StudyRounds:
    """Decode ``benchmarks`` at every temperature into calibration/ of ``run``, or read what lies there of the same."""
    import pandas as pd

    from draftlab.calibration.study import StudyRounds
    from draftlab.data.chat import Chat
    from draftlab.decode.evaluation import Evaluation
    from draftlab.decode.records import held_out_rounds
    from draftlab.target import load_tokenizer

    spec, target = trained.drafter.spec, trained.load_target(cfg.device)
    chat = Chat(load_tokenizer(spec), spec.thinking if cfg.thinking is None else cfg.thinking, spec.eos_token_ids)
    command = shlex.join(["python", "src/calibrate.py", *sys.argv[1:]])
    tables = {}
    for value, settings in decode_settings(cfg).items():
        drifted = value != float(cfg.temperature)
        folder = run / "calibration" / f"T{value:g}" if drifted else run / "calibration"
        few = [replace(b, prompts=b.prompts[: cfg.drift_limit]) for b in benchmarks] if drifted else benchmarks
        Evaluation(target, trained.drafter, chat, settings, folder, trained.identity).run(few, command)
        tables[value] = pd.read_parquet(folder / "rounds.parquet")
    fitted = tables.pop(float(cfg.temperature))
    sampling = {name: cfg[name] for name in ("top_k", "top_p", "min_p")}
    held_out, reason = held_out_rounds(run, trained.identity, float(cfg.temperature), sampling)
    if reason:
        print(f"no held-out figures: {reason}")
    return StudyRounds(fitted, held_out, tables)


@hydra.main(config_path="../conf", config_name="calibrate", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Compose, decode, fit, write."""
    run = named_folder(cfg, "run", "outputs/demo")
    read_run_config(run)
    decode_settings(cfg)

    from draftlab.calibration import FILE
    from draftlab.calibration.study import make_study
    from draftlab.decode.trained import open_drafter
    from draftlab.report.calibration import print_study
    from draftlab.report.calibration_page import write_calibration

    trained = open_drafter(run, cfg.checkpoint)
    benchmarks = read_prompts(cfg)
    print(f"{trained.checkpoint}: {sum(len(b.prompts) for b in benchmarks)} prompts to calibrate on", flush=True)
    rounds = decode_rounds(cfg, trained, benchmarks, run)
    drafter = trained.drafter
    dataset = ", ".join(benchmark.name for benchmark in benchmarks)
    study = make_study(rounds, float(cfg.temperature), trained.identity, dataset, drafter.has_confidence)
    page = write_calibration(run, study)
    study.calibration.save(run / FILE)  # last: where it stands, the page does too
    print_study(study)
    print(f"calibration: {run / FILE}\nreport: {page}")


if __name__ == "__main__":
    main()
