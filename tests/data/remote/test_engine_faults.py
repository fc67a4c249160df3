"""Servers that die, come late or are killed with the run, and disks that fill up: nothing finished is lost."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("openai", reason='the openai client is not installed: pip install "draftlab[serve]"')
sys.path.insert(0, str(Path(__file__).parent))

from asking import Latecomer, ids, records, write
from failing_server import FailingServer

from draftlab.data import files
from draftlab.data.answers import read_manifest
from draftlab.data.chat import Chat
from draftlab.data.prompts import builtin_prompts
from draftlab.data.remote import responses as remote


@pytest.fixture
def chat(tokenizer):
    return Chat(tokenizer)


def test_a_server_that_is_not_there_is_left_out_and_joins_when_it_comes(chat, tokenizer, tmp_path, capsys):
    late = Latecomer(tokenizer)
    with FailingServer(tokenizer, late, delay=0.1) as server:
        counts = write(chat, tmp_path, builtin_prompts(40), [late.url, server.url], concurrency=2)
    late.server.__exit__()
    assert counts["answers"] == 40 and len(late.server.bodies) > 3
    assert f"{late.url} is left out for now: unreachable" in capsys.readouterr().out


def test_a_late_server_with_another_model_gets_no_prompt(chat, tokenizer, tmp_path, capsys):
    late = Latecomer(tokenizer, model="x")
    with FailingServer(tokenizer, late, delay=0.1) as server:
        write(chat, tmp_path, builtin_prompts(40), [late.url, server.url], concurrency=2)
    late.server.__exit__()
    assert late.server.bodies == [] and len(server.bodies) == 40
    assert "another_model" in capsys.readouterr().out


def test_when_all_servers_are_dead_the_run_ends_and_keeps_what_is_finished(chat, tokenizer, tmp_path):
    prompts = builtin_prompts(12)
    with FailingServer(tokenizer, lambda number, _: "500" if number >= 5 else None) as server:
        began = time.monotonic()
        with pytest.raises(ValueError, match=r"no server has answered for 0.01 minutes: http://127.*give the same"):
            write(chat, tmp_path, prompts, [server.url], concurrency=1, retries=100)
        assert time.monotonic() - began < 20
    with pytest.raises(ValueError, match="unfinished"):
        read_manifest(tmp_path)
    assert len(records(tmp_path)) == 5
    with FailingServer(tokenizer) as server:
        assert write(chat, tmp_path, prompts, [server.url])["answers"] == 12
        assert len(server.bodies) == 7
    assert [record["id"] for record in records(tmp_path)] == ids(prompts)


def test_a_process_killed_outright_has_every_prompt_once_after_it_goes_on(chat, tokenizer, tmp_path):
    """Case 13, with kill -9 in the middle of the run and a torn line at the end."""
    prompts = builtin_prompts(40)
    with FailingServer(tokenizer) as server:
        write(chat, tmp_path / "whole", prompts, [server.url])
    folder = tmp_path / "cut"
    with FailingServer(tokenizer, delay=0.05) as server:
        if (child := os.fork()) == 0:
            write(chat, folder, prompts, [server.url], concurrency=2)
            os._exit(0)
        end = time.monotonic() + 30
        while time.monotonic() < end and (not (folder / "responses.jsonl").exists() or len(records(folder)) < 6):
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    before = len(records(folder))
    assert 6 <= before < 40
    with (folder / "responses.jsonl").open("ab") as file:
        file.write(b'{"id": "torn", "mess')
    with FailingServer(tokenizer) as server:
        write(chat, folder, prompts, [server.url])
        assert len(server.bodies) == 40 - before, "nothing finished is asked again"
    assert (folder / "responses.jsonl").read_bytes() == (tmp_path / "whole/responses.jsonl").read_bytes()


@pytest.mark.parametrize("written", ["nothing", "half a line"])
def test_a_full_disk_ends_the_run_and_loses_nothing_finished(chat, tokenizer, tmp_path, monkeypatch, written):
    prompts = builtin_prompts(20)
    appended = []

    def filling(path, lines):
        if len(appended) >= 4:
            if written == "half a line":
                with path.open("ab") as file:
                    file.write(json.dumps(lines[0]).encode()[:30])
            appended.append(None)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        appended.append(lines)
        append_lines(path, lines)

    append_lines = remote.append_lines
    with FailingServer(tokenizer, delay=0.01) as server, monkeypatch.context() as patched:
        patched.setattr(remote, "append_lines", filling)
        with pytest.raises(OSError, match="No space left"):
            write(chat, tmp_path, prompts, [server.url], concurrency=2)
    assert appended.count(None) == 1, "nothing is appended after the first failure"
    kept = {record["id"] for lines in appended[:4] for record in lines}
    with FailingServer(tokenizer) as server:
        counts = write(chat, tmp_path, prompts, [server.url])
        assert len(server.bodies) == 20 - len(kept)
    assert counts["answers"] == 20 and [record["id"] for record in records(tmp_path)] == ids(prompts)


def test_a_disk_that_fills_up_while_the_file_is_put_into_order_loses_nothing(chat, tokenizer, tmp_path, monkeypatch):
    prompts = builtin_prompts(12)
    with FailingServer(tokenizer) as server:
        write(chat, tmp_path / "whole", prompts, [server.url])
        lines = (tmp_path / "whole/responses.jsonl").read_bytes().splitlines(keepends=True)
        path = tmp_path / "responses.jsonl"
        path.write_bytes(b"".join(reversed(lines)))
        with monkeypatch.context() as patched:
            patched.setattr(files.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
            with pytest.raises(OSError, match="full"):
                remote.sort_answers(path, prompts)
        assert path.read_bytes() == b"".join(reversed(lines)) and not list(tmp_path.glob(".*sorted"))
        remote.sort_answers(path, prompts)
    assert path.read_bytes() == b"".join(lines)
