"""Fixtures shared by every test: a tiny frozen target, its tokenizer and a folder that holds both."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Before torch is imported: programs that tests start compute with one thread, and another number rounds differently.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for ``import tiny`` and ``import reference``

import tiny


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
