"""Fixtures shared by every test: a tiny frozen target, its tokenizer and a folder that holds both."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

# Before torch is imported: programs that tests start compute with one thread, and another number rounds differently.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for ``import tiny`` and ``import reference``

import tiny
from commands import run_script
from readme_examples import ANSWERS, DECODE, TINY, TINY_TRAIN


@pytest.fixture(autouse=True)
def _same_random_state_in_every_test():
    """Tests never depend on the order they run in."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def target():
    """A frozen Llama of four layers, 64 tokens, 32 wide; never changed by a test."""
    return tiny.tiny_target()


@pytest.fixture(scope="session")
def tokenizer():
    """A character tokenizer of 128 ids with a ChatML template."""
    return tiny.tiny_tokenizer()


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory) -> Path:
    """A folder with a tiny Llama of 128 tokens and its tokenizer."""
    return tiny.save_tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, target_folder):
    """A folder with a tiny target, its answers, and trained and evaluated runs, all made by the entry scripts."""
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
