"""Chat rendering with the tokenizer's own template, and the exact loss mask of the assistant's turns for any template.

No list of headers is kept. Rendering a conversation again with one answer replaced by a mark, A + mark + B, says where
that answer stands in any template. A conversation that ends with an answer is

    P (messages before the answer, with the generation prompt)  +  answer as written  +  end-of-turn token, if written

so what comes before the answer is by construction what the target reads when it writes one (case 11), also where a
template renders finished turns otherwise (drops thinking, leaves out an empty thought section). Supervised are the
answer and its end-of-turn token, and inside P the earlier answers. Text is tokenised piece by piece at these borders,
so ``prompt_ids`` is exactly a prefix of ``render``. Special-token strings inside messages stay text (literal.py). The module
knows nothing of files or batches.

    >>> chat = Chat(tokenizer, thinking=False)
    >>> ids, loss_mask = chat.render([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}])
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from draftlab.data.files import digest
from draftlab.data.literal import Literal, special_tokens
from draftlab.data.prompts import text_of

Message = dict[str, Any]

_MARK = "TurnMark7Q3xZ"
_REASONING_KEYS = frozenset({"reasoning_content", "reasoning", "thinking"})
_WRITTEN_KEYS = _REASONING_KEYS | {"tool_calls"}
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


@dataclass(frozen=True)
class Piece:
    """A stretch of rendered text that is tokenised on its own; ``supervised`` if the target wrote it."""

    text: str
    supervised: bool


class Chat:
    """Renders conversations of one tokenizer in one thinking mode.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        thinking: passed to the template as ``enable_thinking``; when False, reasoning sections of answers are left out.
        end_token_ids: tokens at which the target stops; by default the tokenizer's eos and what closes a rendered turn.

    Raises:
        ValueError: the tokenizer has no chat template, or one that does not render a question and its answer.
    """

    def __init__(self, tokenizer: Any, thinking: bool = False, end_token_ids: Sequence[int] = ()) -> None:
        if not getattr(tokenizer, "chat_template", None):
            name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise ValueError(
                f"the tokenizer of {name} has no chat template, so conversations cannot be rendered; use an "
                "instruction-tuned target, or add a chat_template.jinja to its folder"
            )
        self.tokenizer = tokenizer
        self.thinking = thinking
        self._end_token_ids = frozenset(end_token_ids) or frozenset({tokenizer.eos_token_id} - {None})
        try:
            self._reasoning_end = self._find_reasoning_end()
            self._closers = self._find_closers(end_token_ids)
            self._literal = Literal(tokenizer, self._find_tags())
        except TemplateError as error:  # also where it reaches for what a template has no business with
            raise ValueError(f"the chat template cannot render a question and its answer: {error}; mend it") from None

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens at which the target ends an answer."""
        return self._end_token_ids

    @property
    def template_hash(self) -> str:
        """Digest of the template and the thinking mode: equal digests render equally."""
        return digest({"template": self.tokenizer.chat_template, "thinking": self.thinking})

    @property
    def tokenizer_hash(self) -> str:
        """Digest of the vocabulary and its special tokens."""
        special = sorted(map(str, self.tokenizer.all_special_tokens))
        return digest({"vocabulary": self.tokenizer.get_vocab(), "special": special})

    def prompt_ids(self, messages: Sequence[Message], tools: list | None = None) -> list[int]:
        """Token ids of ``messages`` followed by the generation prompt: what the target reads before it answers."""
        return self._tokenise(self._prompt(self._prepared(messages), self._literal.hide(tools)))[0]

    def render(
        self, messages: Sequence[Message], finished: bool = True, tools: list | None = None
    ) -> tuple[list[int], list[bool]]:
        """Token ids and loss mask of a conversation up to the end of its last answer; supervised are the answers.

        Args:
            messages: what comes after the last answer is left out.
            finished: False if the last answer was cut off: no end-of-turn token follows it.
            tools: passed to the template.

        Returns:
            ``ids`` and ``loss_mask``, both of length T.

        Raises:
            ValueError: no answer, or the template rewrites one so that its place cannot be told.
        """
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=None)
        if last is None:
            raise ValueError("the conversation has no assistant turn, so nothing in it is supervised")
        messages, tools = self._prepared(messages[: last + 1]), self._literal.hide(tools)
        prompt = self._prompt(messages[:last], tools)
        return self._tokenise([*prompt, Piece(self._written(messages, prompt, finished, tools), True)])

    def answer_text(self, prompt_ids: Sequence[int], tokens: Sequence[int]) -> tuple[str, bool]:
        """Text of generated tokens without their end token, and whether the target ended the answer itself.

        It is decoded after the end of its prompt, since tokenizers drop a space at the start of a text.
        """
        finished = len(tokens) > 0 and int(tokens[-1]) in self._end_token_ids
        body, context = list(tokens[:-1] if finished else tokens), list(prompt_ids[-4:])
        before, whole = self._decode(context), self._decode(context + body)
        text = whole[len(before) :] if whole.startswith(before) else self._decode(body)
        return (text if finished else text.rstrip("\ufffd")), finished  # a cut may fall inside a character

    def has_reasoning(self, text: str) -> bool:
        """Whether an answer closes a reasoning section with the tag of this template; never where it has none."""
        return self._reasoning_end is not None and self._reasoning_end in text

    def _prompt(self, messages: list[Message], tools: list | None) -> list[Piece]:
        """``messages`` with the generation prompt, cut at the borders of every earlier answer."""
        text = self._text(messages, tools, generation_prompt=True)
        pieces, done = [], 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, after = self._around(messages, index, tools, generation_prompt=True)
            written_from = self._text(messages[:index], tools, generation_prompt=True)
            start = _start(text, written_from, before)
            if start is None or start < done or not text.endswith(after):
                raise ValueError(f"the chat template rewrites assistant turn {index}, so it cannot be supervised")
            end = max(len(text) - len(after), start)
            stop = self._closed_at(text, end)
            pieces += [Piece(text[done:start], False), Piece(text[start:stop], True)]
            done = stop
        return [*pieces, Piece(text[done:], False)]

    def _written(self, messages: list[Message], prompt: list[Piece], finished: bool, tools: list | None) -> str:
        """What the target wrote after ``prompt``: the last answer, with its end-of-turn token if ``finished``."""
        answer, last = messages[-1], len(messages) - 1
        text = self._text(messages, tools, generation_prompt=False)
        before, after = self._around(messages, last, tools, generation_prompt=False)
        read = "".join(piece.text for piece in prompt)
        end = len(text) - len(after)
        if answer.keys() & _WRITTEN_KEYS:  # only the template knows how reasoning and tool calls are written
            if not text.startswith(read) or not text.endswith(after):
                raise ValueError("the chat template rewrites the last answer, so it cannot be supervised")
            written = text[len(read) : end]
        else:
            added = before[len(read) :] if before.startswith(read) else ""
            space = added if added.isspace() and not answer["content"][:1].isspace() else ""
            written = space + answer["content"]
        return written + (after[: self._closed_at(after, 0)] if finished else "")

    def _around(
        self, messages: list[Message], index: int, tools: list | None, generation_prompt: bool
    ) -> tuple[str, str]:
        """The rendering before and after the content of assistant turn ``index``."""
        mark = _MARK
        while any(mark in str(message) for message in messages):
            mark += _MARK[-1]
        marked = [*messages[:index], {"role": "assistant", "content": mark}, *messages[index + 1 :]]
        before, found, after = self._text(marked, tools, generation_prompt).partition(mark)
        if not found:
            raise ValueError(f"the chat template does not show assistant turn {index}, so it cannot be supervised")
        return before, after

    def _text(self, messages: Sequence[Message], tools: list | None, generation_prompt: bool) -> str:
        if not messages:
            raise ValueError("the conversation begins with an answer, so nothing was asked")
        return self.tokenizer.apply_chat_template(
            list(messages),
            tools=tools,
            tokenize=False,
            add_generation_prompt=generation_prompt,
            enable_thinking=self.thinking,
        )

    def _prepared(self, messages: Sequence[Message]) -> list[Message]:
        """Messages with plain text content, special tokens hidden, and in non-thinking mode without the assistant's reasoning."""
        prepared = []
        for message in messages:
            message = {**message, "content": _plain(message.get("content"))}
            if message["role"] == "assistant" and not self.thinking:
                message = {key: value for key, value in message.items() if key not in _REASONING_KEYS}
                if self._reasoning_end and self._reasoning_end in message["content"]:
                    message["content"] = message["content"].rpartition(self._reasoning_end)[2].lstrip()
            answer = message["role"] == "assistant"
            told = {key: value for key, value in message.items() if value is not None and key != "role"}
            prepared.append({"role": message["role"], **self._literal.hide(told, answer)})
        return prepared

    def _closed_at(self, text: str, end: int) -> int:
        """Offset after the end-of-turn token that follows ``end`` in ``text``; ``end`` itself if none follows."""
        closing = self._closers.match(text, end) if self._closers else None
        return closing.end() if closing else end

    def _tokenise(self, pieces: Sequence[Piece]) -> tuple[list[int], list[bool]]:
        """Token ids and mask of ``pieces``; a piece never changes the tokens of the pieces before it.

        A piece is tokenised as a continuation where that leaves the earlier tokens alone, and by itself otherwise.
        """
        ids: list[int] = []
        mask: list[bool] = []
        run_text, run_ids = "", []  # since the last place where a piece had to be tokenised by itself
        for piece in pieces:
            if not piece.text:
                continue
            whole = self._literal.encode(run_text + piece.text)
            if whole[: len(run_ids)] == run_ids:
                new = whole[len(run_ids) :]
                run_text, run_ids = run_text + piece.text, whole
            else:
                new = self._literal.encode(piece.text)
                run_text, run_ids = piece.text, new
            ids += new
            mask += [piece.supervised] * len(new)
        return ids, mask

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _find_reasoning_end(self) -> str | None:
        """The tag that ends a reasoning section: the one with which the template switches thinking off, if it does."""
        probe = [{"role": "user", "content": _MARK}]
        on, off = (
            self.tokenizer.apply_chat_template(
                probe, tokenize=False, add_generation_prompt=True, enable_thinking=enabled
            ).rpartition(_MARK)[2]
            for enabled in (True, False)
        )
        tags = _TAG.findall(off)
        return tags[-1] if tags and tags[-1] not in on and off.rstrip().endswith(tags[-1]) else None

    def _find_closers(self, end_token_ids: Sequence[int]) -> re.Pattern | None:
        """Pattern of the end-of-turn token, with white space that the template puts before it."""
        tokens = {self.tokenizer.convert_ids_to_tokens(int(token)) for token in end_token_ids}
        tokens |= {self.tokenizer.eos_token} if self.tokenizer.eos_token else set()
        if not end_token_ids:
            tokens |= self._closing_token()
        alternatives = "|".join(re.escape(token) for token in sorted(tokens - {None}, key=len, reverse=True))
        return re.compile(rf"\s*(?:{alternatives})") if alternatives else None

    def _closing_token(self) -> set[str]:
        """The special token with which the template closes a conversation that ends with an answer."""
        probe = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": _MARK}]
        after = self._text(probe, None, generation_prompt=False).partition(_MARK)[2].lstrip()
        matches = [token for token in special_tokens(self.tokenizer) if after.startswith(token)]
        return {max(matches, key=len)} if matches else set()

    def _find_tags(self) -> set[str]:
        """Special tokens that an answer may hold: those of the template's source that neither open nor close a turn."""
        probe = [{"role": "user", "content": _MARK}]
        turn = self.tokenizer.apply_chat_template(
            probe, tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
        source = str(self.tokenizer.chat_template)
        tags = {token for token in special_tokens(self.tokenizer) if token in source and token not in turn}
        return {token for token in tags if not (self._closers and self._closers.fullmatch(token))}


def _start(text: str, written_from: str, before: str) -> int | None:
    """Where an earlier answer starts in ``text``: after its own prompt and what the template itself puts there."""
    shown = text.startswith(before)
    if not text.startswith(written_from):
        return len(before) if shown else None
    template_adds = before[len(written_from) :].strip() if shown and before.startswith(written_from) else ""
    return len(before) if template_adds else len(written_from)


def _plain(content: Any) -> str:
    """Text of a message's content; parts of type text are joined, None is empty."""
    return content if content is not None and not isinstance(content, list) else text_of(content)
