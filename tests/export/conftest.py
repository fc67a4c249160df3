"""For ``import foreign``, and the two targets that drafters of these tests are for."""

import sys
from pathlib import Path

import pytest

import tiny

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def gemma_folder(tmp_path_factory):
    """A tiny Gemma 4: scaled embeddings, tied ends."""
    return tiny.save_tiny_target(tmp_path_factory.mktemp("gemma"), "gemma4_text")
