"""Every command in README.md's bash blocks is executed here, and what the README points to exists.

A command runs as it stands, with the overrides of its example: a tiny target instead of the default one, few steps, few
prompts. Those that install, or need the real target, are slow and run with small overrides too. A command without an
example fails.
"""

import os
import re
import shutil
import subprocess

import pytest

from commands import ROOT, Example, commands, execute
from readme_examples import EXAMPLES

README = (ROOT / "README.md").read_text(encoding="utf-8")


def executable():
    for command in dict.fromkeys(commands(README)):
        example = EXAMPLES.get(command, Example())
        yield pytest.param(command, marks=[pytest.mark.slow] if example.slow else [], id=command)


@pytest.mark.parametrize("command", executable())
def test_a_command_of_the_readme_does_what_it_says(command, workshop, monkeypatch, capfd):
    assert command in EXAMPLES, f"README.md has a new command: add an example for it, {command!r}"
    execute(command, EXAMPLES[command], workshop, monkeypatch, capfd)


def test_no_example_is_left_of_a_command_that_is_gone():
    assert set(EXAMPLES) == set(commands(README))


@pytest.mark.parametrize("target", ["demo", "test", "test-slow", "test-all", "lint"])
def test_make_sets_everything_up_before_it_runs(target, tmp_path):
    """On a fresh clone the environment is made and the package installed, then the command runs; no step is skipped."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    steps = subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert steps.index("-m venv") < steps.index("pip install -e ") < steps.index("touch")
    last = {"demo": "src/train.py experiment=demo", "lint": "ruff check"}.get(target, "-m pytest")
    assert steps.index("touch") < steps.index(last)


def test_make_does_not_install_twice(tmp_path):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    for stamp in (".installed", ".installed-dev"):
        (tmp_path / ".venv" / stamp).touch()
    for target in ("demo", "test"):
        steps = subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert "pip" not in steps


def test_make_clean_keeps_outputs(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("outputs/demo", ".venv/bin", "src/draftlab/__pycache__", "tests", "benchmarks", ".pytest_cache"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Makefile", "benchmarks", "outputs", "src", "tests"]
    assert list((tmp_path / "src" / "draftlab").iterdir()) == []


def test_the_ci_script_runs_the_readmes_test_command_and_the_slow_tests():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "set -euo pipefail" in script and script.index("make test\n") < script.index("make test-slow")


def test_every_place_on_the_map_exists():
    block = README.split("## The map")[1].split("```")[1]
    names = re.findall(r"^(?: *)([\w./]+)(?= )", block, flags=re.M)
    known = {path.name for path in ROOT.rglob("*") if not {".venv", ".git"} & set(path.parts)}
    assert len(names) > 20
    for name in names:
        assert name.rstrip("/") in known, name


def test_every_file_that_the_readme_names_exists():
    for name in re.findall(
        r"`((?:conf|src|tests|data|results|benchmarks|report|decode|drafters|heads|target|losses|calibration|scheduling)/[\w./]*)`",
        README,
    ):
        assert (ROOT / name).exists() or (ROOT / "src" / "draftlab" / name).exists(), name


def test_links_inside_the_repository_lead_somewhere():
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
