"""The stage ``serve`` of src/schedule.py: prompts rendered, cells made and measured, everything refused before weights load.

    steps, requests = serve(trained, run, plans, options)

It knows nothing of configuration files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from draftlab.data.chat import Chat
from draftlab.data.files import digest
from draftlab.decode.settings import DecodeSettings
from draftlab.decode.suites import Benchmark
from draftlab.decode.trained import TrainedDrafter
from draftlab.sampling import Sampling
from draftlab.serving.cells import Cells, Plan
from draftlab.serving.measured import ServeSettings, run_cells
from draftlab.target import load_tokenizer


@dataclass(frozen=True)
class ServeOptions:
    """What is served.

    Args:
        folder: where the experiment lies. concurrency: users of each cell.
        sampling, max_new_tokens: of every answer. ignore_stop: answers are always ``max_new_tokens`` long.
        timing: turns, seconds, warm-up. seed: of the answers. sps: another SPS table than the run's.

    Raises:
        ValueError: concurrencies that are not whole, positive and different.
    """

    folder: Path
    concurrency: tuple[int, ...]
    sampling: Sampling
    max_new_tokens: int
    ignore_stop: bool
    timing: ServeSettings
    seed: int
    sps: str | None = None

    def __post_init__(self) -> None:
        given = self.concurrency if isinstance(self.concurrency, list | tuple) else [self.concurrency]
        whole = all(isinstance(users, int) and not isinstance(users, bool) and users >= 1 for users in given)
        if not given or not whole or len(set(given)) < len(given):
            raise ValueError(
                f"concurrency must be one or more different whole numbers of users, at least 1, got {list(given)}"
            )
        object.__setattr__(self, "concurrency", tuple(given))


def serve(
    trained: TrainedDrafter,
    run: str,
    plans: Sequence[Plan],
    benchmarks: Sequence[Benchmark],
    options: ServeOptions,
    machine: dict[str, Any],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure ``plans`` at every concurrency with the target of ``run``; rows of steps and of requests."""
    spec = trained.drafter.spec
    chat = Chat(load_tokenizer(spec), spec.thinking, spec.eos_token_ids)
    by_domain = [[(b.domain, chat.prompt_ids(list(p.messages), tools=p.tools)) for p in b.prompts] for b in benchmarks]
    prompts = [
        prompts[place] for place in range(max(map(len, by_domain))) for prompts in by_domain if place < len(prompts)
    ]
    decode = DecodeSettings(options.max_new_tokens, options.sampling)
    cells = Cells(trained, run, options.sps, decode, options.seed)
    checked = cells.check(plans)
    longest = max(len(ids) for _, ids in prompts)
    target = trained.load_target(machine["device"])
    if not options.ignore_stop:
        cells.decode = DecodeSettings(options.max_new_tokens, options.sampling, tuple(target.eos_token_ids))
    made = cells.make(checked, target, options.concurrency, longest)
    made[0].engine(0)  # refuses prompts that do not fit before anything is measured
    identity = {"machine": machine, "prompts": digest(prompts), "seed": options.seed}  # cells name their own parts
    return run_cells(made, prompts, options.timing, options.folder, identity)
