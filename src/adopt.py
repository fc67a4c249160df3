"""Adopt a drafter that somebody else trained: DSpark, DFlash or Eagle3 in DeepSpec's, the stand-alone DFlash or the speculators
layout becomes a run folder that evaluate, calibrate, export and train (init_from=) accept.

    python src/adopt.py checkpoint=dspark_qwen3_4b_block7 run=outputs/released target=qwen3_4b
    python src/adopt.py checkpoint=outputs/demo/export/deepspec run=outputs/again target=smollm2_135m

Download it beforehand (hf download organisation/name --local-dir folder). Weights are safetensors only. What the checkpoint
does not say and nobody else does is refused; see conf/adopt.yaml for what may be said.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from draftlab.cli import entry
from draftlab.runs import named_folder

if TYPE_CHECKING:
    from draftlab.export.adopt import Foreign

OWN = ("checkpoint", "run", "block_size", "sample_from_anchor")  # keys of this script, not of a training
SAID_BY_CHECKPOINT = ("drafter", "head", "loss", "block", "experiment")


def training_overrides(foreign: Foreign, given: list[str], run: Path) -> list[str]:
    """What composes a training of this drafter: the user's words, then the checkpoint's.

    Raises:
        ValueError: the user set what the checkpoint says.
    """
    from draftlab.export.facts import overrides

    keys = {word: word.lstrip("+~").split("=")[0] for word in given}
    taken = [word for word, key in keys.items() if key.split(".")[0] in SAID_BY_CHECKPOINT]
    if taken:
        raise ValueError(f"{', '.join(taken)}: the checkpoint says what its drafter, head and block are; leave it out")
    kept = [word for word, key in keys.items() if key not in OWN and not key.startswith("hydra")]
    return [*kept, *overrides(foreign.facts), f"run_name='{run.resolve().name}'"]


@hydra.main(config_path="../conf", config_name="adopt", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Read, compose, fit, write."""
    checkpoint = named_folder(cfg, "checkpoint", "dspark_qwen3_4b_block7", "a folder")
    run, given = named_folder(cfg, "run", "outputs/imported", "a folder"), list(HydraConfig.get().overrides.task)

    from draftlab.export.adopt import check_target, fit, read_foreign, with_head, write_run
    from draftlab.target import load_ends
    from draftlab.training.build import build

    foreign = read_foreign(checkpoint, {name: cfg[name] for name in OWN[2:]})
    training_overrides(foreign, given, run)
    spec = hydra.utils.instantiate(cfg.target)
    check_target(foreign, spec)
    ends = load_ends(spec)
    foreign = with_head(foreign, ends)
    words = training_overrides(foreign, given, run)
    config = hydra.compose("train", overrides=words)
    drafter = build(config).drafter
    fit(foreign, drafter)
    drafter.attach(ends)
    write_run(foreign, drafter, config, words, run)
    facts = foreign.facts
    print(f"run: {run}  ({facts.family}, head {facts.head}, {facts.block_size} drafted tokens, {facts.block_layout})")


if __name__ == "__main__":
    main()
