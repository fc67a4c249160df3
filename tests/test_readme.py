"""Every command in README.md's bash blocks is executed here, and what the README points to exists.

A command runs as it stands, with the overrides of its example: a tiny target instead of the default one, few steps, few
prompts. Those that install, or need the real target, are slow and run with small overrides too. A command without an
example fails.
"""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from readme_examples import ANSWERS, DECODE, EXAMPLES, TINY, TINY_TRAIN, Example

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """The commands of the fenced bash blocks, continued lines joined."""
    blocks = re.findall(r"^```bash\n(.*?)^```", README, flags=re.S | re.M)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip() and not line.lstrip().startswith("#")]


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


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, target_folder):
    """A folder with a tiny target, its answers, and two trained and evaluated runs, all made by the entry scripts."""
    folder = tmp_path_factory.mktemp("workshop")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("DRAFTLAB_CACHE", str(folder / "cache"))
        monkeypatch.setenv("WANDB_MODE", "disabled")
        values = {"target": target_folder, "answers": folder / "answers", "folder": folder}
        prepare = f"python src/prepare.py {TINY} data=laptop data.path={{answers}} {ANSWERS}".format(**values)
        run_script(shlex.split(prepare), folder, monkeypatch)
        train = f"python src/train.py {TINY_TRAIN} run_name=dspark".format(**values)
        run_script(shlex.split(train), folder, monkeypatch)
        run_script(shlex.split(f"python src/evaluate.py run=outputs/dspark {DECODE}"), folder, monkeypatch)
        for copy in ("demo", "dflash"):
            shutil.copytree(folder / "outputs" / "dspark", folder / "outputs" / copy)
        (folder / "my_benchmarks").mkdir()
        (folder / "my_benchmarks" / "gsm8k.jsonl").write_text('{"id": "0", "turns": ["2+2?"]}\n', encoding="utf-8")
        asked = [
            {"messages": [{"role": "user", "content": text}]} for text in ("2+2?", "One?", "Two?", "Three?", "Four?")
        ]
        (folder / "my_prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in asked), encoding="utf-8")
    return values


def executable():
    for command in dict.fromkeys(commands()):
        example = EXAMPLES.get(command, Example())
        yield pytest.param(command, marks=[pytest.mark.slow] if example.slow else [], id=command)


@pytest.mark.parametrize("command", executable())
def test_a_command_of_the_readme_does_what_it_says(command, workshop, monkeypatch, capfd):
    assert command in EXAMPLES, f"README.md has a new command: add an example for it, {command!r}"
    example = EXAMPLES[command]
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
        subprocess.run(
            [sys.executable, str(ROOT / words[1]), *words[2:]], cwd=folder, check=True, env=environment, timeout=1200
        )
    else:
        if "{target}" in example.overrides:
            monkeypatch.setenv("DRAFTLAB_CACHE", str(folder / "cache"))
        run_script(with_overrides(command, overrides), folder, monkeypatch)
    if example.leaves:
        assert len(list(folder.glob(example.leaves))) == example.count
    if example.prints:
        assert example.prints in capfd.readouterr().out


def test_no_example_is_left_of_a_command_that_is_gone():
    assert set(EXAMPLES) == set(commands())


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
