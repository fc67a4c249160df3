"""A sweep file in W&B's format, read and checked before anything runs.

    program: src/train.py
    method: grid
    metric: {name: val/accepted_length, goal: maximize}
    parameters:
      block.block_size: {values: [4, 8]}
    command: ["${env}", "${interpreter}", "${program}", evaluate_after=true, "${args_no_hyphens}"]

What is accepted here is valid for ``wandb sweep``; methods ``grid`` and ``random`` are run here. The module knows nothing of
what the program does with its arguments.

    sweep = read_sweep("sweeps/gamma.yaml")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from draftlab.data.files import resolve_path
from draftlab.sweeps.distributions import Parameter, read_parameter

ARGUMENTS = "${args_no_hyphens}"
PROGRAM = "${program}"
MACROS = ("${env}", "${interpreter}", PROGRAM, ARGUMENTS)
TEXTS = ("name", "description", "program", "project", "entity")
KEYS = (*TEXTS, "method", "metric", "parameters", "command", "early_terminate", "run_cap")
METHODS = ("grid", "random")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
GOALS = ("maximize", "minimize")


@dataclass(frozen=True)
class Metric:
    """What a sweep compares: the name under which a run logs it, and whether more is better."""

    name: str
    maximize: bool = False


@dataclass(frozen=True)
class Sweep:
    """A checked sweep file.

    Attributes:
        path: of the file. program: script as it is started from the current folder. command: words, macros not expanded.
        parameters: in the file's order. run_cap: cells of a random sweep, unless told otherwise.
        notes: what W&B would do and the runner here does not.
    """

    path: Path
    program: str
    method: str
    command: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    metric: Metric | None = None
    run_cap: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Stem of the file: how its folder is called."""
        return self.path.stem


def read_sweep(path: str | Path) -> Sweep:
    """Read and check a sweep file; one that is not found from here is looked for in the project's folder.

    Raises:
        ValueError: no such file, YAML that cannot be parsed (with the line), or contents that W&B or the runner here refuses.
    """
    found = find_file(path)
    if found is None:
        own = sorted(str(file.relative_to(file.parents[1])) for file in resolve_path("project:sweeps").glob("*.yaml"))
        raise ValueError(f"sweep file {path}: no such file; the project's own are {', '.join(own)}")
    try:
        return _checked(found, _parse(found))
    except ValueError as error:
        raise ValueError(f"sweep file {path}: {error}") from None
    except RecursionError:
        raise ValueError(f"sweep file {path}: brackets nested too deeply, or a list that holds itself") from None


def find_file(path: str | Path) -> Path | None:
    """``path`` from the current folder, else from the project's; None if neither has it."""
    here = Path(path).expanduser()
    if here.is_file() or here.is_absolute():
        return here if here.is_file() else None
    of_project = resolve_path(f"project:{path}")
    return of_project if of_project.is_file() else None


class _Loader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys and says nothing; a sweep would silently lose values."""

    def construct_mapping(self, node, deep=False):
        seen = []
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands twice", key.start_mark)
            seen.append(key.value)
        return super().construct_mapping(node, deep)


def _parse(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}not valid YAML: {error.problem}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise ValueError("expected keys such as method, parameters and command, got nothing of the kind")
    return content


def _checked(path: Path, content: dict[str, Any]) -> Sweep:
    unknown = [str(key) for key in content if key not in KEYS]
    if unknown:
        raise ValueError(f"unknown key {', '.join(unknown)}; a sweep file has {', '.join(KEYS)}")
    for key in TEXTS:
        if not isinstance(content.get(key, ""), str):
            raise ValueError(f"{key} must be a text, got {content[key]!r}")
    method = _method(content.get("method"))
    run_cap = content.get("run_cap")
    if run_cap is not None and (not isinstance(run_cap, int) or isinstance(run_cap, bool) or run_cap < 1):
        raise ValueError(f"run_cap must be a whole number above 0, got {run_cap!r}")
    notes = ["early_terminate is W&B's; here every run goes to its end"] if "early_terminate" in content else []
    return Sweep(
        path=path,
        program=_program(content.get("program")),
        method=method,
        command=_command(content.get("command")),
        parameters=_parameters(content.get("parameters"), method),
        metric=_metric(content.get("metric")),
        run_cap=run_cap,
        notes=tuple(notes),
    )


def _method(method: Any) -> str:
    if method == "bayes":
        raise ValueError(
            "method bayes needs W&B's server: start it with `wandb sweep FILE` and `wandb agent`, or use grid or random here"
        )
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return method


def _program(program: str | None) -> str:
    if not program:
        raise ValueError("program is missing: name the script to run, as in program: src/train.py")
    found = find_file(program)
    if found is None:
        raise ValueError(f"program {program}: no such file, neither from {Path.cwd()} nor from the project's folder")
    return str(found)


def _command(command: Any) -> tuple[str, ...]:
    usual = '["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"]'
    if not isinstance(command, list) or not command:
        raise ValueError(
            f"command must be a list of words that hands the values on as key=value, as Hydra reads them: {usual}; "
            "without it W&B writes --key=value"
        )
    words = tuple(str(word) for word in command)
    for needed in (PROGRAM, ARGUMENTS):
        if words.count(needed) != 1:
            raise ValueError(
                f"command must hold {needed} once, got {words.count(needed)} of it; a whole one is {usual}"
            )
    for word in words:
        if word.startswith("${") and word.endswith("}") and word not in MACROS:
            raise ValueError(f"command: unknown macro {word}; those that are run here are {', '.join(MACROS)}")
    if words.index(ARGUMENTS) < words.index(PROGRAM):
        raise ValueError(f"command must name {ARGUMENTS} after {PROGRAM}")
    return words


def _parameters(parameters: Any, method: str) -> tuple[Parameter, ...]:
    if not isinstance(parameters, Mapping) or not parameters:
        raise ValueError("parameters must name at least one parameter, as in block.block_size: {values: [4, 8]}")
    checked = []
    for name, given in parameters.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"parameter {name!r}: W&B's names begin with a letter and hold letters, digits, _ . and -")
        parameter = read_parameter(f"{name}", given)
        if method == "grid" and parameter.choices() is None:
            raise ValueError(
                f"{name}: a grid cannot list the values of {parameter.distribution}; give values, or use method: random"
            )
        checked.append(parameter)
    return tuple(checked)


def _metric(metric: Any) -> Metric | None:
    if metric is None:
        return None
    if not isinstance(metric, Mapping) or not isinstance(metric.get("name"), str):
        raise ValueError(f"metric must have a name, as in metric: {{name: val/accepted_length}}, got {metric!r}")
    goal = metric.get("goal", "minimize")
    if goal not in GOALS:
        raise ValueError(f"metric.goal must be one of {', '.join(GOALS)}, got {goal!r}")
    unknown = [str(key) for key in metric if key not in ("name", "goal", "target", "impute")]
    if unknown:
        raise ValueError(f"metric has no setting {', '.join(unknown)}; it takes name, goal, target and impute")
    return Metric(metric["name"], goal == "maximize")
