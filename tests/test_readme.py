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
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

ANSWERS = "count=12 responses.max_new_tokens=24 responses.batch_size=4"
STEPS = (
    "trainer.settings.max_steps=2 trainer.settings.val_check_interval=1 trainer.settings.log_every_n_steps=1 "
    "data.val_samples=2 data.batch_size=2 data.max_length=512 block.num_anchors=4 logger=csv "
)
SIZE = "drafter.num_layers=1 drafter.draft_vocab_size=null"
DECODE = "limit=1 max_new_tokens=6 speed.prompts=1 speed.max_new_tokens=4"
AFTER = "evaluation.limit=1 evaluation.max_new_tokens=6 evaluation.speed.prompts=0"
TINY = "target=custom target.path={target} target.mask_token_id=3"
TINY_CHAIN = f"{TINY} data=laptop data.path={{answers}} trainer=laptop {STEPS} drafter.draft_vocab_size=null"
TINY_TRAIN = f"{TINY} data=laptop data.path={{answers}} trainer=laptop block=laptop {STEPS} {SIZE}"


@dataclass(frozen=True)
class Example:
    """How a README command is executed: with which overrides, whether it is slow, and what it must leave behind."""

    overrides: str = ""
    slow: bool = False
    apart: bool = False  # in a process of its own, as what starts further processes must be
    leaves: str | None = None  # files, a pattern relative to where the command ran
    count: int = 1  # of them
    prints: str | None = None


RANKS = "trainer.settings.accelerator=cpu trainer.settings.devices=2 trainer.settings.accumulate_grad_batches=1"
TINY_CACHE = f"{TINY} data=laptop data.path={{answers}} data.val_samples=2"

