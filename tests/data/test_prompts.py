"""Prompts: the built-in generator is large, balanced and split by construction; foreign sources are read or refused."""

from __future__ import annotations

import json
import re

import pytest

from draftlab.data import builtin
from draftlab.data.prompts import builtin_prompts, jsonl_prompts, prompts_digest, question


def text(prompt) -> str:
    return prompt.messages[0]["content"]


@pytest.fixture(scope="module")
def train():
    return builtin_prompts(4200)


def test_thousands_of_prompts_are_distinct_and_filled_in(train):
    assert len({text(prompt) for prompt in train}) == len({prompt.id for prompt in train}) == 4200
    for prompt in train:
        assert not re.search(r"[«»]|\w  \w", text(prompt))
        assert text(prompt)[0] == text(prompt)[0].upper()


def test_any_prefix_is_balanced_over_math_code_and_chat(train):
    for length in (3, 99, 1500):
        domains = [prompt.domain for prompt in train[:length]]
        assert {domain: domains.count(domain) for domain in builtin.DOMAINS} == dict.fromkeys(
            builtin.DOMAINS, length // 3
        )


def test_a_longer_list_begins_with_the_shorter_one(train):
    assert builtin_prompts(300) == train[:300]
    assert builtin_prompts(300, seed=1) != train[:300]


def test_held_out_prompts_are_disjoint_from_training_prompts_of_every_seed(train):
    """Also from those that differ in numbers only."""
    heldout = [text(prompt) for prompt in builtin_prompts(600, seed=0, split="heldout")]
    trained = [text(prompt) for seed in (1, 2) for prompt in builtin_prompts(1500, seed=seed)] + list(map(text, train))
    assert not set(heldout) & set(trained)
    assert not set(map(builtin.family, heldout)) & set(map(builtin.family, trained))


def test_a_family_ignores_numbers_and_nothing_else():
    assert builtin.family("What is 12% of 3,400?") == builtin.family("What is 7% of 90?")
    assert builtin.family("Add 2 apples") != builtin.family("Add 2 pears")


def test_every_template_gives_prompts(train):
    """No family of templates is lost to the split or to duplicates."""
    everything = [text(prompt) for prompt in train]
    for domain in builtin.DOMAINS.values():
        for kind in domain.families:
            for template in kind.templates:
                start = re.split(r"«", template)[0].strip()[:20]
                if len(start) > 8:
                    start = start[0].upper() + start[1:]
                    assert any(start in prompt for prompt in everything), template


def test_impossible_wishes_are_refused():
    with pytest.raises(ValueError, match=r"prompts.split must be one of train, heldout, got 'test'"):
        builtin_prompts(3, split="test")
    with pytest.raises(ValueError, match="at least 1"):
        builtin_prompts(0)


def test_more_prompts_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr(builtin, "_PATIENCE", 3)
    with pytest.raises(ValueError, match=r"the built-in generator has \d+ train prompts for seed 0, fewer than 5000"):
        builtin_prompts(5000)


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_jsonl_prompts_take_messages_or_turns(tmp_path):
    talk = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]
    path = write(
        tmp_path / "p.jsonl",
        {"id": "x", "domain": "math", "messages": talk},
        {"turns": ["D", "E"]},
        {"id": 7, "messages": talk[:2]},
    )
    first, second, third = jsonl_prompts(path, domain="chat")
    assert (first.id, first.domain, list(first.messages)) == ("x", "math", talk)
    assert (second.id, second.domain, text(second)) == ("p-1", "chat", "D")
    assert (third.id, list(third.messages)) == ("7", talk[:1]), "an old answer is left out"


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"id": "a"}, "expected a field 'messages' or 'turns'"),
        ({"turns": []}, "'turns' must be a non-empty list"),
        ({"messages": "hello"}, "'messages' must be a list"),
        ({"messages": [{"role": "assistant", "content": "B"}]}, "no user turn"),
        ({"messages": [{"role": "user", "content": ""}]}, "has no text"),
        ({"messages": [{"role": "user", "content": float("nan")}]}, "has no text"),
    ],
)
def test_a_line_that_is_no_prompt_is_refused_with_its_number(tmp_path, record, why):
    path = write(tmp_path / "p.jsonl", {"turns": ["A"]}, record)
    with pytest.raises(ValueError, match=rf"p\.jsonl, line 2: .*{why}"):
        jsonl_prompts(path)


def test_a_missing_path_is_refused_by_name():
    with pytest.raises(ValueError, match=r"prompts\.path is not set"):
        jsonl_prompts()


def user(*texts, role="user"):
    return [{"role": role, "content": text} for text in texts]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (user("What is 2 + 2?"), user("what  is\n2 + 2")),
        (user("Hi."), [*user("Be brief", role="system"), *user("hi")]),
        (user("A", "B"), [*user("A"), *user("an answer", role="assistant"), *user("B")]),
        (user("e\u0301"), user("\u00c9")),
        (user("Q"), user([{"type": "text", "text": "Q"}])),
    ],
)
def test_case_spacing_system_messages_and_answers_make_no_other_question(first, second):
    assert question(first) == question(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (user("What is 2 + 2?"), user("What is 2 - 2?")),
        (user("What is 5!"), user("What is 5?")),
        (user("10\u00b2"), user("102")),
        (user("A", "B"), user("B", "A")),
        (user("A", "B"), user("A")),
        (user("?"), user(".")),
        (user([{"type": "image", "url": "a"}]), user([{"type": "image", "url": "b"}])),
    ],
)
def test_other_words_signs_turns_or_pictures_make_another_question(first, second):
    assert question(first) != question(second)


def test_the_digest_tells_sources_apart_but_not_how_many_are_asked_for(train):
    assert prompts_digest(train) == prompts_digest(builtin_prompts(300))
    assert prompts_digest(train) != prompts_digest(builtin_prompts(300, seed=1))
