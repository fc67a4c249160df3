"""Prepare data: ``stage=responses`` lets the target write the answers that a drafter is trained on, ``stage=features``
stores the target's states over them for ``data.features=cache``, ``stage=stream`` ahead of a training that reads them.

    python src/prepare.py stage=responses data=laptop
    python src/prepare.py stage=responses target=custom target.path=/path/to/model data=laptop count=500
    python src/prepare.py stage=responses engine=openai servers=[http://127.0.0.1:8000/v1] data=laptop
    python src/prepare.py stage=features data=laptop data.features=cache data.codec=int4
    python src/prepare.py stage=stream data=laptop data.features=stream         beside src/train.py with the same
    torchrun --nproc-per-node=8 src/prepare.py stage=features data.features=cache predict.devices=8 predict.strategy=ddp

The prompts and the folder are those of the ``data`` choice, less what stands in evaluation prompts
(``decontaminate.prompts_dir=FOLDER``), so ``python src/train.py data=laptop`` then finds the answers. ``engine=openai`` asks
servers that run the target instead of loading it (draftlab/data/remote). Stop it at any moment; the same command goes on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig

from draftlab.cli import entry

if TYPE_CHECKING:  # slow to import, so whoever needs them does it
    from draftlab.data.responses import ResponseSettings
    from draftlab.target import TargetSpec

STAGES = ("responses", "features", "stream")


@hydra.main(config_path="../conf", config_name="prepare", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Compose, instantiate, run."""
    if cfg.stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}, got {cfg.stage!r}")
    if cfg.count is not None and cfg.count < 1:
        raise ValueError(f"count must be null or at least 1, got {cfg.count}")
    (write_answers if cfg.stage == "responses" else write_features)(cfg)


def write_answers(cfg: DictConfig) -> None:
    """Let the target answer the prompts of the data choice.

    Raises:
        ValueError: everything that can be refused, before any weights load.
    """
    from draftlab.data import responses
    from draftlab.data.chat import Chat
    from draftlab.data.remote.engine import find_service, outcome, served_identity, served_responses
    from draftlab.target import find_device, load_target, load_tokenizer
    from draftlab.training.build import describe_data

    service = find_service(cfg.engine, cfg.servers, dict(cfg.client))
    data = describe_data(cfg.data)
    decontaminate = hydra.utils.instantiate(cfg.decontaminate)
    prompts, report = decontaminate(data.read_prompts())
    spec = hydra.utils.instantiate(cfg.target)
    settings = response_settings(cfg, spec, data.max_length)
    device = find_device(cfg.device)
    chat = Chat(load_tokenizer(spec), spec.thinking, spec.eos_token_ids)
    identity = responses.responses_identity(chat, prompts, settings, responses.target_identity(spec, device))
    identity |= decontaminate.identity
    identity = served_identity(identity, service) if service else identity
    responses.claim_responses(data.folder, identity)  # refusals come before any weights load
    responses.note_prompts(data.folder, report)
    prompts = prompts[: cfg.count]
    print(f"{len(prompts)} prompts -> {data.folder}, {settings.sampling}", flush=True)
    if service:
        counts = served_responses(service.named(spec), chat, prompts, data.folder, settings, identity)
    else:
        target = load_target(spec, device)
        chat = Chat(chat.tokenizer, spec.thinking, target.eos_token_ids)
        counts = responses.write_responses(target.generate, chat, prompts, data.folder, settings, identity)
    print(
        f"{counts['answers']} answers: {counts['stopped']} stopped, {counts['truncated']} cut at "
        f"{settings.max_new_tokens} tokens; skipped {counts['skipped'] or 0}, not reached {counts['not_reached']}"
        f"{outcome(counts)}; {counts['completion_tokens']} tokens in {data.folder}"
    )


def write_features(cfg: DictConfig) -> None:
    """Store the target's states over the answers of the data choice: all of them, or those that a training is about to read.

    Raises:
        ValueError: what :func:`draftlab.data.produce.check_stage` and :func:`draftlab.data.produce.store_features` refuse.
    """
    from draftlab.training.build import describe_data

    describe_data(cfg.data)  # refuses in less time than Lightning takes to import

    from draftlab.data.produce import check_stage, store_features
    from draftlab.target import load_target
    from draftlab.training.run import load_data, pick_device

    data, trainer = hydra.utils.instantiate(cfg.data), hydra.utils.instantiate(cfg.predict)
    check_stage(cfg.stage, data, trainer.world_size)
    spec, device = hydra.utils.instantiate(cfg.target), pick_device(cfg.predict.accelerator)
    load_data(data, spec)
    store_features(data, load_target(spec, device), trainer)


def response_settings(cfg: DictConfig, spec: TargetSpec, max_length: int) -> ResponseSettings:
    """Settings of the run; what the config leaves open is the target's recommended sampling and half of ``max_length``.

    Raises:
        ValueError: values out of range, or answers that leave no position for a prompt.
    """
    from draftlab.data.responses import ResponseSettings

    given = {name: value for name, value in cfg.sampling.items() if value is not None}
    options = {name: value for name, value in cfg.responses.items() if value is not None}
    law = replace(spec.sampling, **given)
    return ResponseSettings(**({"max_new_tokens": max_length // 2} | options), sampling=law).within(spec)


if __name__ == "__main__":
    main()
