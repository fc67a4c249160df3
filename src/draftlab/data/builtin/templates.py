"""Templates with slots: ``«name»`` draws from a pool, ``«a:2..9»`` a number, ``«=a*b»`` computes, ``«!b:2..9»`` is
silent.

A slot named twice has the same value in both places; ``«name»`` and ``«name2»`` are two different draws of one pool.
The module knows nothing of the domains.

    >>> fill(Domain((Family(1, ("«a:2..2» and «a» make «=a+a»",)),), {}), random.Random(0))
    '2 and 2 make 4'
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

_SLOT = re.compile(r"«(!?)([^«»]+)»")
_NUMBER = re.compile(r"(\w+):(\d+)\.\.(\d+)(?:/(\d+))?")


@dataclass(frozen=True)
class Family:
    """Templates of one kind, drawn with a common weight; ``endings`` are appended with probability one half."""

    weight: float
    templates: tuple[str, ...]
    endings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Domain:
    """Families of templates and the pools that their slots draw from."""

    families: tuple[Family, ...]
    pools: dict[str, tuple[str, ...]] = field(default_factory=dict)


def pool(text: str) -> tuple[str, ...]:
    """Fillers from a block of text in which `` | `` stands between them; line breaks are spaces."""
    return tuple(" ".join(text.split()).split(" | "))


def fill(domain: Domain, rng: random.Random) -> str:
    """One prompt: a family by weight, one of its templates, every slot filled."""
    (kind,) = rng.choices(domain.families, weights=[family.weight for family in domain.families])
    text = rng.choice(kind.templates)
    if kind.endings and rng.random() < 0.5:
        text += rng.choice(kind.endings)
    return _fill_slots(text, domain.pools, rng)


def _fill_slots(text: str, pools: dict[str, tuple[str, ...]], rng: random.Random) -> str:
    values: dict[str, str | int] = {}
    for _ in range(4):  # a filler may itself hold slots
        for _silent, slot in _SLOT.findall(text):
            _draw(slot, values, pools, rng, text)
        text = _SLOT.sub(lambda match: "" if match[1] else _show(match[2], values), text)
        if not _SLOT.search(text):
            break
    return text[:1].upper() + text[1:]


def _draw(slot: str, values: dict, pools: dict[str, tuple[str, ...]], rng: random.Random, text: str) -> None:
    """Give ``slot`` a value unless it has one or is computed from others."""
    number = _NUMBER.fullmatch(slot)
    if number:
        step = int(number[4] or 1)
        values.setdefault(number[1], rng.randrange(int(number[2]), int(number[3]) + 1, step))
    elif not slot.startswith("=") and slot not in values:
        pool = slot.rstrip("0123456789")
        used = {value for name, value in values.items() if name.rstrip("0123456789") == pool}
        values[slot] = rng.choice([value for value in pools[pool] if value not in used] or list(pools[pool]))


def _show(slot: str, values: dict) -> str:
    if slot.startswith("="):
        names = {name: value for name, value in values.items() if isinstance(value, int)}
        return str(eval(slot[1:], {"__builtins__": {}}, names))  # arithmetic of our own templates, never of input
    return str(values[slot.partition(":")[0]])
