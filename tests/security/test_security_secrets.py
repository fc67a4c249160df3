"""Keys and passwords stay where they are: in no log, no manifest, no saved configuration, no checkpoint and nothing for W&B.

A whole little project is made with sentinels in the environment, and every byte that it left is searched for them.
"""

from __future__ import annotations

import base64
import shlex
from pathlib import Path

import pytest
from asking import errors, write
from failing_server import FailingServer

from commands import run_script
from draftlab.data.chat import Chat
from draftlab.data.prompts import builtin_prompts
from draftlab.export import hub
from readme_examples import ANSWERS, DECODE, TINY, TINY_TRAIN

SECRETS = {
    "HF_TOKEN": "hf_SentinelHubToken0123456789abcdefgh",
    "WANDB_API_KEY": "5e17123e1abcdef0123456789abcdef012345678",
    "OPENAI_API_KEY": "sk-SentinelOpenAiKey",
}
PASSWORD = "SentinelPassword"


def leaks(folder: Path, said: str) -> list[str]:
    """Files under ``folder``, and the output, that hold a secret, as it is or as HTTP sends it."""
    texts = [secret.encode() for secret in (*SECRETS.values(), PASSWORD)]
    texts += [base64.b64encode(secret)[:-4] for secret in (*texts, f"user:{PASSWORD}".encode())]
    places = {"output": said.encode()}
    places |= {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [f"{place}: {secret}" for place, content in sorted(places.items()) for secret in texts if secret in content]


@pytest.fixture
def keys(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_MODE", "offline")


def test_the_search_finds_a_secret_wherever_it_lies(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.bin").write_bytes(b"\x00" + SECRETS["HF_TOKEN"].encode())
    (tmp_path / "b").write_bytes(base64.b64encode(SECRETS["OPENAI_API_KEY"].encode()))
    assert len(leaks(tmp_path, f"… {PASSWORD}")) == 3


def test_answering_training_evaluating_and_exporting_leave_no_key_behind(
    keys, tmp_path, target_folder, monkeypatch, capfd
):
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path / "cache"))
    values = {"target": target_folder, "answers": tmp_path / "answers", "folder": tmp_path}
    for command in (
        f"python src/prepare.py {TINY} data=laptop data.path={{answers}} {ANSWERS}",
        f"python src/train.py {TINY_TRAIN} logger=default run_name=dspark",
        f"python src/evaluate.py run=outputs/dspark {DECODE}",
        "python src/export.py run=outputs/dspark licence=apache-2.0 hub=me/dspark",
    ):
        run_script(shlex.split(command.format(**values)), tmp_path, monkeypatch)
    assert list(tmp_path.glob("outputs/dspark/wandb/offline-run-*/*.wandb")), (
        "W&B was not at work, so this shows nothing"
    )
    said = "".join(capfd.readouterr())
    assert leaks(tmp_path, said) == []


@pytest.mark.parametrize("fault", ["400", "500", None])
@pytest.mark.parametrize("user", ["", f"user:{PASSWORD}@"])
def test_servers_with_a_key_or_a_password_in_their_address_leave_neither(keys, tmp_path, tokenizer, capfd, fault, user):
    """The server's own words may repeat what it was sent."""
    with FailingServer(tokenizer, script=lambda number, body: fault) as server:
        url, folder = server.url.replace("http://", f"http://{user}"), tmp_path / "answers"
        try:
            write(Chat(tokenizer), folder, builtin_prompts(3), [url], retries=0)
        except ValueError as error:
            print(error)
        assert server.bodies
    said = "".join(capfd.readouterr())
    assert leaks(tmp_path, said) == []
    assert (folder / "manifest.json").is_file() if fault is None else "<key>" in said + str(errors(folder))


def test_a_password_in_an_address_is_not_saved_with_the_configuration(
    keys, tmp_path, target_folder, tokenizer, monkeypatch, capfd
):
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path / "cache"))
    with FailingServer(tokenizer, model="x") as server:
        url = server.url.replace("http://", f"http://user:{PASSWORD}@")
        command = (
            f"python src/prepare.py {TINY} data=laptop data.path={tmp_path}/answers {ANSWERS} engine=openai "
            f"'servers=[\"{url}\"]' client.model=x client.check=false"
        ).format(target=target_folder)
        run_script(shlex.split(command), tmp_path, monkeypatch)
    assert leaks(tmp_path, "".join(capfd.readouterr())) == []


def test_what_the_hub_refuses_is_told_without_the_token(keys, tmp_path, monkeypatch, capfd):
    from httpx import Request, Response
    from huggingface_hub.errors import HfHubHTTPError

    def refused(*_, **__):
        request = Request("POST", "https://huggingface.co", headers={"authorization": f"Bearer {SECRETS['HF_TOKEN']}"})
        raise HfHubHTTPError("403 Forbidden", response=Response(403, request=request))

    monkeypatch.setattr(hub.HfApi, "create_repo", refused)
    with pytest.raises(ValueError, match="the hub refused") as caught:
        hub.upload(tmp_path, "me/it", dry_run=False)
    assert SECRETS["HF_TOKEN"] not in str(caught.value) + "".join(capfd.readouterr())
