"""Samples: unusable conversations cost themselves only, and every reason is counted (case 10)."""

from __future__ import annotations

import json

import pytest

import tiny
from draftlab.data.chat import Chat
from draftlab.data.samples import read_samples, tokenise

ASK = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
NAN = float("nan")
TOOLS = """{%- if tools -%}{{- '<tools>' -}}{%- for t in tools -%}{{- t.name -}}{%- endfor -%}{{- '</tools>' -}}{%- endif -%}"""
STRICT = """{%- for m in messages -%}{%- if 'boom' in m.content -%}{{- raise_exception('boom') -}}{%- endif -%}{%- endfor -%}"""


@pytest.fixture
def chat():
    return Chat(tiny.tiny_tokenizer(chat_template=STRICT + TOOLS + tiny.CHATML))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": NAN}, "NaN"),
        ({"messages": [ASK, {"role": "assistant", "content": NAN}]}, "NaN"),
        ({"messages": []}, "empty"),
        ({}, "empty"),
        ({"messages": [ASK, {"role": "assistant", "content": ""}]}, "empty"),
        ({"messages": [ASK, {"role": "assistant", "content": None}]}, "empty"),
        ({"messages": [ASK, {"role": "narrator", "content": "So"}, ANSWER]}, "unknown role"),
        ({"messages": [ASK, {"content": "Hello"}]}, "message without role"),
        ({"messages": [ASK, {"role": "assistant", "content": 5}]}, "content is not text"),
        ({"messages": [ASK]}, "no answer"),
        ({"messages": [{"role": "user", "content": "boom"}, ANSWER]}, "template error"),
        ({"messages": [ASK, ANSWER], "tools": "[{"}, "unreadable tools"),
        ({"messages": [ASK, ANSWER], "tools": '"sum"'}, "unreadable tools"),
        ({"messages": [{"role": "user", "content": "x" * 90}, ANSWER]}, "answer beyond max_length"),
        (
            {"messages": [ASK, {"role": "assistant", "content": "H"}], "finish_reason": "length"},
            "answer shorter than two tokens",
        ),
    ],
)
def test_an_unusable_sample_is_skipped_with_its_reason_and_the_others_stay(chat, record, reason):
    samples, counts = tokenise([record, {"messages": [ASK, ANSWER]}], chat, max_length=90)
    assert [sample.id for sample in samples] == ["1"]
    assert counts.skipped == {reason: 1} and counts.kept == 1
    assert reason in str(counts)


@pytest.mark.parametrize("tools", ['[{"name": "sum"}]', [{"name": "sum"}]])
def test_tools_may_be_a_json_string(chat, tools):
    samples, counts = tokenise([{"messages": [ASK, ANSWER], "tools": tools}], chat, max_length=200)
    text = chat.tokenizer.decode(samples[0].input_ids)
    assert text.startswith("<tools>sum</tools>") and not counts.skipped


def test_tools_that_are_absent_in_any_notation_render_nothing(chat):
    records = [{"messages": [ASK, ANSWER], "tools": tools} for tools in (None, "", "[]", "null", [], NAN)]
    samples, _ = tokenise(records, chat, max_length=200)
    assert len({tuple(sample.input_ids.tolist()) for sample in samples}) == 1


def test_all_skipped_is_an_error_that_names_the_reasons(chat, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"messages": NaN}\n{"messages": []}\n{"messages": []}\n')
    with pytest.raises(ValueError, match=r"not one sample of .*bad.jsonl can be used: 2 empty, 1 NaN"):
        read_samples(path, chat, max_length=64)


def test_a_malformed_line_refuses_the_file_with_its_number(chat, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"messages": [ASK, ANSWER]}) + "\n{oops}\n")
    with pytest.raises(ValueError, match=r"bad.jsonl, line 2: not valid JSON"):
        read_samples(path, chat, max_length=64)


def test_an_answer_that_was_cut_off_has_no_end_token(chat):
    whole, cut = (
        tokenise([{"messages": [ASK, ANSWER], "finish_reason": reason}], chat, 200)[0][0]
        for reason in ("stop", "length")
    )
    assert whole.input_ids.tolist() == [*cut.input_ids.tolist(), tiny.IM_END]
    assert whole.loss_mask[-1] and cut.loss_mask[-1]


def test_long_conversations_are_cut_at_max_length_and_counted(chat):
    record = {"messages": [ASK, {"role": "assistant", "content": "Hello " * 30}]}
    whole, _ = tokenise([record], chat, max_length=1000)
    cut, counts = tokenise([record], chat, max_length=100)
    assert cut[0].input_ids.tolist() == whole[0].input_ids[:100].tolist()
    assert cut[0].loss_mask.tolist() == whole[0].loss_mask[:100].tolist()
    assert counts.cut_at_max_length == 1


def test_missing_answers_say_how_to_get_them(chat, tmp_path):
    with pytest.raises(ValueError, match=r"no answers at .*prepare.py stage=responses"):
        read_samples(tmp_path / "nowhere", chat, max_length=64)


@pytest.mark.parametrize("counted", [1, 3])
def test_answers_that_their_manifest_does_not_count_are_refused(chat, tmp_path, counted):
    lines = [{"messages": [ASK, ANSWER]}, {"messages": []}]
    (tmp_path / "responses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"identity": {}, "counts": {"answers": counted}}))
    with pytest.raises(ValueError, match=rf"holds 2 answers, its manifest counts {counted}: it was cut or edited"):
        read_samples(tmp_path, chat, max_length=64)
    assert read_samples(tmp_path / "responses.jsonl", chat, max_length=64)[1].kept == 1, (
        "the file alone has no manifest"
    )
    manifest.write_text(json.dumps({"identity": {}, "counts": {"answers": 2}}))
    assert read_samples(tmp_path, chat, max_length=64)[1].skipped == {"empty": 1}
