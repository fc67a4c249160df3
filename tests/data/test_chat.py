"""Chat: the loss mask is exact for any template, and prompts are the same tokens in training and decoding (cases 10, 11)."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import tiny
from draftlab.data.chat import Chat

LLAMA3 = (
    "{{ bos_token or '<|begin|>' }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "<bos>{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] }}</s>"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
QWEN3 = """{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- set content = m.content -%}{%- set reasoning = '' -%}
{%- if m.reasoning_content is string -%}{%- set reasoning = m.reasoning_content -%}
{%- elif '</think>' in content -%}
{%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\n' -}}
{%- if loop.index0 > ns.last and (loop.last or reasoning) -%}
{{- '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' -}}
{%- endif -%}
{{- content -}}
{%- for call in m.tool_calls or [] -%}{{- '\n<tool_call>' + call.function.name + '</tool_call>' -}}{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- else -%}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
{%- endif -%}"""
GEMMA4 = """<bos>{%- for m in messages -%}
{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' -}}
{{- (m.content.split('<channel|>')[-1] if m.role == 'assistant' else m.content) | trim -}}{{- '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|turn>model\n' -}}
{%- if not enable_thinking | default(false) -%}{{- '<|channel>thought\n<channel|>' -}}{%- endif -%}
{%- endif -%}"""
GLM = """[gMASK]{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- '<|user|>\n' + m.content + ('' if enable_thinking else '/nothink') -}}
{%- else -%}{{- '<|assistant|>\n<think></think>\n' + m.content.split('</think>')[-1] | trim -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' + ('' if enable_thinking else '\n<think></think>') -}}{%- endif -%}"""
DEFAULT_SYSTEM = """{%- if messages[0].role != 'system' -%}{{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' -}}{%- endif -%}
{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""

SPECIAL = [
    *(
        "<|begin|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<bos>",
        "<start_of_turn>",
        "<end_of_turn>",
    ),
    *("<s>", "</s>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "[gMASK]", "<|user|>", "<|assistant|>"),
]
TALK = [
    {"role": "user", "content": "Hi there"},
    {"role": "assistant", "content": "Hello you."},
    {"role": "user", "content": "Hello you. Sum?"},
    {"role": "assistant", "content": "Hello you. 4"},
]


def chat_of(template: str, thinking: bool = False, end: str | None = None) -> Chat:
    tokenizer = tiny.tiny_tokenizer(chat_template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *SPECIAL]})
    return Chat(tokenizer, thinking, (tokenizer.convert_tokens_to_ids(end),) if end else ())


def supervised(chat: Chat, ids: list[int], mask: list[bool]) -> list[str]:
    """The supervised stretches as text."""
    runs, previous = [], False
    for token, inside in zip(ids, mask, strict=True):
        if inside:
            text = chat.tokenizer.decode([token], clean_up_tokenization_spaces=False)
            runs[-1:] = [runs[-1] + text] if previous else [*runs[-1:], text]
        previous = inside
    return runs


@pytest.mark.parametrize(
    ("template", "end", "space"),
    [
        (tiny.CHATML, "<|im_end|>", ""),
        (QWEN3, "<|im_end|>", ""),
        (DEFAULT_SYSTEM, "<|im_end|>", ""),
        (LLAMA3, "<|eot_id|>", ""),
        (GEMMA, "<end_of_turn>", ""),
        (GEMMA4, "<turn|>", ""),
        (MISTRAL, "</s>", " "),
    ],
)
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("thinking", [True, False])
def test_exactly_the_answers_and_their_end_tokens_are_supervised_in_any_template(template, end, space, named, thinking):
    """Also where an answer repeats words of the prompt; ``named``: the end token is told, or found in the template."""
    chat = chat_of(template, thinking, end if named else None)
    ids, mask = chat.render(TALK)
    assert supervised(chat, ids, mask) == [f"{space}Hello you.{end}", f"{space}Hello you. 4{end}"]
    assert mask[-1], "nothing follows the last end-of-turn token"


@pytest.mark.parametrize("template", [tiny.CHATML, QWEN3, DEFAULT_SYSTEM, LLAMA3, GEMMA, GEMMA4, MISTRAL, GLM])
@pytest.mark.parametrize("thinking", [True, False])
def test_a_prompt_is_the_same_tokens_in_training_and_decoding(template, thinking):
    """Case 11."""
    chat = chat_of(template, thinking)
    for answer in (1, 3):
        prompt = chat.prompt_ids(TALK[:answer])
        ids, mask = chat.render(TALK[: answer + 1])
        assert ids[: len(prompt)] == prompt
        assert all(mask[len(prompt) :])
        text = chat.tokenizer.apply_chat_template(
            TALK[:answer], tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        assert chat.tokenizer.decode(prompt, clean_up_tokenization_spaces=False) == text


def test_an_empty_thought_section_that_the_template_puts_there_is_read_but_not_supervised():
    """Gemma 4 leaves it out of finished turns, yet the target reads it whenever it answers."""
    chat = chat_of(GEMMA4)
    ids, mask = chat.render(TALK[:2])
    text = chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert text.endswith("<|turn>model\n<|channel>thought\n<channel|>Hello you.<turn|>")
    assert supervised(chat, ids, mask) == ["Hello you.<turn|>"]


THOUGHT = "<think>\nTwo and two.\n</think>\n\nIt is 4."


def test_thinking_mode_supervises_the_thinking_section_of_the_last_answer():
    """Case 11: the target wrote it; in earlier turns the template drops it, and the mask with it."""
    chat = chat_of(QWEN3, thinking=True)
    talk = [TALK[0], {"role": "assistant", "content": THOUGHT}, TALK[2], {"role": "assistant", "content": THOUGHT}]
    ids, mask = chat.render(talk)
    assert supervised(chat, ids, mask) == ["It is 4.<|im_end|>", f"{THOUGHT}<|im_end|>"]


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "assistant", "content": THOUGHT},
        {"role": "assistant", "content": "It is 4.", "reasoning_content": "Two and two."},
    ],
)
def test_non_thinking_mode_leaves_the_thinking_section_out(answer):
    """Case 11: the answer follows the empty section that the target reads in this mode."""
    chat = chat_of(QWEN3, thinking=False)
    ids, mask = chat.render([TALK[0], answer])
    text = chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nIt is 4.<|im_end|>")
    assert supervised(chat, ids, mask) == ["It is 4.<|im_end|>"]


def test_thinking_mode_writes_a_reasoning_field_as_the_template_does():
    chat = chat_of(QWEN3, thinking=True)
    answer = {"role": "assistant", "content": "It is 4.", "reasoning_content": "Two and two."}
    assert supervised(chat, *chat.render([TALK[0], answer])) == [f"{THOUGHT}<|im_end|>"]


def test_tool_calls_of_an_answer_are_supervised():
    chat = chat_of(QWEN3)
    answer = {"role": "assistant", "content": "Look:", "tool_calls": [{"function": {"name": "sum", "arguments": {}}}]}
    assert supervised(chat, *chat.render([TALK[0], answer])) == ["Look:\n<tool_call>sum</tool_call><|im_end|>"]


@pytest.mark.parametrize("template", [tiny.CHATML, LLAMA3, GEMMA, MISTRAL, QWEN3, GEMMA4, GLM])
def test_no_end_token_follows_an_answer_that_was_cut_off(template):
    chat = chat_of(template)
    whole, _ = chat.render(TALK)
    ids, mask = chat.render(TALK, finished=False)
    assert ids == whole[: len(ids)]
    assert supervised(chat, ids, mask)[-1].endswith("Hello you. 4")
    assert mask[-1]


def test_a_turn_that_the_template_does_not_close_has_no_end_token():
    """GLM ends an answer with the opening of the next turn: supervised only if it is known to be a stop token."""
    chat = chat_of(GLM)
    assert supervised(chat, *chat.render(TALK)) == ["\nHello you.", "\nHello you. 4"]
    told = chat_of(GLM, end="<|user|>")
    assert supervised(told, *told.render(TALK)) == ["\nHello you.<|user|>", "\nHello you. 4"]


def test_spaces_that_the_target_wrote_stay_in_its_answer():
    """Templates trim answers of earlier turns; the last one is what was generated."""
    chat = chat_of(LLAMA3)
    ids, mask = chat.render([TALK[0], {"role": "assistant", "content": "\n\nHello. \n"}])
    assert supervised(chat, ids, mask) == ["\n\nHello. \n<|eot_id|>"]


def test_generated_tokens_come_back_as_the_same_tokens_in_training():
    chat = chat_of(tiny.CHATML)
    prompt = chat.prompt_ids(TALK[:1])
    for text, end, finished in ((" Hello. ", "<|im_end|>", True), ("Hel", "", False)):
        written = chat.tokenizer(text + end, add_special_tokens=False)["input_ids"]
        answer = chat.answer_text(prompt, written)
        assert answer == (text, finished)
        ids, _ = chat.render([TALK[0], {"role": "assistant", "content": answer[0]}], finished=answer[1])
        assert ids == prompt + written


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE that merges two newlines into one token, so that a prompt's last newline may melt into the answer's first."""
    letters = ["\n", " ", *"abcdefghijklmnopqrstuvwxyzH.:"]
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<end>", *letters, "\n\n"])}
    core = Tokenizer(models.BPE(vocabulary, [("\n", "\n")], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(r" ", behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<end>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ':\n' + m.content + '<end>' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:\n{% endif %}"
    )
    return tokenizer


def test_a_token_never_spans_the_border_between_prompt_and_answer():
    chat = Chat(merging_tokenizer())
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\nb"}]
    prompt = chat.prompt_ids(talk[:1])
    ids, mask = chat.render(talk)
    assert ids[: len(prompt)] == prompt and mask == [False] * len(prompt) + [True] * 3
    assert chat.tokenizer.convert_ids_to_tokens(ids[len(prompt) :]) == ["\n", "b", "<end>"]
    assert "\n\n" in chat.tokenizer.tokenize("assistant:\n\nb"), "tokenised in one go, the two newlines would merge"


def test_what_follows_the_last_answer_is_left_out():
    chat = chat_of(tiny.CHATML)
    assert chat.render([*TALK[:2], TALK[2]]) == chat.render(TALK[:2])


def test_a_tokenizer_without_template_is_refused():
    with pytest.raises(ValueError, match="no chat template"):
        Chat(tiny.tiny_tokenizer(chat_template=None))


def test_a_conversation_without_answer_is_refused():
    with pytest.raises(ValueError, match="no assistant turn"):
        chat_of(tiny.CHATML).render(TALK[:1])


def test_the_template_hash_tells_modes_and_templates_apart():
    hashes = {chat_of(template, mode).template_hash for template in (tiny.CHATML, LLAMA3) for mode in (True, False)}
    assert len(hashes) == 4
