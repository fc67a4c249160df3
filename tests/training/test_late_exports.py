"""What brings Lightning comes late, under the same names, and a data choice is described without it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from draftlab import training
from draftlab.data.datamodule import DraftDataModule
from draftlab.data.description import DraftData
from draftlab.training.build import describe_data

DATA = {"_target_": "draftlab.data.datamodule.DraftDataModule", "path": "x", "batch_size": 3}


def test_every_export_is_there_and_of_its_own_file():
    for name in training.__all__:
        assert getattr(training, name).__name__ == name
        assert getattr(training, name).__module__.startswith("draftlab.training.")
    with pytest.raises(AttributeError, match=r"'draftlab\.training' has no attribute 'Nothing'"):
        _ = training.Nothing


def test_a_data_choice_is_described_as_the_datamodule_would_have_it():
    described, module = describe_data(OmegaConf.create(DATA)), DraftDataModule("x", batch_size=3)
    assert type(described) is DraftData and isinstance(module, DraftData)
    for name in ("folder", "batch_size", "cache", "stream", "expected", "features"):
        assert getattr(described, name) == getattr(module, name), name
    with pytest.raises(Exception, match=r"data\.batch_size must be at least 1, got 0"):
        describe_data(OmegaConf.create({**DATA, "batch_size": 0}))
    assert describe_data(OmegaConf.create({"_target_": "builtins.dict", "path": "x"})) == {"path": "x"}


def test_describing_imports_no_lightning():
    code = (
        "import sys; from omegaconf import OmegaConf; from draftlab.training.build import describe_data; "
        f"describe_data(OmegaConf.create({DATA})); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"lightning", "transformers", "webdataset"} & set(done.stdout.split())
