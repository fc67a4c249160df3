"""Run a W&B sweep file here, without an account: every cell of a grid, or so many draws of a random sweep.

    python src/sweep.py sweeps/gamma.yaml
    python src/sweep.py sweeps/gamma.yaml --dry-run                                  check, print the commands, start nothing
    python src/sweep.py sweeps/gamma.yaml --workers 2 trainer.settings.max_steps=200 --folder outputs/sweeps/short
    python src/sweep.py my_random.yaml --count 20 --seed 1

The same file works with `wandb sweep sweeps/gamma.yaml` and `wandb agent`. Words with an equal sign are Hydra overrides for
every cell; they replace the file's own of the same key. Run folders, logs and sweep.json lie in outputs/sweeps/<file>.
The same command again goes on: finished cells stay, the others are started, from their checkpoints. Exit code 1 if a cell
failed, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from draftlab.cli import entry
from draftlab.sweeps import make_cells, make_plan, print_plan, print_table, read_sweep, run_plan
from draftlab.sweeps.state import FAILED


class Parser(argparse.ArgumentParser):
    """Reports a mistake as the other scripts do."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see python src/sweep.py --help")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options of a command line.

    Raises:
        ValueError: an unknown option, a value of the wrong type, fewer than one worker, or no file.
    """
    parser = Parser(prog="sweep.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="sweep file in W&B's format, as sweeps/gamma.yaml")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="Hydra overrides for every cell")
    parser.add_argument("--workers", type=int, default=1, help="cells side by side (default 1)")
    parser.add_argument("--gpus", default="", help="device numbers, as 0,1,2: each worker gets one of them")
    parser.add_argument("--count", type=int, help="only the first so many cells; a random sweep needs it")
    parser.add_argument("--seed", type=int, default=0, help="of the draws of a random sweep (default 0)")
    parser.add_argument("--folder", type=Path, help="where run folders go (default outputs/sweeps/<file>)")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the commands, start nothing")
    options = parser.parse_intermixed_args(words)
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, got {options.workers}")
    return options


@entry
def main() -> None:
    """Read, check, run, report."""
    options = parse()
    sweep = read_sweep(options.file)
    cells = make_cells(sweep, options.count, options.seed)
    plan = make_plan(sweep, cells, options.folder or Path("outputs/sweeps") / sweep.name, options.overrides)
    for note in sweep.notes:
        print(note)
    if options.dry_run:
        print_plan(plan)
        return
    states = run_plan(plan, options.workers, [gpu for gpu in options.gpus.split(",") if gpu])
    print_table(plan, states)
    if any(state.state == FAILED for state in states):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
