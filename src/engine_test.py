"""Serve trained drafters with llama.cpp on this machine and hold it to its word: what it writes, accepts and gains.

    make engine-test RUN=outputs/demo                                     installs what is needed first
    python src/engine_test.py runs=[outputs/demo] weights=[f32,wheel]     the target in float32, and as its 4-bit file
    python src/engine_test.py runs=[outputs/demo] draft_tokens=[1,2,3,7]  what length of a draft pays here
    python src/engine_test.py runs=[outputs/dspark,outputs/dflash] prompts.limit=20

Each cell (run × weights × drafted tokens) is exported, converted and served with and without the drafter; greedy answers must be
equal but for ties, and the engine must accept what our own loop accepts, within 5 %. Speeds are reported whatever they are.
Results lie in engines/ of the run, and a finished cell is not measured again; the exit code is 1 if one fails.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig, OmegaConf

from draftlab.cli import entry

if TYPE_CHECKING:  # slow to import, so whoever needs it does it
    from draftlab.engines.cell import Cell


def read_prompts(cfg: DictConfig, spec) -> dict[str, list[list[int]]]:
    """Token ids of the prompts that ``cfg`` names, by domain, as ``spec``'s target reads them."""
    from draftlab.data.chat import Chat
    from draftlab.decode.suites import find_benchmarks
    from draftlab.target import load_tokenizer

    chosen = cfg.prompts
    benchmarks = find_benchmarks(chosen.prompts_dir, chosen.benchmarks, chosen.domains, chosen.limit, chosen.seed)
    thinking = spec.thinking if chosen.thinking is None else chosen.thinking
    chat = Chat(load_tokenizer(spec), thinking, spec.eos_token_ids)
    found: dict[str, list[list[int]]] = {}
    for benchmark in benchmarks:
        rendered = [chat.prompt_ids(list(prompt.messages), tools=prompt.tools) for prompt in benchmark.prompts]
        found.setdefault(benchmark.domain, []).extend(rendered)
    return found


def measure(cell: Cell, prompts: dict[str, list[list[int]]]) -> dict:
    """The cell's result: the one that lies in its run if it is of the same things, else measured and kept."""
    from draftlab.data.files import digest, read_object, write_json
    from draftlab.engines.table import FOLDER

    path = cell.run / FOLDER / f"{cell.name}.json"
    settings = cell.settings
    key = [prompts, cell.trained.identity, cell.name, settings.max_new_tokens, settings.num_threads]
    key = digest([*key, settings.server_arguments])
    if path.is_file() and (found := read_object(path)).get("key") == key:
        print(f"{path} holds this measurement already")
        return found
    result = cell.measure(prompts) | {"key": key}
    write_json(path, result)
    return result


@hydra.main(config_path="../conf", config_name="engine_test", version_base="1.3")
@entry
def main(cfg: DictConfig) -> None:
    """Everything that can be refused is refused before the first server starts."""
    if OmegaConf.is_missing(cfg, "runs") or not cfg.runs:
        raise ValueError("runs: name folders of trained drafters, as in runs=[outputs/demo] (make demo trains it)")

    from draftlab.data.files import write_atomically
    from draftlab.engines.cell import Cell, CellSettings
    from draftlab.engines.llama import find_server
    from draftlab.engines.table import FOLDER, faults, page, read_results
    from draftlab.export.gguf import find_converter

    settings = CellSettings(
        find_server(cfg.server),
        find_converter(cfg.converter),
        cfg.max_new_tokens,
        cfg.threads,
        cfg.checkpoint,
        cfg.device,
        tuple(map(str, cfg.server_arguments)),
        cfg.draft_weights,
    )
    runs = [Path(run) for run in cfg.runs]
    lengths = cfg.draft_tokens
    cells = [Cell(run, weights, settings, length) for run in runs for weights in cfg.weights for length in lengths]
    failed = []
    for cell in cells:
        result = measure(cell, read_prompts(cfg, cell.spec))
        failed += [f"{cell.run}, {cell.name}: {fault}" for fault in faults(result)]
    table = Path(cfg.table) if cfg.table else runs[0] / FOLDER / "README.md"
    write_atomically(table, page(read_results(runs)))
    print(f"\n{page(read_results(runs))}\ntable: {table}")
    if failed:
        print("failed:", *failed, sep="\n  ", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
