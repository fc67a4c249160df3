"""Prompts of data sets in every form, found by their columns; what asks nothing is counted, what lacks a column refused."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from draftlab.data.sources import FORMS, DatasetPrompts

CONF = Path(__file__).parents[2] / "conf"


def text(prompt) -> str:
    return prompt.messages[-1]["content"]


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def turns(*pairs, names=("role", "content")):
    return [dict(zip(names, pair, strict=True)) for pair in pairs]


FORMED = {  # the same question in every form
    "messages": {"messages": turns(("user", "Q"), ("assistant", "A"), ("user", "R"))},
    "conversations": {"conversations": turns(("human", "Q"), ("gpt", "A"), names=("from", "value"))},
    "turns": {"turns": ["Q", "R"]},
    "alpaca": {"instruction": "Q", "input": "", "output": "A"},
    "prompt": {"prompt": "Q", "response": "A"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_every_form_is_found_by_its_columns_wherever_it_lies(tmp_path, form, kind):
    path = tmp_path / f"set.{kind}"
    table = datasets.Dataset.from_list([FORMED[form]])
    {"jsonl": table.to_json, "parquet": table.to_parquet, "saved": table.save_to_disk}[kind](str(path))
    for named in ("auto", form):
        (prompt,) = DatasetPrompts(str(path), form=named)()
        assert list(prompt.messages) == [{"role": "user", "content": "Q"}]
        assert (prompt.id, prompt.domain) == ("set-0", "chat")


def test_sharegpt_and_perfectblend_turns_are_asked_up_to_the_first_answer(tmp_path, capsys):
    rows = {
        "conversations": [
            turns(("system", "S"), ("human", "A"), ("gpt", "B"), names=("from", "value")),
            turns(("gpt", "no question"), names=("from", "value")),
            turns(("human", "C"), ("gpt", "D"), ("human", "E"), names=("from", "value")),
            [],
            turns(("narrator", "F"), names=("from", "value")),
        ],
        "source": ["gsm8k", "chat", "apps", None, "x"],
    }
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "set"))
    prompts = DatasetPrompts(
        str(tmp_path / "set"), column="conversations", domain_column="source", domains={"gsm8k": "math"}
    )()
    assert [(prompt.id, prompt.domain) for prompt in prompts] == [("set-0", "math"), ("set-2", "apps")]
    assert list(prompts[0].messages) == [{"role": "system", "content": "S"}, {"role": "user", "content": "A"}]
    assert list(prompts[1].messages) == [{"role": "user", "content": "C"}]
    said = capsys.readouterr().out
    assert "2 prompts of column 'conversations'; skipped 1 ('messages' has no user turn to answer)" in said
    assert "1 (empty)" in said and "1 (unknown role 'narrator')" in said


def test_turns_as_one_object_of_lists_are_turns(tmp_path):
    """So ``datasets`` stores a sequence of objects, and gives it back."""
    talk = {"from": ["system", "human", "gpt"], "value": ["S", "Q", "A"]}
    table = datasets.Dataset.from_dict({"conversations": [talk]})
    table.to_parquet(str(tmp_path / "lists.parquet"))
    (prompt,) = DatasetPrompts(str(tmp_path / "lists.parquet"))()
    assert [message["content"] for message in prompt.messages] == ["S", "Q"]


def test_domains_may_be_numbers_of_a_class(tmp_path):
    path = write(tmp_path / "d.jsonl", {"prompt": "Q", "kind": 1}, {"prompt": "R", "kind": 2}, {"prompt": "S"})
    prompts = DatasetPrompts(path, domain_column="kind", domains={1: "math"}, domain="all")()
    assert [prompt.domain for prompt in prompts] == ["math", "2", "all"]


def test_alpaca_inputs_follow_their_instruction_and_system_columns_come_first(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"instruction": "Sum up.", "input": "A long text.", "output": "…", "system": "Be brief."},
        {"instruction": "Say hello.", "input": None, "output": "…", "system": ""},
    )
    first, second = DatasetPrompts(path)()
    assert list(first.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Sum up.\n\nA long text."},
    ]
    assert list(second.messages) == [{"role": "user", "content": "Say hello."}]


def test_a_column_of_another_name_is_read_by_what_its_cells_hold(tmp_path):
    """UltraChat's first edition keeps user and assistant texts in turn in a column ``data``."""
    path = write(tmp_path / "u.jsonl", {"id": "0", "data": ["Q", "A", "R", "B"], "task": "Write"})
    assert text(DatasetPrompts(path, column="data")()[0]) == "Q"
    assert text(DatasetPrompts(path, column="task", domain="code")()[0]) == "Write"
    path = write(tmp_path / "v.jsonl", {"task": "Write", "input": "this"})
    assert text(DatasetPrompts(path, form="alpaca", column="task")()[0]) == "Write\n\nthis"


