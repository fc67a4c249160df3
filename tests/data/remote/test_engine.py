"""Answers of servers that fail on purpose: every prompt exactly once, faults counted by reason, nothing finished lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("openai", reason='the openai client is not installed: pip install "draftlab[serve]"')
sys.path.insert(0, str(Path(__file__).parent))

from asking import SETTINGS, errors, failing_once, ids, records, write
from failing_server import FailingServer, free_port

from draftlab.data.answers import read_manifest
from draftlab.data.chat import Chat
from draftlab.data.prompts import Prompt, builtin_prompts
from draftlab.data.remote.engine import find_service
from draftlab.data.responses import ResponseSettings


@pytest.fixture
def chat(tokenizer):
    return Chat(tokenizer)


def test_every_prompt_is_answered_once_by_any_number_of_servers_in_prompt_order(chat, tokenizer, tmp_path):
    prompts = builtin_prompts(30)
    with FailingServer(tokenizer, delay=0.01) as one, FailingServer(tokenizer, delay=0.01) as two:
        counts = write(chat, tmp_path / "two", prompts, [one.url, two.url])
        assert len(one.bodies) + len(two.bodies) == 30 and min(len(one.bodies), len(two.bodies)) > 5
        assert max(one.most_in_flight, two.most_in_flight) <= 4
    with FailingServer(tokenizer) as alone:
        write(chat, tmp_path / "one", prompts, [alone.url], concurrency=1)
    found = records(tmp_path / "two")
    assert [record["id"] for record in found] == ids(prompts)
    assert (tmp_path / "one/responses.jsonl").read_bytes() == (tmp_path / "two/responses.jsonl").read_bytes()
    stopped = sum(record["finish_reason"] == "stop" for record in found)
    assert 0 < stopped < 30 and counts["stopped"] == stopped and counts["truncated"] == 30 - stopped
    assert counts["completion_tokens"] == sum(record["completion_tokens"] for record in found)
    assert counts["failed"] == {} and counts["not_reached"] == counts["empty"] == counts["thinking"] == 0
    assert counts["domains"] == {"chat": 10, "code": 10, "math": 10}
    assert read_manifest(tmp_path / "two")["counts"] == counts


def test_a_server_gets_the_ids_that_the_target_reads_and_every_sampling_field(chat, tokenizer, tmp_path):
    prompts = builtin_prompts(6)
    with FailingServer(tokenizer) as server:
        write(chat, tmp_path, prompts, [server.url])
    rendered = sorted(chat.prompt_ids(prompt.messages) for prompt in prompts)
    assert sorted(body["prompt"] for body in server.bodies) == rendered
    assert len({body["seed"] for body in server.bodies}) == 6
    body = server.bodies[0]
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (0.7, 0.8, 20, 0.0)
    assert body["repetition_penalty"] == body["repeat_penalty"] == 1.0 and body["stop_token_ids"] == [2]


def test_an_answer_renders_to_its_prompt_and_what_the_server_wrote(chat, tokenizer, tmp_path):
    with FailingServer(tokenizer) as server:
        write(chat, tmp_path, builtin_prompts(8), [server.url])
    for record in records(tmp_path):
        rendered, _ = chat.render(record["messages"], finished=record["finish_reason"] == "stop")
        prompt = chat.prompt_ids(record["messages"][:-1])
        assert (len(prompt), len(rendered) - len(prompt)) == (record["prompt_tokens"], record["completion_tokens"])


@pytest.mark.parametrize(
    "what",
    ["500", "503", "429 later", "cut", "rubbish json", "html", "other json", "no reason", "empty", "other count"],
)
def test_a_fault_that_passes_costs_no_prompt(chat, tokenizer, tmp_path, what, capsys):
    prompts = builtin_prompts(10)
    with FailingServer(tokenizer) as well:
        write(chat, tmp_path / "well", prompts, [well.url])
    with FailingServer(tokenizer, failing_once(what)) as server:
        counts = write(chat, tmp_path / "sick", prompts, [server.url])
    assert counts["answers"] == 10 and len(server.bodies) == 12
    assert (tmp_path / "sick/responses.jsonl").read_bytes() == (tmp_path / "well/responses.jsonl").read_bytes()
    assert "10 answers, 2 " in capsys.readouterr().out


def test_a_server_that_hangs_is_asked_again_after_the_time_out(chat, tokenizer, tmp_path):
    with FailingServer(tokenizer, failing_once("hang", 1)) as server:
        counts = write(chat, tmp_path, builtin_prompts(4), [server.url], timeout=0.4)
    assert counts["answers"] == 4 and len(server.bodies) == 5


def test_a_server_that_asks_for_time_gets_it(chat, tokenizer, tmp_path):
    with FailingServer(tokenizer, failing_once("429 later", 1)) as server:
        write(chat, tmp_path, builtin_prompts(3), [server.url], concurrency=1)
    assert server.times[1] - server.times[0] >= 0.6


def test_a_prompt_that_always_fails_is_written_down_and_tried_again_by_the_next_run(chat, tokenizer, tmp_path):
    prompts = builtin_prompts(9)
    poison = chat.prompt_ids(prompts[4].messages)
    with FailingServer(tokenizer, lambda _, body: "500" if body["prompt"] == poison else None) as server:
        counts = write(chat, tmp_path, prompts, [server.url], retries=2, dead_minutes=1)
        assert sum(body["prompt"] == poison for body in server.bodies) == 3
    assert counts["failed"] == {"server_error": 1} and counts["answers"] == 8 and counts["not_reached"] == 0
    assert [(error["id"], error["reason"]) for error in errors(tmp_path)] == [(prompts[4].id, "server_error")]
    with FailingServer(tokenizer) as server:
        counts = write(chat, tmp_path, prompts, [server.url])
        assert [body["prompt"] for body in server.bodies] == [poison]
    assert counts["answers"] == 9 and counts["failed"] == {}
    assert [record["id"] for record in records(tmp_path)] == ids(prompts)
    assert not (tmp_path / "errors.jsonl").exists()


def test_a_prompt_that_a_server_refuses_is_not_sent_again(chat, tokenizer, tmp_path):
    with FailingServer(tokenizer, failing_once("422", 1)) as server:
        counts = write(chat, tmp_path, builtin_prompts(4), [server.url])
    assert len(server.bodies) == 4 and counts["failed"] == {"refused": 1} and counts["answers"] == 3


def test_a_sick_server_rests_and_the_other_one_does_its_work(chat, tokenizer, tmp_path):
    with FailingServer(tokenizer, lambda *_: "500") as sick, FailingServer(tokenizer, delay=0.01) as well:
        counts = write(chat, tmp_path, builtin_prompts(40), [sick.url, well.url], rest_seconds=0.3)
    assert counts["answers"] == 40
    assert len(sick.bodies) <= 12, "it is rested after its first faults and then tried once at a time"


def test_what_servers_leave_in_an_answer_is_cut_and_counted(chat, tokenizer, tmp_path):
    words = ["end token", "ended at once", "thinking"]
    script = lambda number, _: words[number] if number < 3 else None  # noqa: E731
    with FailingServer(tokenizer, script) as server:
        counts = write(chat, tmp_path, builtin_prompts(6), [server.url], concurrency=1)
    answers = [(r["messages"][-1]["content"], r["finish_reason"]) for r in records(tmp_path)]
    assert answers[:3] == [("fine", "stop"), ("", "stop"), ("hmm</think>\n\nyes", "stop")]
    assert (counts["empty"], counts["thinking"], counts["answers"]) == (1, 1, 6)


def test_the_very_same_prompt_twice_is_answered_twice_and_no_third_time(chat, tokenizer, tmp_path):
    ask = Prompt("same", "chat", ({"role": "user", "content": "Hi"},))
    other = Prompt("same", "chat", ({"role": "user", "content": "Ho"},))
    with FailingServer(tokenizer) as server:
        write(chat, tmp_path, [ask, other, ask], [server.url])
        assert len({body["seed"] for body in server.bodies}) == 3
        assert write(chat, tmp_path, [ask, other, ask], [server.url])["answers"] == 3
        assert len(server.bodies) == 3
    assert [record["messages"][0]["content"] for record in records(tmp_path)] == ["Hi", "Ho", "Hi"]


def test_prompts_that_cannot_be_sent_are_counted_by_reason(chat, tokenizer, tmp_path):
    ask = {"role": "user", "content": "Hi"}
    bad = [
        Prompt("long", "chat", ({**ask, "content": "x" * 400},)),
        Prompt("broken", "chat", ({"role": "user"}, {"content": 1})),
    ]
    with FailingServer(tokenizer) as server:
        counts = write(chat, tmp_path / "some", [*bad, Prompt("good", "chat", (ask,))], [server.url])
        assert counts["skipped"] == {"prompt_too_long": 1, "template_error": 1} and counts["answers"] == 1
        with pytest.raises(ValueError, match="not one of 2 prompts can be answered"):
            write(chat, tmp_path / "none", bad, [server.url])


def test_a_time_limit_of_zero_closes_the_folder_without_servers(chat, tokenizer, tmp_path):
    prompts = builtin_prompts(8)
    server = FailingServer(tokenizer, lambda number, _: "500" if number >= 3 else None)
    with server, pytest.raises(ValueError, match="no server has answered"):
        write(chat, tmp_path, prompts, [server.url], concurrency=1, retries=100)
    closing = ResponseSettings(**{**vars(SETTINGS), "max_minutes": 0})
    counts = write(chat, tmp_path, prompts, [server.url], settings=closing)
    assert counts["answers"] == 3 and counts["not_reached"] == 5
    assert read_manifest(tmp_path)["counts"] == counts


def test_answers_of_another_engine_or_seed_are_refused_by_name(chat, tokenizer, tmp_path):
    prompts = builtin_prompts(4)
    with FailingServer(tokenizer) as server:
        write(chat, tmp_path, prompts, [server.url])
        other = ResponseSettings(**{**vars(SETTINGS), "seed": 4})
        with pytest.raises(ValueError, match="made with another seed"):
            write(chat, tmp_path, prompts, [server.url], settings=other)


def test_keys_and_passwords_appear_nowhere(chat, tokenizer, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    prompts = builtin_prompts(4)
    with FailingServer(tokenizer, failing_once("422", 1), key="sk-very-secret") as server:
        counts = write(chat, tmp_path, prompts, [server.url], api_key_env="MY_KEY")
        assert counts["failed"] == {"refused": 1}
        monkeypatch.setenv("MY_KEY", "sk-another-secret")
        with pytest.raises(ValueError, match=r"unauthorised.*the key is read from \$MY_KEY") as refused:
            write(chat, tmp_path, prompts, [server.url], api_key_env="MY_KEY")
    with pytest.raises(ValueError, match="none of the servers can be used") as dead:
        write(chat, tmp_path, prompts, [f"http://user:hunter2@127.0.0.1:{free_port()}/v1"])
    said = capsys.readouterr().out + str(refused.value) + str(dead.value)
    said += "".join(path.read_text() for path in tmp_path.iterdir())
    assert "as asked" in said and "secret" not in said and "hunter2" not in said


@pytest.mark.parametrize(
    ("engine", "servers", "client", "message"),
    [
        ("vllm", [], {}, "engine must be one of local, openai, got 'vllm'"),
        ("local", ["http://x/v1"], {}, "servers are asked by engine=openai only"),
        ("openai", [], {}, "engine=openai needs servers"),
        ("openai", "http://x/v1", {}, "engine=openai needs servers"),
        ("openai", ["localhost:8000"], {}, "'localhost:8000' is no address"),
        ("openai", ["ftp://a:secret@x/v1"], {}, "'ftp://x/v1' is no address"),
        ("openai", ["http://x/v1", "http://x/v1/"], {}, "stands there twice"),
        ("openai", ["http://x/v1"], {"concurrency": 0}, "client.concurrency must be"),
        ("openai", ["http://x/v1"], {"timeout": -1}, "client.timeout must be a positive number"),
        ("openai", ["http://x/v1"], {"retries": 1.5}, "client.retries must be"),
        ("openai", ["http://x/v1"], {"api_key_env": ""}, "client.api_key_env must name"),
    ],
)
def test_mistakes_are_refused_before_anything_is_sent(engine, servers, client, message):
    with pytest.raises(ValueError, match=message) as refused:
        find_service(engine, servers, client)
    assert "secret" not in str(refused.value)
