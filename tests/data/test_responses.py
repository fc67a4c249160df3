"""Responses: the same answers however often the writer is stopped, exact counts, no mixing of identities."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from types import SimpleNamespace

import pytest

import tiny
from draftlab.data import responses
from draftlab.data.answers import read_manifest
from draftlab.data.chat import Chat
from draftlab.data.prompts import Prompt, builtin_prompts
from draftlab.data.responses import ResponseSettings, responses_identity, write_responses
from draftlab.sampling import Sampling

SETTINGS = ResponseSettings(
    Sampling(0.7), max_new_tokens=12, batch_size=4, seed=3, max_prompt_tokens=300, window_batches=2
)
TARGET = {"name": "tiny"}


class Stopped(BaseException):
    """Stands for kill -9: nothing of the writer runs after it."""


class Writer:
    """A stand-in target: letters drawn from the seed; about half of the answers end."""

    def __init__(self, tokenizer, stop_after: int | None = None) -> None:
        self.tokenizer, self.calls, self.stop_after = tokenizer, 0, stop_after

    def __call__(self, prompts, sampling, max_new_tokens, seed):
        if self.calls == self.stop_after:
            raise Stopped
        self.calls += 1
        assert sampling == SETTINGS.sampling
        rng = random.Random(seed)
        answers = []
        for prompt in prompts:
            words = [10 + rng.randrange(60) for _ in range(max_new_tokens)]
            end = rng.randrange(2 * max_new_tokens)
            answers.append([*words[:end], tiny.IM_END][:max_new_tokens] if end < max_new_tokens else words)
            assert self.tokenizer.decode(prompt).endswith("assistant\n<think>\n\n</think>\n\n")
        return answers


@pytest.fixture
def chat(tokenizer):
    return Chat(tokenizer)


def write(chat, folder, prompts, writer=None, settings=SETTINGS):
    identity = responses_identity(chat, prompts, settings, TARGET)
    return write_responses(writer or Writer(chat.tokenizer), chat, prompts, folder, settings, identity)


def records(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "responses.jsonl").read_text().splitlines()]


def test_every_prompt_is_answered_once_and_counted_by_outcome(chat, tmp_path):
    prompts = builtin_prompts(30)
    counts = write(chat, tmp_path, prompts)
    found = records(tmp_path)
    assert sorted(record["id"] for record in found) == sorted(prompt.id for prompt in prompts)
    stopped = sum(record["finish_reason"] == "stop" for record in found)
    assert 0 < stopped < 30
    assert counts["stopped"] == stopped and counts["truncated"] == 30 - stopped and counts["not_reached"] == 0
    assert counts["domains"] == {"chat": 10, "code": 10, "math": 10}
    assert counts["completion_tokens"] == sum(record["completion_tokens"] for record in found)
    manifest = read_manifest(tmp_path)
    assert manifest["counts"] == counts and manifest["identity"]["target"] == TARGET
    assert not (tmp_path / "identity.json").exists()


def test_an_answer_and_its_prompt_render_to_the_tokens_that_were_generated(chat, tmp_path):
    """What is read back is what the target saw and wrote; a cut answer gets no end token."""
    seen = {}
    writer = Writer(chat.tokenizer)

    def generate(prompts, **options):
        answers = writer(prompts, **options)
        seen.update({tuple(prompt): answer for prompt, answer in zip(prompts, answers, strict=True)})
        return answers

    write(chat, tmp_path, builtin_prompts(12), generate)
    for record in records(tmp_path):
        prompt = chat.prompt_ids(record["messages"][:-1])
        ids, _ = chat.render(record["messages"], finished=record["finish_reason"] == "stop")
        assert ids == prompt + seen[tuple(prompt)]
        assert (len(prompt), len(ids) - len(prompt)) == (record["prompt_tokens"], record["completion_tokens"])


@pytest.mark.parametrize("stop_after", [0, 1, 5])
@pytest.mark.parametrize("damage", ["none", "torn line", "half a batch"])
def test_a_killed_writer_goes_on_to_the_same_file(chat, tmp_path, stop_after, damage):
    """Case 13: finished batches are not written again, and a torn end changes nothing."""
    prompts = builtin_prompts(30)
    write(chat, tmp_path / "whole", prompts)
    with pytest.raises(Stopped):
        write(chat, tmp_path / "cut", prompts, Writer(chat.tokenizer, stop_after))
    file = tmp_path / "cut" / "responses.jsonl"
    if damage != "none":
        lines = (tmp_path / "whole" / "responses.jsonl").read_bytes().splitlines(keepends=True)[4 * stop_after :]
        file.open("ab").write(lines[0] + (lines[1] if damage == "half a batch" else lines[1][:20]))
    with pytest.raises(ValueError, match="unfinished"):
        read_manifest(tmp_path / "cut")
    resumed = Writer(chat.tokenizer)
    counts = write(chat, tmp_path / "cut", prompts, resumed)
    assert resumed.calls == 8 - stop_after
    assert file.read_bytes() == (tmp_path / "whole" / "responses.jsonl").read_bytes()
    assert read_manifest(tmp_path / "cut") == read_manifest(tmp_path / "whole")
    assert counts["answers"] == 30


def test_a_process_killed_outright_loses_nothing_that_was_finished(chat, tmp_path):
    """Case 13, with kill -9 in the middle of the run."""
    prompts = builtin_prompts(30)
    write(chat, tmp_path / "whole", prompts)

    class Killed(Writer):
        def __call__(self, *args, **kwargs):
            if self.calls == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(*args, **kwargs)

    if (child := os.fork()) == 0:
        write(chat, tmp_path / "cut", prompts, Killed(chat.tokenizer))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(records(tmp_path / "cut")) == 12
    write(chat, tmp_path / "cut", prompts)
    assert records(tmp_path / "cut") == records(tmp_path / "whole")


def test_a_complete_folder_is_left_as_it_is(chat, tmp_path):
    prompts = builtin_prompts(8)
    counts = write(chat, tmp_path, prompts)
    again = Writer(chat.tokenizer)
    assert write(chat, tmp_path, prompts, again) == counts
    assert again.calls == 0


def test_more_prompts_of_the_same_source_extend_a_complete_folder(chat, tmp_path):
    prompts = builtin_prompts(300)
    identity = responses_identity(chat, prompts, SETTINGS, TARGET)
    for count in (8, 24):
        writer = Writer(chat.tokenizer)
        write_responses(writer, chat, prompts[:count], tmp_path, SETTINGS, identity)
    assert writer.calls == 4, "the first window of two batches stays"
    assert {record["id"] for record in records(tmp_path)} == {prompt.id for prompt in prompts[:24]}


def test_a_time_limit_closes_the_folder_and_the_same_command_goes_on(chat, tmp_path, monkeypatch):
    prompts = builtin_prompts(20)
    clock = iter(range(0, 10_000, 30))
    with monkeypatch.context() as patched:
        patched.setattr(responses, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        limited = ResponseSettings(**{**vars(SETTINGS), "max_minutes": 1.0})
        counts = write(chat, tmp_path, prompts, settings=limited)
    assert 0 < counts["answers"] < 20 and counts["not_reached"] == 20 - counts["answers"]
    assert read_manifest(tmp_path)["counts"] == counts
    assert write(chat, tmp_path, prompts)["not_reached"] == 0


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seed": 4}, "seed"),
        ({"sampling": Sampling(1.0)}, "sampling.temperature"),
        ({"max_new_tokens": 13}, "max_new_tokens"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_another_identity_is_refused_by_the_differing_key(chat, tmp_path, changes, key, finished):
    """Case 12, for answers."""
    prompts = builtin_prompts(8)
    with contextlib.suppress(Stopped):
        write(chat, tmp_path, prompts, Writer(chat.tokenizer, None if finished else 1))
    before = (tmp_path / "responses.jsonl").read_bytes()
    other = ResponseSettings(**{**vars(SETTINGS), **changes})
    with pytest.raises(ValueError, match=f"made with another {key}: "):
        write(chat, tmp_path, prompts, settings=other)
    assert (tmp_path / "responses.jsonl").read_bytes() == before


def test_other_prompts_template_and_target_are_other_identities(chat, tokenizer):
    prompts = builtin_prompts(8)
    identities = [
        responses_identity(chat, prompts, SETTINGS, TARGET),
        responses_identity(chat, builtin_prompts(8, seed=1), SETTINGS, TARGET),
        responses_identity(Chat(tokenizer, thinking=True), prompts, SETTINGS, TARGET),
        responses_identity(chat, prompts, SETTINGS, {"name": "other"}),
    ]
    assert len({json.dumps(identity) for identity in identities}) == 4


def test_a_file_of_the_users_own_is_never_appended_to(chat, tmp_path):
    (tmp_path / "responses.jsonl").write_text('{"id": "mine"}\n')
    with pytest.raises(ValueError, match="not ours to append to"):
        write(chat, tmp_path, builtin_prompts(4))


def test_prompts_that_cannot_be_answered_are_counted_by_reason(chat, tmp_path):
    """Case 10: the run goes on; if nothing is left, that is an error."""
    ask = {"role": "user", "content": "Hi"}
    bad = [
        Prompt("long", "chat", ({**ask, "content": "x" * 400},)),
        Prompt("broken", "chat", ({"role": "user"}, {"content": 1})),
    ]
    counts = write(chat, tmp_path / "some", [*bad, Prompt("good", "chat", (ask,))])
    assert counts["skipped"] == {"prompt_too_long": 1, "template_error": 1} and counts["answers"] == 1
    with pytest.raises(ValueError, match="not one of 2 prompts can be answered"):
        write(chat, tmp_path / "none", bad)


def test_settings_outside_their_range_are_refused():
    for name in ("max_new_tokens", "batch_size", "max_prompt_tokens", "window_batches"):
        with pytest.raises(ValueError, match=f"responses.{name} must be at least 1"):
            ResponseSettings(**{name: 0})