EXAMPLES = {
    "make demo": Example(
        f"trainer.settings.max_steps=20 {AFTER} hydra.run.dir={{folder}}/demo", True, "demo/report.html"
    ),
    "make test": Example("tests/test_sampling.py", slow=True, prints="passed"),
    "python src/train.py target=qwen3_14b drafter=dspark head=markov plan=true": Example(prints="trainable"),
    "python src/train.py target=qwen3_4b plan=true": Example(prints="30,720"),
    "python src/prepare.py stage=responses target=custom target.path=Qwen/Qwen3-0.6B data=laptop data.path=outputs/answers": (
        Example(f"{TINY} {ANSWERS}", leaves="outputs/answers/manifest.json")
    ),
    "python src/train.py target=custom target.path=Qwen/Qwen3-0.6B data=laptop data.path=outputs/answers "
    "trainer=laptop block=laptop run_name=mine": Example(TINY_TRAIN, leaves="outputs/mine/metrics.csv"),
    "python src/evaluate.py run=outputs/mine": Example(f"run=outputs/demo {DECODE}", leaves="outputs/demo/report.html"),
    # The paper's targets need their weights: the same command, on the tiny target.
    "python src/train.py drafter=dspark head=markov target=qwen3_14b": Example(
        f"{TINY_TRAIN} run_name=big", leaves="outputs/big/metrics.csv"
    ),
    "python src/train.py": Example(
        f"{STEPS} hydra.run.dir={{folder}}/default", slow=True, leaves="default/metrics.csv"
    ),
    "python src/train.py head=gated loss.terms.ce.weight=0.5 block.block_size=5 run_name=gated": Example(
        TINY_TRAIN, leaves="outputs/gated/metrics.csv"
    ),
    "python src/train.py --multirun head=markov,gated,rnn,none run_name=heads": Example(
        TINY_TRAIN, slow=True, leaves="outputs/heads/*/metrics.csv", count=4
    ),
    "python src/train.py drafter=eagle3 run_name=eagle3": Example(
        f"{TINY_CHAIN} trainer.warm_start.layers=false", leaves="outputs/eagle3/metrics.csv"
    ),
    "python src/train.py drafter=mtp block.block_size=3 run_name=mtp3": Example(
        TINY_CHAIN, leaves="outputs/mtp3/metrics.csv"
    ),
    "python src/train.py loss=lk run_name=lk": Example(TINY_TRAIN, leaves="outputs/lk/metrics.csv"),
    "python src/train.py experiment=demo_compare": Example(
        f"{TINY_TRAIN} {AFTER}", slow=True, leaves="outputs/demo_compare/report.html"
    ),
    "python src/train.py experiment=compare_smollm2": Example(
        f"{TINY_CHAIN} {AFTER} drafter.num_layers=1 trainer.warm_start.layers=false",
        slow=True,
        leaves="outputs/compare_smollm2/report.html",
    ),
    "python src/train.py experiment=table1 target=qwen3_4b drafter=dspark plan=true": Example(prints="38 TB"),
    "python src/sweep.py sweeps/gamma.yaml --dry-run": Example(prints="block.block_size=16"),
    "python src/sweep.py sweeps/depth.yaml --workers 2": Example(
        f"{TINY} data=laptop data.path={{answers}} {STEPS} drafter.draft_vocab_size=null trainer.warm_start.layers=false "
        f"{AFTER} --count 2",
        slow=True,
        leaves="outputs/sweeps/depth/*/evaluation.json",
        count=2,
    ),
    "python src/prepare.py data=laptop count=1344 responses.batch_size=96 target.dtype=bfloat16 sampling.temperature=0.5 "
    "sampling.top_p=1.0": Example(
        f"{TINY} {ANSWERS} target.dtype=float32 data.path=outputs/laptop_answers",
        leaves="outputs/laptop_answers/manifest.json",
    ),
    "python src/train.py experiment=laptop": Example(
        f"{TINY_TRAIN} {AFTER}", slow=True, leaves="outputs/laptop/report.html"
    ),
    "python src/evaluate.py run=outputs/demo temperatures=[0,0.7,1] top_p=0.95": Example(
        DECODE, leaves="outputs/demo/rounds.parquet"
    ),
    "python src/evaluate.py run=outputs/demo prompts_dir=my_benchmarks limit=100": Example(
        "max_new_tokens=6 speed.prompts=0", leaves="outputs/demo/evaluation.json"
    ),
    "python src/report.py runs=[outputs/demo]": Example(leaves="outputs/demo/figures/accepted_length.png"),
    "python src/report.py runs=[outputs/dspark,outputs/dflash] out=outputs/compare": Example(
        leaves="outputs/compare/report.html"
    ),
    "python src/prepare.py data=hub data.prompts.path=my_prompts.jsonl data.path=outputs/hub_answers "
    "decontaminate.prompts_dir=my_benchmarks": Example(
        f"{TINY} {ANSWERS}", leaves="outputs/hub_answers/manifest.json", prints="1 of 5"
    ),
    "python src/calibrate.py run=outputs/demo": Example(
        "limit=8 skip=1 max_new_tokens=40", leaves="outputs/demo/calibration.json", prints="rounds of the fit"
    ),
    **{
        f"python src/train.py trainer={name} target={target} data=open_perfectblend": Example(
            f"{TINY_TRAIN} trainer={name} {RANKS} run_name={name}",
            slow=True,
            apart=True,
            leaves=f"outputs/{name}/checkpoints/best-*.ckpt",
        )
        for name, target in (("ddp", "qwen3_4b"), ("fsdp", "qwen3_14b"))
    },
    "python src/train.py data.packing=2048 run_name=packed": Example(TINY_TRAIN, leaves="outputs/packed/metrics.csv"),
    "python src/prepare.py stage=features data=demo data.features=cache data.codec=int8": Example(
        f"{TINY_CACHE} predict.accelerator=cpu data.max_length=512", prints="bytes a token with data.codec=int8"
    ),
    "python src/train.py data=demo data.features=cache data.codec=int8 run_name=cached": Example(
        TINY_TRAIN, leaves="outputs/cached/metrics.csv"
    ),
    "python benchmarks/cache.py": Example(
        "target=custom target_path={target} data=laptop data_path={answers} samples=8 rank=24 'codecs=[int8,lowrank]'",
        slow=True,
        prints="ratio_to_bf16",
    ),
    "python benchmarks/decode.py run=outputs/demo": Example("prompts=2 max_new_tokens=4 batch=2", prints="over_batch1"),
    "python benchmarks/products.py": Example(
        "rows=[2] shapes=[[300,256]] megabytes=1 repeats=1", prints="300x256_rows2"
    ),
    "python benchmarks/step.py": Example(
        "batch=1 tokens=90 steps=1 repeats=1 'overrides=[experiment=demo,trainer.num_anchors=2]'",
        slow=True,
        prints="float32_over_bf16",
    ),
    "python benchmarks/scheduler.py": Example("requests=8 gamma=4 repeats=5", prints="ms_8x4"),
    "python benchmarks/round.py": Example("batches=[1] context=8 repeats=1", slow=True, prints="markov_share_batch1"),
}


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
