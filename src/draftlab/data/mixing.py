"""A mix of several sources of prompts by weight: every prefix has the shares of the whole.

Source i with weight w_i gives its k-th prompt (k from 0) at the time (k + 1/2) / w_i, and prompts are taken in the order
of their times. So a prefix of n prompts holds about n · w_i / Σ w of source i, and a larger count only adds to the end,
as long as the sources stay the same. Each source is shuffled first, by a seed of its own. A source that runs dry leaves
the mix and the others go on by their weights: nothing is asked twice. A prompt that the mix holds already
(``prompts.question``) is passed over and counted. The module knows nothing of what sources are.

    PromptMix({"math": Source(0.7, maths), "chat": Source(0.3, chats)}, count=1000)()    # a list of Prompt
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from draftlab.data.prompts import Prompt, question


@dataclass(frozen=True)
class Source:
    """One ingredient of a mix: ``prompts()`` gives its prompts, of which it contributes in proportion to ``weight``.

    Args:
        weight: any positive number; only the proportion to the others counts.
        prompts: gives the prompts.
        domain: for all prompts of this source; None keeps those that they have.
    """

    weight: float
    prompts: Callable[[], list[Prompt]]
    domain: str | None = None


@dataclass
class Taken:
    """What became of one source."""

    there: int
    used: int = 0
    repeated: int = 0
    dry: bool = False


class PromptMix:
    """Mixes prompts when called.

    Args:
        sources: by name; the ids of its prompts begin with it.
        count: prompts in all; None takes everything.
        seed: of the shuffling.
        unique: pass over prompts that the mix holds already.

    Raises:
        ValueError: no source, a weight that is not a positive number, or a count below 1.
    """

    def __init__(
        self, sources: Mapping[str, Source], count: int | None = None, seed: int = 0, unique: bool = True
    ) -> None:
        if not sources:
            raise ValueError("prompts.sources is empty: expected at least one source with weight and prompts")
        for name, source in sources.items():
            if not _is_positive(source.weight):
                raise ValueError(
                    f"prompts.sources.{name}.weight must be a positive number, got {source.weight!r}; "
                    f"to leave the source out, give ~data.prompts.sources.{name}"
                )
        if count is not None and (not isinstance(count, int) or count < 1):
            raise ValueError(f"prompts.count must be null or at least 1 and whole, got {count!r}")
        self.sources, self.count, self.seed, self.unique = dict(sources.items()), count, seed, unique

    def __call__(self) -> list[Prompt]:
        """The first ``count`` prompts of the mix, fewer if all sources run dry; prints the counts of every source."""
        parts = {name: self._part(name, source) for name, source in self.sources.items()}
        weights = [source.weight for source in self.sources.values()]
        mixed, taken = mix(list(parts.values()), weights, self.count, self.unique)
        print(_told(self.sources, taken, self.count), flush=True)
        return mixed

    def _part(self, name: str, source: Source) -> list[Prompt]:
        prompts = [
            replace(prompt, id=f"{name}/{prompt.id}", domain=source.domain or prompt.domain)
            for prompt in source.prompts()
        ]
        random.Random(f"{self.seed}/{name}").shuffle(prompts)
        return prompts


def mix(
    parts: Sequence[Sequence[Prompt]], weights: Sequence[float], count: int | None, unique: bool = True
) -> tuple[list[Prompt], list[Taken]]:
    """The first ``count`` prompts (all for None) of ``parts`` in their order, interleaved by weight, and the counts."""
    mixed: list[Prompt] = []
    taken = [Taken(len(part)) for part in parts]
    seen: set[str] = set()
    fresh = [_fresh(part, seen, counts, unique) for part, counts in zip(parts, taken, strict=True)]
    times = [(0.5 / weight, index) for index, weight in enumerate(weights)]
    heapq.heapify(times)
    while times and (count is None or len(mixed) < count):
        _, index = heapq.heappop(times)
        prompt = next(fresh[index], None)
        if prompt is None:
            taken[index].dry = True
            continue
        mixed.append(prompt)
        taken[index].used += 1
        heapq.heappush(times, ((taken[index].used + 0.5) / weights[index], index))
    return mixed, taken


def _is_positive(weight: object) -> bool:
    return isinstance(weight, (int, float)) and not isinstance(weight, bool) and 0 < weight < math.inf


def _fresh(part: Sequence[Prompt], seen: set[str], counts: Taken, unique: bool) -> Iterator[Prompt]:
    """The prompts of ``part`` that no source has given when their turn comes."""
    for prompt in part:
        if unique:
            key = question(prompt.messages)
            if key in seen:
                counts.repeated += 1
                continue
            seen.add(key)
        yield prompt


def _told(sources: Mapping[str, Source], taken: Sequence[Taken], count: int | None) -> str:
    used = sum(counts.used for counts in taken)
    total = sum(source.weight for source in sources.values())
    lines = [f"mix: {used:,} prompts" + (f" of {count:,} asked for" if count is not None and used < count else "")]
    for (name, source), counts in zip(sources.items(), taken, strict=True):
        line = f"  {name}: {counts.used:,} of {counts.there:,} ({counts.used / max(used, 1):.1%}, weight "
        line += f"{source.weight / total:.1%})"
        line += f"; {counts.repeated:,} repeated, passed over" if counts.repeated else ""
        if counts.dry and count is not None:
            line += "; ran dry, the others filled its share" if used == count else "; ran dry"
        lines.append(line)
    return "\n".join(lines)
