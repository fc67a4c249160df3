"""A drafter that needs no training, and a cache that checks what the decode loop hands over; for tests of decoding.

The law of a drafted token depends on the token before it and on its slot only, so tests know it by heart:

    drafter = ScriptedDrafter(torch.randn(3, 64, 64))      # logits [G, V, W]: slot, previous token -> law
"""

from __future__ import annotations

import torch

from draftlab.blocks import BlockSpec
from draftlab.sampling import probs, sample
from draftlab.types import Proposal


class ScriptedDrafter:
    """Drafts from ``table`` [G, V, W]; ``draft_ids`` [W] for a reduced draft vocabulary."""

    def __init__(self, table, draft_ids=None, confidence=None):
        self.table, self.draft_ids, self.confidence = table, draft_ids, confidence
        self.block = BlockSpec(block_size=len(table))
        self.caches: list[SeenContext] = []

    def start(self, batch_size, max_length, device="cpu", dtype=None):
        self.caches.append(SeenContext(batch_size))
        return self.caches[-1]

    def propose(self, context, cache, sampling, generator=None, num_tokens=None):
        cache.see(context)
        previous, tokens, laws = context.anchor, [], []
        for logits in self.table:
            law = probs(logits[previous], sampling)
            previous = sample(law, generator)
            if self.draft_ids is not None:
                previous = self.draft_ids[previous]
            tokens.append(previous)
            laws.append(law)
        tokens = torch.stack(tokens, dim=1)
        confidence = None if self.confidence is None else torch.full(tokens.shape, self.confidence)
        return Proposal(tokens, torch.stack(laws, dim=1), self.draft_ids, confidence)


class ForetellingDrafter(ScriptedDrafter):
    """Drafts token by token what ``text`` (prompt and answer of the only row) says; past its end, token 0."""

    def __init__(self, text, block_size, vocab_size=64, confidence=None):
        super().__init__(torch.zeros(block_size, vocab_size, vocab_size), confidence=confidence)
        self.text = torch.tensor([*text, *[0] * block_size])

    def propose(self, context, cache, sampling, generator=None, num_tokens=None):
        slots = torch.arange(1, len(self.table) + 1)
        tokens = self.text[context.anchor_position.unsqueeze(-1) + slots]
        laws = torch.nn.functional.one_hot(tokens, self.table.shape[-1]).double()
        confidence = None if self.confidence is None else torch.full(tokens.shape, self.confidence)
        return Proposal(tokens, laws, None, confidence)


class SeenContext:
    """Keeps, for every row, the tokens and features it has been shown; refuses holes, repeats and a shown anchor."""

    def __init__(self, num_rows):
        self.rows = [([], []) for _ in range(num_rows)]
        self.finished = []
        self.sizes = []

    def see(self, context):
        assert len(context.anchor) == len(self.rows)
        self.sizes.append(len(self.rows))
        for row in range(len(self.rows)):
            mask = context.new_mask[row]
            positions = context.new_positions[row][mask].tolist()
            if positions[0] == 0 and self.rows[row][0]:  # a waiting prompt took the place
                self.finished.append(self.rows[row])
                self.rows[row] = ([], [])
            ids, features = self.rows[row]
            assert positions == list(range(len(ids), len(ids) + len(positions)))
            ids.extend(context.new_ids[row][mask].tolist())
            features.extend(context.new_features[row][mask])
            assert len(ids) == context.anchor_position[row]

    def select(self, rows):
        rows = rows.tolist()
        self.finished += [seen for row, seen in enumerate(self.rows) if row not in rows]
        self.rows = [self.rows[row] for row in rows]
