"""The seeded prompt generator: templates and fillers for math, code and chat, and a split that is disjoint by
construction.

    builtin_prompts(3000, seed=0)[:3]              # one of math, one of code, one of chat; any prefix is balanced

A prompt's *family* is its text with numbers taken out. A hash of the family alone decides whether it is held out, so no
seed can put a held-out prompt, or one that differs from it in numbers only, into a training set. Prompts come in a
fixed order for a seed: the first n of m prompts are the n prompts. The module knows nothing of tokenizers or models.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator

from draftlab.data.builtin import chat, code, maths
from draftlab.data.builtin.templates import Domain, fill

DOMAINS: dict[str, Domain] = {"math": maths.DOMAIN, "code": code.DOMAIN, "chat": chat.DOMAIN}
SPLITS = ("train", "heldout")
HELDOUT_SHARE = 0.1
_PATIENCE = 4000  # draws in a row without a new prompt after which a domain counts as used up


def family(text: str) -> str:
    """A prompt's text without its numbers, the unit of the split."""
    return re.sub(r"\d+(?:[.,/:]\d+)*", "#", text).lower()


def is_heldout(text: str) -> bool:
    """True for the families that are never trained on: about one in ten, by hash."""
    first_bytes = hashlib.sha256(family(text).encode("utf-8")).digest()[:4]
    return int.from_bytes(first_bytes, "big") < HELDOUT_SHARE * 2**32


def texts(domain: str, seed: int, split: str) -> Iterator[str]:
    """Distinct prompts of one domain and split in the fixed order of ``seed``, until no new ones are found."""
    rng = random.Random(f"{domain}/{seed}")
    spec, seen, misses = DOMAINS[domain], set(), 0
    while misses < _PATIENCE:
        text = fill(spec, rng)
        if text in seen or is_heldout(text) != (split == "heldout"):
            misses += 1
            continue
        misses = 0
        seen.add(text)
        yield text
