"""What a training step takes on this machine: with freed memory kept or handed back, in bfloat16 or float32.

    python benchmarks/precision.py                                the demo's recipe, on random features
    python benchmarks/precision.py 'overrides=[experiment=demo,drafter=dflash]' repeats=20

Each setting is a process of its own, since a C library does not change back; they take turns, and medians over all turns are
given. The last line is JSON: seconds of every setting, and what the straightforward one takes over it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

import torch
from common import arguments, random_batch, training_module

from draftlab.cli import entry

DEFAULTS = {
    "overrides": ["experiment=demo"],
    "batch": 4,
    "tokens": 290,  # of each sequence, the first 80 a prompt
    "steps": 8,  # of a process, after three that are not counted
    "repeats": 3,
    "child": "",  # precision to time in this very process
}
SETTINGS = {  # name -> precision, environment; a variable of malloc's, at its default, leaves the C library as it is
    "kept_bf16": ("bf16", {}),
    "handed_back_bf16": ("bf16", {"MALLOC_PERTURB_": "0"}),
    "kept_float32": ("float32", {}),
    "handed_back_float32": ("float32", {"MALLOC_PERTURB_": "0"}),
}
PROMPT, WARM_UP = 80, 3


def seconds_per_step(cfg) -> float:
    """Median seconds of a step of the composed experiment, optimiser included."""
    generator = torch.Generator().manual_seed(0)
    module, adamw = training_module(cfg.overrides, generator)
    drafter, spec = module.drafter, module.drafter.spec
    batches = [random_batch(spec, (cfg.batch, cfg.tokens), PROMPT, generator) for _ in range(2)]
    spent = []
    for step in range(WARM_UP + cfg.steps):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=cfg.child == "bf16"):
            _, _, report = module.compute(batches[step % 2], 0, step)
        (report.numerator / report.weight).backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent[WARM_UP:])


def child(name: str) -> float:
    """Seconds per step of setting ``name``, in a process of its own."""
    precision, environment = SETTINGS[name]
    command = [sys.executable, __file__, *sys.argv[1:], f"child={precision}"]
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


@entry
def main() -> None:
    """Time one setting, or all of them in turns."""
    cfg = arguments(DEFAULTS)
    if cfg.child:
        print(seconds_per_step(cfg))
        return
    seconds: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for turn in range(cfg.repeats):
        for name, values in seconds.items():
            values.append(child(name))
            print(f"turn {turn + 1} of {cfg.repeats}: {name} {values[-1]:.3f} s a step", flush=True)
    figures = {f"{name}_s": statistics.median(values) for name, values in seconds.items()}
    for precision in ("bf16", "float32"):
        figures[f"handed_back_over_kept_{precision}"] = (
            figures[f"handed_back_{precision}_s"] / figures[f"kept_{precision}_s"]
        )
    figures["float32_over_bf16"] = figures["kept_float32_s"] / figures["kept_bf16_s"]
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
