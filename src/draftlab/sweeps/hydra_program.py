"""The configuration of a Hydra script, composed as the script would compose it, without starting it.

    @hydra.main(config_path="../conf", config_name="train", version_base="1.3")      read off the source of the script

So a parameter that does not exist is refused by name before the first run, not by every run after a minute. The module
knows nothing of sweeps.

    program = find_hydra_program(Path("src/train.py"))
    program.compose([["drafter.num_layers=3"], ["drafter.num_layers=4"]])
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

NOT_FOR_USERS = "\nConfig search path:"  # from here on Hydra lists where it looked


@dataclass(frozen=True)
class HydraProgram:
    """Where a script's configuration is and what it is called."""

    config_dir: Path
    config_name: str
    version_base: str | None

    def compose(self, runs: list[list[str]]) -> list[DictConfig]:
        """The configuration of each of ``runs``, lists of overrides, with Hydra's own part under ``hydra``.

        Raises:
            ValueError: a run whose overrides do not compose, with Hydra's words and the run's overrides.
        """
        composed = []
        with initialize_config_dir(str(self.config_dir), version_base=self.version_base):
            for overrides in runs:
                try:
                    composed.append(compose(self.config_name, overrides=overrides, return_hydra_config=True))
                except (HydraException, OmegaConfBaseException) as error:
                    words = str(error).split(NOT_FOR_USERS)[0]
                    raise ValueError(f"{words}\n(composed with {' '.join(overrides)})") from None
        return composed


def find_hydra_program(script: Path) -> HydraProgram | None:
    """What the ``hydra.main`` decorator of ``script`` says; None if it has none that names a folder and a file.

    Raises:
        ValueError: the script ends in .py and is not Python.
    """
    if script.suffix != ".py":
        return None
    try:
        tree = ast.parse(script.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"program {script} is not a Python script: {error}") from None
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "hydra.main":
                given = {word.arg: word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)}
                if isinstance(given.get("config_path"), str) and isinstance(given.get("config_name"), str):
                    folder = (script.resolve().parent / given["config_path"]).resolve()
                    return HydraProgram(folder, given["config_name"], given.get("version_base"))
    return None
