"""A request in the engine: its answer so far, its own random numbers, and what the drafter has not seen of it yet.

active = Active(request, generator, joined=0.5)
active.commit([17, 4], settings)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftlab.decode.settings import DecodeSettings
from draftlab.serving.load import Request
from draftlab.serving.records import Served
from draftlab.target.flat import Flat
from draftlab.types import Context

Chunk = tuple[Tensor, Tensor, Tensor, Tensor]  # ids [n], positions [n], features [n, M*D], last hidden states [n, D]


@dataclass
class Active:
    """A request that has joined; all times are seconds of the engine's clock."""

    request: Request
    generator: torch.Generator
    joined: float
    tokens: list[int] = field(default_factory=list)
    first_token: float = 0.0
    stopped: bool = False
    unseen: list[Chunk] = field(default_factory=list)

    @property
    def anchor_position(self) -> int:
        """Position of the last committed token."""
        return len(self.request.prompt) + len(self.tokens) - 1

    def commit(self, tokens: Sequence[int], settings: DecodeSettings) -> int:
        """Append ``tokens`` up to the first stop token and the length limit; returns how many."""
        tokens = list(tokens)[: settings.max_new_tokens - len(self.tokens)]
        stop = next((place for place, token in enumerate(tokens) if token in settings.eos_token_ids), None)
        tokens = tokens if stop is None else tokens[: stop + 1]
        self.tokens += tokens
        self.stopped = stop is not None or len(self.tokens) == settings.max_new_tokens
        return len(tokens)

    def served(self, now: float) -> Served:
        """The finished request's record."""
        request = self.request
        return Served(
            request.number, request.domain, request.arrival, self.joined, self.first_token, now, len(self.tokens)
        )


def unseen_context(rows: Sequence[Active], anchor: Tensor, anchor_position: Tensor) -> Context:
    """All that the drafter has not seen of ``rows``, right-padded; from here on it has."""
    chunks = [tuple(map(torch.cat, zip(*row.unseen, strict=True))) for row in rows]
    flat = Flat.of([len(chunk[0]) for chunk in chunks], anchor.device)
    ids, positions, features, last_hidden = (flat.pad(torch.cat(parts)) for parts in zip(*chunks, strict=True))
    for row in rows:
        row.unseen.clear()
    mask = torch.arange(flat.width, device=anchor.device) < torch.tensor(flat.lengths, device=anchor.device)[:, None]
    return Context(anchor, anchor_position, ids, positions, mask, features, last_hidden)
