"""A run folder that was not named, is not there or is none is refused by name."""

from __future__ import annotations

import re

import pytest
from omegaconf import OmegaConf

from draftlab.runs import named_folder, read_run_config


@pytest.mark.parametrize("value", ["???", None])
def test_a_folder_that_was_left_out_is_asked_for_with_an_example(value):
    cfg = OmegaConf.create({"run": value})
    with pytest.raises(ValueError, match=r"^run: name the folder of a trained drafter, as in run=outputs/demo$"):
        named_folder(cfg, "run", "outputs/demo")
    with pytest.raises(ValueError, match=r"^run: name a folder, as in run=x$"):
        named_folder(cfg, "run", "x", "a folder")


def test_a_named_folder_need_not_be_there(tmp_path):
    assert named_folder(OmegaConf.create({"run": str(tmp_path / "a")}), "run", "x") == tmp_path / "a"


def test_the_configuration_of_a_run_is_read_and_any_other_folder_refused(tmp_path):
    with pytest.raises(ValueError, match=re.escape(f"found none at {tmp_path / 'a'}; check the name")):
        read_run_config(tmp_path / "a")
    with pytest.raises(ValueError, match=r"has no \.hydra/config\.yaml, so it is not a run of src/train\.py"):
        read_run_config(tmp_path)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("seed: 3\n")
    assert read_run_config(tmp_path).seed == 3


@pytest.mark.parametrize("text", ["a: [1", "a: 1\na: 2", "\x00", "- 1", "%x", "a: ${b"])
def test_a_damaged_configuration_is_refused_by_name_in_one_line(tmp_path, text):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"config\.yaml.*(cannot be read as YAML|expected keys with values)") as caught:
        read_run_config(tmp_path)
    assert "\n" not in str(caught.value)