def test_tools_in_a_string_are_read_and_unreadable_ones_cost_their_row(tmp_path, capsys):
    tool = {"type": "function", "function": {"name": "f"}}
    path = write(
        tmp_path / "t.jsonl",
        {"prompt": "Q", "tools": json.dumps([tool])},
        {"prompt": "R", "tools": "{"},
        {"prompt": "S", "tools": ""},
    )
    assert [(text(prompt), prompt.tools) for prompt in DatasetPrompts(path)()] == [("Q", [tool]), ("S", None)]
    assert "skipped 1 (unreadable tools)" in capsys.readouterr().out


def test_ids_stay_and_repeated_ones_are_told_apart(tmp_path):
    path = write(tmp_path / "i.jsonl", *({"id": name, "prompt": "Q"} for name in ("a", "a", None, 0)))
    assert [prompt.id for prompt in DatasetPrompts(path)()] == ["a", "a-1", "i-2", "0"]


def test_a_limit_reads_the_first_rows_only(tmp_path):
    path = write(tmp_path / "l.jsonl", *({"prompt": f"Q{index}"} for index in range(9)))
    assert list(map(text, DatasetPrompts(path, limit=2)())) == ["Q0", "Q1"]
    assert len(DatasetPrompts(path, limit=20)()) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "messages"}, r"prompts.column: .* has no column 'messages'; there are title, body"),
        ({"domain_column": "kind"}, r"prompts.domain_column: .* has no column 'kind'; there are title, body"),
        ({"form": "alpaca"}, r"prompts.form=alpaca: .* has no column 'instruction'; there are title, body"),
        ({}, r"prompts.form=auto: .* has no column 'messages' or .*; there are title, body; name one with"),
    ],
)
def test_a_missing_column_is_refused_with_the_columns_that_there_are(tmp_path, options, message):
    path = write(tmp_path / "b.jsonl", {"title": "T", "body": "B"})
    with pytest.raises(ValueError, match=message):
        DatasetPrompts(path, **options)()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "sharegpt"}, "prompts.form must be one of auto, messages, conversations, turns, alpaca, prompt"),
        ({"limit": 0}, "prompts.limit must be null or at least 1"),
        ({"domains": {"a": "b"}}, "prompts.domain_column, which is not set"),
    ],
)
def test_values_out_of_range_are_refused_at_construction(options, message):
    with pytest.raises(ValueError, match=message):
        DatasetPrompts(**options)


def test_nothing_to_ask_is_refused_with_the_reasons(tmp_path):
    with pytest.raises(ValueError, match=r"prompts\.path is not set"):
        DatasetPrompts()()
    path = write(tmp_path / "n.jsonl", {"prompt": ""}, {"prompt": None})
    with pytest.raises(ValueError, match=r"no row of .* asks something in column 'prompt': 1 \(.*\), 1 \(empty\)"):
        DatasetPrompts(path)()


def test_a_line_that_is_not_json_refuses_the_file_with_its_number(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"prompt": "Q"}\n{"prompt": "R"\n')
    with pytest.raises(ValueError, match=r"m\.jsonl, line 2: not valid JSON"):
        DatasetPrompts(str(path))()


@pytest.mark.parametrize(
    ("choice", "path", "form"),
    [
        ("open_perfectblend", "mlabonne/open-perfectblend", "conversations"),
        ("sharegpt", "Aeala/ShareGPT_Vicuna_unfiltered", "conversations"),
        ("ultrachat", "HuggingFaceH4/ultrachat_200k", "messages"),
    ],
)
def test_the_named_hub_sets_are_read_in_their_form(choice, path, form, monkeypatch):
    def load(asked, name, split):
        assert (asked, split) == (path, "train_sft" if choice == "ultrachat" else "train")
        return datasets.Dataset.from_list([FORMED[form]])

    monkeypatch.setattr(datasets, "load_dataset", load)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        data = instantiate(compose("prepare", overrides=[f"data={choice}"]).data)
    assert list(map(text, data.read_prompts())) == ["Q"]
