"""The page says what is missing for what, and fails only for what the quick start needs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from rich.console import Console

from draftlab.__main__ import main
from draftlab.doctor import page
from draftlab.doctor.finding import Finding
from draftlab.doctor.page import examine, show

FINE = Finding("rich", "13.9", ">=13.7")
EXTRA = Finding("openai", "not installed", ">=3.0", "engine=openai", "pip install -e '.[serve]'")
BASE = Finding("torch", "2.1", ">=2.6", "everything", "pip install -e .", needed=True)
SECRET = "0123456789abcdef0123456789abcdef01234567"


def said(*findings):
    console = Console(width=70, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    code = show({"packages": findings, "nothing": []}, console)
    return code, console.export_text()


def test_all_is_well():
    code, text = said(FINE)
    assert code == 0 and "missing\n" not in text and "Nothing that the quick start" in text and "nothing" not in text


def test_an_extra_is_told_with_what_to_do_and_does_not_fail():
    code, text = said(FINE, EXTRA, Finding("httpx", "not installed", "", EXTRA.lacks, EXTRA.remedy))
    assert code == 0 and text.count("engine=openai") == 1 and "openai, httpx" in text
    assert "pip install -e '.[serve]'" in text  # brackets are no markup


def test_what_the_quick_start_needs_fails_and_stands_first():
    code, text = said(EXTRA, BASE)
    assert (
        code == 1 and "torch *" in text and text.index("torch *") < text.index("engine=openai") and "asterisk" in text
    )


def test_long_places_are_wrapped_and_not_cut():
    assert "…" not in said(Finding("a", "b" * 50, "/c" * 60))[1]


def test_a_broken_environment_is_not_looked_into_further(monkeypatch):
    monkeypatch.setattr(page, "packages", lambda: [BASE])
    monkeypatch.setattr(page, "devices", lambda: pytest.fail("PyTorch would be imported"))
    assert examine() == {"packages": [BASE]}


def test_without_rich_the_command_still_says_what_to_do(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "draftlab.doctor.page")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main(["doctor"]) == 1
    assert "rich.console is missing" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["nurse"]])
def test_an_unknown_command_names_the_known_ones(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2 and "doctor" in capsys.readouterr().err


def test_the_command_looks_at_this_machine_and_shows_no_secret(tmp_path):
    places = {"DRAFTLAB_CACHE": str(tmp_path / "own"), "HF_HOME": str(tmp_path / "hub"), "COLUMNS": "200"}
    environment = {**os.environ, **places, "HF_TOKEN": SECRET, "WANDB_API_KEY": SECRET}
    command = [sys.executable, "-m", "draftlab", "doctor"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    titles = [line.strip() for line in done.stdout.splitlines()]
    assert {"packages", "machine", "caches", "targets", "logins", "tools"} <= set(titles) and not done.stderr
    assert (
        done.returncode == (" *" in done.stdout) and SECRET not in done.stdout and done.stdout.count("logged in") >= 2
    )
    assert not list(tmp_path.iterdir())
