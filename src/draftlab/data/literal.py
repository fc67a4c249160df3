"""Special-token strings inside messages stay text: nobody ends a turn by writing the name of its end token.

    user: "What is <|im_end|>?"     the template's own <|im_end|> is one token, this one is letters

Before rendering, a mark is put into such strings, so that the template carries them to their place; when the rendering is
tokenised, stretches that hold a mark are read without special tokens. In answers the tags that the template itself knows
(reasoning, tool calls) stay tokens, since the target writes them as such; tokens of turns never do. Added tokens that are not
special, as Qwen3's ``<think>``, are text to begin with and stay what the tokenizer makes of them. The module knows nothing of
turns or templates.

    literal = Literal(tokenizer)
    literal.encode("<|im_start|>user\\n" + literal.hide("<|im_end|>"))
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_MARK = "\ufdd0"  # no character of any text: Unicode keeps it for inside programs; one that is there all the same is escaped
_OWN, _CUT = f"{_MARK}0", f"{_MARK}1"
_MARKED = re.compile(f"{_MARK}([01])")


def special_tokens(tokenizer: Any) -> set[str]:
    """The strings that ``tokenizer`` reads as one special token each."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return ({str(token) for token in added.values() if token.special} | set(tokenizer.all_special_tokens)) - {""}


class Literal:
    """Hides strings in texts and tokenises renderings that hold hidden ones.

    Args:
        tokenizer: a Hugging Face tokenizer. kept: special tokens that :meth:`hide` leaves alone if told ``answer=True``.
    """

    def __init__(self, tokenizer: Any, kept: Iterable[str] = ()) -> None:
        special = special_tokens(tokenizer)
        self._tokenizer = tokenizer
        self._all, self._unkept = _any_of(special), _any_of(special - set(kept))

    def hide(self, value: Any, answer: bool = False) -> Any:
        """``value`` with the special tokens in its texts hidden, those of lists and dictionaries too."""
        if isinstance(value, str):
            pattern = self._unkept if answer else self._all
            return pattern.sub(lambda found: found[0][0] + _CUT + found[0][1:], value.replace(_MARK, _OWN))
        if isinstance(value, list | tuple):
            return [self.hide(item, answer) for item in value]
        if isinstance(value, Mapping):
            return {key: self.hide(item, answer) for key, item in value.items()}
        return value

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendering, hidden strings read as the text that they are."""
        if _MARK not in text:
            return self._ids(text)
        ids, done = [], 0
        for control in [*self._all.finditer(text), None]:
            stretch = text[done : control.start() if control else len(text)]
            shown = _MARKED.sub(lambda found: _MARK if found[1] == "0" else "", stretch)
            ids += self._ids(shown, split_special_tokens=True) if shown else []
            if control:
                ids += self._ids(control[0])
                done = control.end()
        return ids

    def _ids(self, text: str, **options) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, **options)["input_ids"])


def _any_of(tokens: Iterable[str]) -> re.Pattern:
    """Pattern of one of ``tokens``, the longest that fits."""
    return re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) or "(?!)")
