"""Calibrate the confidence head of a trained drafter: held-out decode rounds, then Sequential Temperature Scaling.

    python src/calibrate.py run=outputs/demo                         built-in prompts that evaluation does not use
    python src/calibrate.py run=outputs/demo prompts_dir=path/to/prompts skip=0 temperature=0.7 top_p=0.8

Writes calibration.json into the run folder: the temperatures, and every measure before and after, on the rounds of the fit
and on those of the run's evaluation, which the fit has not seen. The rounds lie in calibration/. Stop it at any moment; the
same command goes on with what was not finished.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import hydra
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from draftlab.calibration import FILE, calibrate, held_out_measures
from draftlab.calibration.rounds import round_arrays
from draftlab.cli import entry
from draftlab.data.chat import Chat
from draftlab.decode.evaluation import Evaluation, EvaluationSettings, SpeedSettings
from draftlab.decode.suites import Benchmark, find_benchmarks, without_first
from draftlab.decode.trained import TrainedDrafter, open_drafter
from draftlab.report.calibration import print_calibration
from draftlab.target import load_tokenizer


def read_prompts(cfg: DictConfig) -> list[Benchmark]:
    """The prompts to calibrate on, without the first ``skip`` of each benchmark."""
    for key, least in (("limit", 1), ("skip", 0)):
        if not isinstance(cfg[key], int) or cfg[key] < least:
            raise ValueError(f"{key} must be at least {least} and whole, in prompts a benchmark, got {cfg[key]!r}")
    found = find_benchmarks(cfg.prompts_dir, cfg.benchmarks, cfg.domains, cfg.limit + cfg.skip, cfg.seed)
    return without_first(found, cfg.skip)


def decode_settings(cfg: DictConfig) -> EvaluationSettings:
    """How the rounds are decoded: as in an evaluation, without a comparison of speed."""
    names = ("top_k", "top_p", "min_p", "max_new_tokens", "batch_size", "seed")
    no_speed = SpeedSettings(prompts=0, max_new_tokens=1, batch_size=1)
    return EvaluationSettings((cfg.temperature,), **{name: cfg[name] for name in names}, speed=no_speed)


def decode_rounds(cfg: DictConfig, trained: TrainedDrafter, benchmarks: list[Benchmark], folder: Path) -> pd.DataFrame:
    """Decode ``benchmarks`` into ``folder``, or read what it holds of the same."""
    spec = trained.drafter.spec
    chat = Chat(load_tokenizer(spec), spec.thinking if cfg.thinking is None else cfg.thinking, spec.eos_token_ids)
    settings, target = decode_settings(cfg), trained.load_target(cfg.device)
    command = shlex.join(["python", "src/calibrate.py", *sys.argv[1:]])
    Evaluation(target, trained.drafter, chat, settings, folder, trained.identity).run(benchmarks, command)
    return pd.read_parquet(folder / "rounds.parquet")


@hydra.main(config_path="../conf", config_name="calibrate", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Compose, decode, fit, write."""
    if OmegaConf.is_missing(cfg, "run"):
        raise ValueError("run: name the folder of a trained drafter, as in run=outputs/demo")
    run = Path(cfg.run)
    decode_settings(cfg)
    trained = open_drafter(run, cfg.checkpoint)
    if not trained.drafter.has_confidence:
        raise ValueError(f"{run}: the drafter has no confidence head; train one with drafter.confidence_head=true")
    benchmarks = read_prompts(cfg)
    print(f"{trained.checkpoint}: {sum(len(b.prompts) for b in benchmarks)} prompts to calibrate on", flush=True)
    rounds = decode_rounds(cfg, trained, benchmarks, run / "calibration")
    gamma = trained.drafter.block.block_size
    arrays = round_arrays(rounds, float(cfg.temperature), gamma)
    dataset = ", ".join(benchmark.name for benchmark in benchmarks)
    calibration = calibrate(arrays, trained.identity, dataset)
    held_out = held_out_measures(calibration, run / "rounds.parquet", float(cfg.temperature))
    calibration.with_measures(held_out).save(run / FILE)
    print_calibration(calibration.with_measures(held_out))
    print(f"calibration: {run / FILE}")


if __name__ == "__main__":
    main()
