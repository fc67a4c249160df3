"""A small feature cache that was written undisturbed."""

import pytest

import cached


@pytest.fixture(scope="module")
def samples():
    return cached.conversations()


@pytest.fixture(scope="module")
def frozen():
    return cached.target()


@pytest.fixture(scope="module")
def whole(frozen, samples, tmp_path_factory):
    """An undisturbed cache."""
    folder = tmp_path_factory.mktemp("whole")
    cached.write(frozen, samples, folder)
    return folder
