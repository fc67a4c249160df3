"""src/prepare.py engine=openai: one command, answers that training reads, refusals in one message."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("openai", reason='the openai client is not installed: pip install "draftlab[serve]"')
sys.path.insert(0, str(Path(__file__).parent))

from failing_server import FailingServer
from hydra import compose, initialize_config_dir

from draftlab.data.answers import read_manifest
from draftlab.data.chat import Chat
from draftlab.data.samples import read_samples

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def prepare():
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "src" / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(prepare, target_folder, folder, *given: str) -> None:
    overrides = [
        "target=custom", f"target.path={target_folder}", "target.name=tiny", "data=laptop", f"data.path={folder}",
        "count=12", "responses.max_new_tokens=6", "sampling.temperature=1.0", "engine=openai",
        "client.rest_seconds=0.02", *given,
    ]  # fmt: skip
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        prepare.main.__wrapped__(compose("prepare", overrides=overrides))


def test_one_command_lets_servers_answer_and_loads_no_weights(
    prepare, target_folder, tokenizer, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("draftlab.target.load_target", lambda *_: pytest.fail("weights were loaded"))
    with FailingServer(tokenizer, answer_tokens=6) as server:
        run(prepare, target_folder, tmp_path, f"servers=[{server.url}]")
    manifest = read_manifest(tmp_path)
    assert manifest["counts"]["answers"] == 12 and manifest["identity"]["engine"] == "openai"
    assert "dtype" not in manifest["identity"]["target"] and "127.0.0.1" not in json.dumps(manifest)
    said = capsys.readouterr().out
    assert "12 answers: " in said and "tokens/s" in said and "failed 0" in said
    samples, counts = read_samples(tmp_path, Chat(tokenizer), 512)
    assert len(samples) == 12 and not counts.skipped


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["servers=[]"], "engine=openai needs servers"),
        (["engine=vllm"], "engine must be one of local, openai"),
        (["engine=local", "servers=[http://x/v1]"], "servers are asked by engine=openai only"),
        (["servers=[http://x/v1]", "client.concurrency=0"], "client.concurrency must be"),
    ],
)
def test_mistakes_end_in_one_message(prepare, target_folder, tmp_path, capsys, given, message):
    with pytest.raises(SystemExit) as exit_code:
        run(prepare, target_folder, tmp_path / "new", *given)
    assert exit_code.value.code == 1 and message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_refused_server_leaves_the_folder_free_for_the_way_around(
    prepare, target_folder, tokenizer, tmp_path, capsys
):
    with FailingServer(tokenizer, model="other", answer_tokens=6) as server:
        with pytest.raises(SystemExit):
            run(prepare, target_folder, tmp_path, f"servers=[{server.url}]")
        assert "give client.model=<that name>" in capsys.readouterr().err
        run(prepare, target_folder, tmp_path, f"servers=[{server.url}]", "client.model=other")
    assert read_manifest(tmp_path)["identity"]["served_as"] == "other"
