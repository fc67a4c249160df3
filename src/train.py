"""Train a drafter for a target; optionally evaluate it at once.

    python src/train.py                                              the laptop recipe on the answers in data/demo
    python src/train.py drafter=dspark head=markov target=qwen3_14b plan=true      what it would take, no weights needed
    python src/train.py experiment=demo                              train, evaluate, report
    python src/train.py init_from=outputs/released run_name=tuned    fine-tune a trained or adopted drafter

Compose, check, run; the stages live in draftlab.training.run. What is slow to import (PyTorch, Lightning) is imported where it
is needed, so that help, a refusal and a plan come at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from draftlab.cli import entry, leave

if TYPE_CHECKING:
    from draftlab.training import OptimizerSettings
    from draftlab.training.build import Parts


@hydra.main(config_path="../conf", config_name="train", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Compose, check, plan or train."""
    from draftlab.training.build import build, describe_data
    from draftlab.training.run import check_settings

    if cfg.init_from:
        from draftlab.training.initial import inherit

        inherit(cfg, HydraConfig.get().overrides.task)
    parts = build(cfg, meta=cfg.plan)
    optimizer = hydra.utils.instantiate(cfg.trainer.optimizer)
    data = describe_data(cfg.data)
    check_settings(cfg.trainer.settings)
    if not cfg.plan:
        train(cfg, parts, optimizer)
        return
    from draftlab.training.plan import make_plan, print_plan, workload

    mixed = cfg.trainer.settings.precision != "32-true"  # of the machine that will train, not of this one
    work = workload(data, cfg.trainer.settings, parts.loss.chunk_blocks, mixed)
    print_plan(make_plan(parts, work), cfg.plan_gpu_gb)


def train(cfg: DictConfig, parts: Parts, optimizer: OptimizerSettings) -> None:
    """Refuse what else can be refused, load, fit and, if asked to, evaluate."""
    from draftlab.training.acceleration import accelerate
    from draftlab.training.build import record
    from draftlab.training.initial import start_from
    from draftlab.training.resume import check_resume, check_same_training, find_resume
    from draftlab.training.run import fit, load_data, pick_device, pick_precision, prepare_target, set_vocabulary
    from draftlab.training.warm_start import check_warm_start

    start = None if cfg.init_from else hydra.utils.instantiate(cfg.trainer.warm_start)
    if start is not None:
        check_warm_start(parts.drafter, start)
    if cfg.evaluate_after:
        from evaluate import check_evaluation

        check_evaluation(cfg.evaluation, parts.drafter)
    device = pick_device(cfg.trainer.settings.accelerator)
    accelerate(parts.drafter, cfg.trainer.attention, cfg.trainer.compile, device)
    folder = Path(HydraConfig.get().runtime.output_dir)
    checkpoint = find_resume(folder, cfg.resume)

    import lightning as L
    import wandb

    from draftlab.training.module import DrafterModule

    data = hydra.utils.instantiate(cfg.data)
    trainer = hydra.utils.instantiate(
        cfg.trainer.settings,
        precision=pick_precision(cfg.trainer.settings.precision, device),
        callbacks=list(hydra.utils.instantiate(cfg.callbacks).values()),
        logger=list(hydra.utils.instantiate(cfg.logger).values()),
        default_root_dir=str(folder),
    )
    data.require_ranks(trainer.world_size)
    if checkpoint is not None:
        check_resume(parts.drafter, checkpoint, trainer.world_size)
        check_same_training(folder, cfg)
    elif cfg.init_from:
        start_from(parts.drafter, cfg.init_from)
    L.seed_everything(cfg.seed, verbose=False)
    load_data(data, parts.spec)
    if not cfg.init_from:  # such a drafter brings its draft vocabulary
        set_vocabulary(parts.drafter, data)
    record(cfg, HydraConfig.get().overrides.task, folder)
    print(f"position weights of the loss: {parts.block.weights_text} {parts.loss.positions.text}".rstrip())
    target = prepare_target(parts.drafter, data, device, start if checkpoint is None else None)
    module = DrafterModule(parts.drafter, parts.loss, optimizer, seed=cfg.seed, target=target)
    try:
        fit(trainer, module, data, checkpoint)
        print(f"checkpoints: {folder / 'checkpoints'}")
        if cfg.evaluate_after and trainer.is_global_zero:
            from draftlab.report.online import log_report
            from evaluate import evaluate_run

            evaluate_run(folder, cfg.evaluation)
            log_report(folder)
    finally:
        wandb.finish()  # the next run of this process (--multirun) starts its own


if __name__ == "__main__":
    main()
    leave()
