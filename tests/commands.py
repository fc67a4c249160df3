"""Commands of the README and the docs, as tests run them: found in fenced blocks, small overrides, in this process.

An :class:`Example` says how a command is executed and what it must leave behind; a block that opens with ``bash needs=gpu`` names
what its commands need instead.

    for command in commands(text): execute(command, EXAMPLES[command], workshop, monkeypatch, capfd)
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", flags=re.S | re.M)


@dataclass(frozen=True)
class Example:
    """How a command is executed: with which overrides, whether it is slow, and what it must leave behind."""

    overrides: str = ""
    slow: bool = False
    apart: bool = False  # in a process of its own, as what starts further processes must be
    leaves: str | None = None  # files, a pattern relative to where the command ran
    count: int = 1  # of them
    prints: str | None = None


def blocks(text: str, language: str) -> list[tuple[str, str]]:
    """(what follows the language, content) of every fenced block of ``language``."""
    return [(rest.strip(), body) for name, rest, body in FENCE.findall(text) if name == language]


def lines_of(body: str) -> list[str]:
    """The commands of a block, continued lines joined, without comments."""
    lines = body.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip() and not line.lstrip().startswith("#")]


def commands(text: str) -> list[str]:
    """The commands of the fenced bash blocks that need nothing which a test lacks."""
    return [line for needs, body in blocks(text, "bash") if not needs for line in lines_of(body)]


def with_overrides(command: str, overrides: str) -> list[str]:
    """The command's words; an override takes the place of the word with the same key."""
    words = shlex.split(command)
    for word in shlex.split(overrides):
        key = word.split("=")[0]
        words = [kept for kept in words if "=" not in kept or kept.split("=")[0] != key] + [word]
    return words


def run_script(words: list[str], folder: Path, monkeypatch) -> None:
    """Run ``python script.py …`` in this process, which spares the imports, as if started in ``folder``."""
    script = ROOT / words[1]
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(script.parent))  # as Python does for a script
    monkeypatch.setattr(sys, "argv", [str(script), *words[2:]])
    GlobalHydra.instance().clear()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        assert not end.code, f"{' '.join(words)} ended with {end.code}"
    finally:
        GlobalHydra.instance().clear()


def execute(command: str, example: Example, workshop: dict, monkeypatch, capfd) -> None:
    """Run ``command`` as its example says, and look for what it leaves and prints."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    overrides = example.overrides.format(**workshop)
    folder = workshop["folder"]
    if command.startswith("make "):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        words = [*shlex.split(command), f"ARGS={overrides}"]
        subprocess.run(words, cwd=ROOT, check=True, env=environment, timeout=3600)
    elif example.apart:
        environment = os.environ | {"DRAFTLAB_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        words = with_overrides(command, overrides)
        script = words[1:] if words[1] == "-m" else [str(ROOT / words[1]), *words[2:]]
        subprocess.run([sys.executable, *script], cwd=folder, check=True, env=environment, timeout=1200)
    else:
        if "{target}" in example.overrides:
            monkeypatch.setenv("DRAFTLAB_CACHE", str(folder / "cache"))
        run_script(with_overrides(command, overrides), folder, monkeypatch)
    if example.leaves:
        assert len(list(folder.glob(example.leaves))) == example.count
    if example.prints:
        assert example.prints in capfd.readouterr().out
