"""What brings Lightning comes late, under the same names, and a data choice is described without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from draftlab import training
from draftlab.data.datamodule import DraftDataModule
from draftlab.data.description import DraftData
from draftlab.training.build import build, describe_data

CONF = Path(__file__).parents[2] / "conf"
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


def test_parts_on_the_meta_device_have_the_shapes_of_real_ones():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", ["drafter.num_layers=1", "head=gated", "block=laptop"])
    real, counted = (dict(build(cfg, meta=meta).drafter.named_parameters()) for meta in (False, True))
    assert {name: value.shape for name, value in real.items()} == {name: value.shape for name, value in counted.items()}
    assert all(value.is_meta for value in counted.values()) and not any(value.is_meta for value in real.values())
    assert any(value.std() > 0 for value in real.values())
