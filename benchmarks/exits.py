"""What stopping early saves in drafting and costs in accepted length, swept over thresholds of a trained drafter with exits.

    python benchmarks/exits.py run=outputs/exits
    python benchmarks/exits.py run=outputs/exits survival=[0.1,0.3] accepted=[] prompts=12 out=outputs/exits/exits

Every policy decodes the same held-out prompts with the same seed, group by group in turns, so that a machine that changes its
speed changes all. Seconds are those of drafting alone, of which a round at batch size 1 is one request's. It writes
rounds.csv, exits.csv and exits.png into ``out`` and prints the table; the last line is JSON: for each policy the share of layer
passes and of seconds that it saves, and the accepted length that it loses.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import torch
from common import arguments, heldout_prompts
from rich.console import Console
from rich.table import Table

from draftlab.cli import entry
from draftlab.data.files import write_atomically
from draftlab.data.progress import Progress
from draftlab.decode.exits import ExitPolicy
from draftlab.decode.loop import Decoder, DecodeSettings
from draftlab.decode.trained import open_drafter
from draftlab.report.exits import WHOLE, saving_figure, saving_table
from draftlab.report.style import save
from draftlab.sampling import Sampling

DEFAULTS = {
    "run": "outputs/exits",
    "checkpoint": "best",  # best, last, or the path of a .ckpt file
    "out": None,  # null: exits/ in the run folder
    "survival": [0.1, 0.2, 0.3, 0.4, 0.6, 1.0],  # thresholds of exit.survival
    "accepted": [0.2, 0.4],  # thresholds of exit.accepted
    "memory": 0.8,
    "rest": 4,
    "prompts": 24,
    "group": 4,  # prompts that a policy decodes before it is the next one's turn
    "batch_size": 1,
    "max_new_tokens": 48,
    "temperature": 1.0,
    "seed": 0,
    "device": "cpu",
}


def policies(cfg) -> dict[str, ExitPolicy | None]:
    """The policies by name; drafting to the end is the first. Depths are counted for it, too."""
    stopping = {f"c < {value:g}": ExitPolicy(value, None, cfg.memory, cfg.rest) for value in cfg.survival}
    resting = {f"m < {value:g}": ExitPolicy(None, value, cfg.memory, cfg.rest) for value in cfg.accepted}
    if not stopping and not resting:
        raise ValueError("survival and accepted are both empty; give at least one threshold, as in survival=[0.3]")
    return {WHOLE: None} | stopping | resting


def decode(target, drafter, chosen: dict, prompts: list[list[int]], cfg) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rounds of every policy on every prompt, and seconds of drafting by group; one short warm-up a policy is not counted."""
    sampling, rounds, seconds = Sampling(cfg.temperature), [], []
    groups = [range(start, min(start + cfg.group, len(prompts))) for start in range(0, len(prompts), cfg.group)]
    for policy in chosen.values():
        Decoder(target, drafter, DecodeSettings(4, sampling, target.eos_token_ids, exit=policy)).run(prompts[:1])
    with Progress("policies × prompts", len(prompts) * len(chosen)) as progress:
        for group in groups:
            for name, policy in chosen.items():
                settings = DecodeSettings(
                    cfg.max_new_tokens, sampling, target.eos_token_ids, cfg.batch_size, exit=policy
                )
                decoder = Decoder(target, drafter, settings)
                generator = torch.Generator(target.device).manual_seed(cfg.seed + group[0])
                answers = decoder.run([prompts[index] for index in group], generator)
                whole = len(drafter.layers)
                rounds += [
                    (name, index, whole if each.depth is None else each.depth, each.accepted, each.committed)
                    for index, answer in zip(group, answers, strict=True)
                    for each in answer.rounds
                ]
                seconds.append((name, decoder.clock.seconds["draft"], decoder.clock.times["draft"]))
                progress.advance(len(group), sum(len(answer.tokens) for answer in answers))
    columns = ["policy", "prompt", "depth", "accepted", "committed"]
    return pd.DataFrame(rounds, columns=columns), pd.DataFrame(seconds, columns=["policy", "draft", "passes"])


def show(table: pd.DataFrame, title: str) -> None:
    """Print the table."""
    grid = Table(title=title)
    for heading in (
        "policy",
        "layers a round",
        "sat out",
        "draft ms",
        "layers saved",
        "time saved",
        "accepted length",
        "lost",
    ):
        grid.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in table.itertuples():
        grid.add_row(
            row.policy,
            f"{row.layers_a_round:.2f}",
            f"{row.sat_out:.0%}",
            f"{row.draft_ms:.1f}",
            f"{row.layers_saved:.0%}",
            f"{row.time_saved:.0%}",
            f"{row.accepted_length:.3f} [{row.accepted_length_low:.2f}, {row.accepted_length_high:.2f}]",
            f"{row.lost:.3f} [{row.lost_low:.2f}, {row.lost_high:.2f}]",
        )
    Console(width=132).print(grid)


@entry
def main() -> None:
    """Read key=value arguments, decode, write, print."""
    cfg = arguments(DEFAULTS)
    chosen = policies(cfg)
    trained = open_drafter(cfg.run, cfg.checkpoint)
    for policy in filter(None, chosen.values()):
        policy.check(trained.drafter)
    out = Path(cfg.out or Path(cfg.run) / "exits")
    target = trained.load_target(cfg.device)
    drafter = trained.drafter
    rounds, seconds = decode(target, drafter, chosen, heldout_prompts(target, cfg.prompts, cfg.seed), cfg)
    table = saving_table(rounds, seconds, len(drafter.layers))
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "rounds.csv", rounds.to_csv(index=False))
    write_atomically(out / "exits.csv", table.to_csv(index=False))
    save(saving_figure(table), out / "exits.png")
    threads = torch.get_num_threads()
    show(
        table,
        f"{drafter.spec.name}, T={cfg.temperature:g}, {cfg.prompts} prompts, batch {cfg.batch_size}, {threads} threads",
    )
    figures = table.set_index("policy")[["layers_saved", "time_saved", "lost"]].round(4)
    print(json.dumps({name: row.to_dict() for name, row in figures.iterrows()}))


if __name__ == "__main__":
    main()
