"""The GPU table: one training step of a drafter of the paper's size on random weights, by attention, compilation and loss.

    bash benchmarks/gpu.sh                                     8 minutes at most, on one GPU
    python benchmarks/gpu.py device=cpu size=tiny              the same rows, small, to see that they run

Rows: bf16 against float32, FlexAttention against masked SDPA, torch.compile, the loss in chunks (lean) against all logits at once
(plain). Each is a process of its own with a share of what is left of ``minutes``; one that fails shows its error, and the rest go
on. Tokens are those of the sequences, so tokens/s compare across targets' sizes. The last line is JSON, by row.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext

import torch
from common import arguments, random_batch, training_module
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from draftlab.cli import entry
from draftlab.training.acceleration import accelerate

DEFAULTS = {
    "device": "cuda",
    "size": "paper",  # paper: 4B-sized, 2 sequences of 4,096 tokens and 512 anchors; tiny: for a look
    "rows": [],  # names of ROWS; empty: all
    "steps": 10,  # of each row at most, after WARM_UP that are not counted
    "minutes": 7.5,  # all rows together
    "child": "",  # the row to time in this very process
    "seconds": 60.0,  # of that row
}
SIZES = {  # overrides of conf/train, sequences, tokens of each
    "paper": (["target=qwen3_4b"], 2, 4096),
    "tiny": (
        [
            "target=smollm2_135m",
            "drafter.num_layers=1",
            "head.rank=4",
            "drafter.intermediate_size=64",
            "block.num_anchors=4",
        ],
        2,
        48,
    ),
}
ROWS = {  # name -> precision, attention, compiled, blocks a chunk of the loss (None: all at once, auto: as memory allows)
    "bf16-sdpa-lean": ("bf16", "sdpa", False, "auto"),
    "bf16-flex-lean": ("bf16", "flex", False, "auto"),
    "bf16-flex-compile-lean": ("bf16", "flex", True, "auto"),
    "bf16-sdpa-compile-lean": ("bf16", "sdpa", True, "auto"),
    "bf16-flex-plain": ("bf16", "flex", False, None),
    "float32-sdpa-lean": ("float32", "sdpa", False, "auto"),
}
WARM_UP = 3
LEAST_SECONDS = 5.0  # left for a row that is still begun


def measure(cfg: DictConfig) -> dict[str, float]:
    """Median milliseconds of a step, tokens a second and peak GB of row ``cfg.child``."""
    precision, attention, compiled, chunk = ROWS[cfg.child]
    overrides, sequences, tokens = SIZES[cfg.size]
    generator, device = torch.Generator().manual_seed(0), torch.device(cfg.device)
    words = [*overrides, f"loss.chunk_blocks={'null' if chunk is None else chunk}"]
    module, optimizer = training_module(words, generator)
    accelerate(module.drafter, attention, compiled, cfg.device)
    module.to(device)
    batch = random_batch(module.drafter.spec, (sequences, tokens), tokens // 5, generator).to(cfg.device)
    wait = torch.cuda.synchronize if device.type == "cuda" else nullcontext
    began, spent = time.perf_counter(), []
    for step in range(WARM_UP + cfg.steps):
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            _, _, report = module.compute(batch, 0, step)
        (report.numerator / report.weight).backward()
        torch.nn.utils.clip_grad_norm_(module.drafter.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wait()
        spent.append(time.perf_counter() - start)
        if step >= WARM_UP and time.perf_counter() - began + spent[-1] > cfg.seconds:
            break
    seconds = statistics.median(spent[WARM_UP:])
    peak = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None
    return {
        "ms_per_step": 1e3 * seconds,
        "tokens_per_second": sequences * tokens / seconds,
        "peak_gb": peak,
        "first_step_seconds": spent[0],
    }


def row(name: str, seconds: float) -> dict[str, float | str]:
    """Figures of a row in a process of its own, or ``error``."""
    command = [sys.executable, __file__, *sys.argv[1:], f"child={name}", f"seconds={0.6 * seconds}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {seconds:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def run(names: list[str], minutes: float) -> dict[str, dict[str, float | str]]:
    """All rows; what a row leaves of its share goes to those after it."""
    end, figures = time.monotonic() + 60 * minutes, {}
    for index, name in enumerate(names):
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            figures[name] = {"error": f"no time left of minutes={minutes:g}"}
            continue
        figures[name] = row(name, left if index + 1 == len(names) else min(left, 2 * left / (len(names) - index)))
        print(f"{name}: {figures[name]}", flush=True)
    return figures


def show(figures: dict[str, dict[str, float | str]], title: str) -> None:
    """Print the table."""
    table = Table(title=title)
    for column in ("row", "ms/step", "tokens/s", "peak GB", "first step s"):
        table.add_column(column, justify="left" if column == "row" else "right")
    for name, values in figures.items():
        if "error" in values:
            table.add_row(name, values["error"])
            continue
        peak = "" if values["peak_gb"] is None else f"{values['peak_gb']:.1f}"
        speed = f"{values['ms_per_step']:,.0f}", f"{values['tokens_per_second']:,.0f}"
        table.add_row(name, *speed, peak, f"{values['first_step_seconds']:.1f}")
    Console(width=130).print(table)


@entry
def main() -> None:
    """Time one row, or all of them."""
    cfg = arguments(DEFAULTS)
    if torch.device(cfg.device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"PyTorch {torch.__version__} sees no GPU; device=cpu size=tiny shows that the rows run")
    for name, known in (
        (cfg.size, SIZES),
        *((name, ROWS) for name in (*cfg.rows, *([cfg.child] if cfg.child else []))),
    ):
        if name not in known:
            raise ValueError(f"there is no {name!r}; choose of {', '.join(map(repr, known))}")
    if cfg.child:
        print(json.dumps(measure(cfg)))
        return
    figures = run(list(cfg.rows) or list(ROWS), cfg.minutes)
    device = torch.cuda.get_device_name() if torch.device(cfg.device).type == "cuda" else cfg.device
    show(figures, f"training step, size={cfg.size}, {device}, PyTorch {torch.__version__}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
