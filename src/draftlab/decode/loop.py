"""The speculative loop over a batch: propose, verify, commit; rows of unequal progress side by side (method 1).

    prompt read -> first token (from p_t) -> rounds of [draft G tokens, verify G+1 slots in one pass, commit 1..G+1]

A row's last committed token is its anchor; it has not gone through the target yet. Finished rows leave, waiting prompts
take their place, so the batch stays full. The same loop without a drafter (G = 0) is plain decoding, so both sides of a
speed comparison pay for the same cache and the same batching. A round cut by a stop token counts positions up to that
token; a round cut by ``max_new_tokens`` counts whole and its output is truncated. A row without a draft (see
:mod:`draftlab.decode.exits`) sends its anchor alone. The loop knows nothing of text.

    settings = DecodeSettings(max_new_tokens=128, sampling=Sampling(0.7), eos_token_ids=(2,))
    generations = speculative_decode(target, drafter, prompts, settings, torch.Generator().manual_seed(0))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftlab.decode.budget import Budget
from draftlab.decode.cache import RowCache, grouped_attention, survivors
from draftlab.decode.clock import Clock
from draftlab.decode.context import NewContext
from draftlab.decode.exits import Habit
from draftlab.decode.flat_round import flat_round
from draftlab.decode.generation import Generation, Round
from draftlab.decode.settings import DecodeSettings
from draftlab.decode.verify import verify
from draftlab.sampling import probs, sample
from draftlab.types import Proposal, Verdict


@dataclass
class _Row:
    """A prompt being decoded."""

    request: int
    prompt: list[int]
    generation: Generation
    habit: Habit = field(default_factory=Habit)

    @property
    def anchor(self) -> int:
        return self.generation.tokens[-1]

    @property
    def anchor_position(self) -> int:
        return len(self.prompt) + len(self.generation.tokens) - 1

    @property
    def running(self) -> bool:
        return self.generation.finish_reason is None


def speculative_decode(
    target,
    drafter,
    prompts: Sequence[list[int]],
    settings: DecodeSettings,
    generator: torch.Generator | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> list[Generation]:
    """Decode ``prompts`` (token ids) with ``drafter``; the output law is exactly the target's.

    ``on_round(finished, committed)`` is called after every round with the prompts finished and tokens committed in it.

    Raises:
        ValueError: an empty prompt, or one that with its answer exceeds the target's context.
    """
    return Decoder(target, drafter, settings).run(prompts, generator, on_round)


def plain_decode(target, prompts, settings, generator=None, on_round=None) -> list[Generation]:
    """Decode without a drafter, one token a row and pass, through the loop and cache of :func:`speculative_decode`."""
    return Decoder(target, None, settings).run(prompts, generator, on_round)


class Decoder:
    """State of the loop: rows, caches, and a ``clock`` of seconds spent on "prefill", "draft", "schedule" and "verify".

    Args:
        target: a FrozenTarget (``forward``, ``logits``, ``spec``).
        drafter: a Drafter with its target's ends attached; None for plain decoding.
        settings: see :class:`DecodeSettings`.
        budget: chooses how much of each block is verified; None: all. It always drafts: rounds are what is counted.

    Raises:
        ValueError: a budget that the drafter does not fit, or settings that leave out what it cannot leave out.
    """

    def __init__(self, target, drafter, settings: DecodeSettings, budget: Budget | None = None):
        if drafter is not None and settings.exit is not None:
            settings.exit.check(drafter)
        self.target, self.drafter, self.settings = target, drafter, settings
        self.budget = budget.check(drafter) if budget is not None and drafter is not None else None
        self.clock = Clock()
        self.num_drafted = drafter.block.block_size if drafter is not None else 0
        self.device = target.device
        self.stop_tokens = frozenset(settings.eos_token_ids)

    @torch.inference_mode()
    def run(self, prompts: Sequence[list[int]], generator=None, on_round=None) -> list[Generation]:
        """Decode all ``prompts``; results stand in their order."""
        max_length = self._check(prompts)
        results = [Generation() for _ in prompts]
        waiting = deque(_Row(i, list(prompt), results[i]) for i, prompt in enumerate(prompts))
        num_rows = min(self.settings.batch_size, len(prompts))
        self.rows: list[_Row | None] = [None] * num_rows
        self.cache, self.generator = RowCache(num_rows), generator
        self.draft_cache = self._start_drafter(num_rows, max_length)
        self.context: NewContext | None = None
        if self.budget is not None:
            self.budget.reset()
        with grouped_attention(self.device):
            while True:
                committed = self._join(waiting)
                finished = self._leave(keep_places=bool(waiting))
                running = bool(waiting or self.rows)
                if running and all(row is not None for row in self.rows):
                    committed += self._round()
                if on_round is not None:
                    on_round(finished, committed)
                if not running:
                    return results

    def _check(self, prompts: Sequence[list[int]]) -> int:
        """Slots that the longest prompt may use; refuses prompts without tokens or beyond the target's context."""
        limit = self.target.spec.max_position
        longest = 0
        for index, prompt in enumerate(prompts):
            needed = len(prompt) + self.settings.max_new_tokens + self.num_drafted + 1
            if len(prompt) == 0:
                raise ValueError(f"prompt {index} has no tokens; drop it or render it with a chat template")
            if limit is not None and needed > limit:
                raise ValueError(
                    f"prompt {index} has {len(prompt)} tokens, may need {needed} positions with answer and draft, "
                    f"but the target has max_position {limit}; lower max_new_tokens or drop the prompt"
                )
            longest = max(longest, needed)
        return longest

    def _start_drafter(self, num_rows: int, max_length: int):
        if self.drafter is None or num_rows == 0:
            return None
        return self.drafter.start(num_rows, max_length, device=self.device)

    # Rows come and go

    def _join(self, waiting: deque[_Row]) -> int:
        """Read waiting prompts into free places, as many as one pass may hold; returns the tokens committed."""
        free = [place for place, row in enumerate(self.rows) if row is None]
        places: list[int] = []
        longest = 0
        while waiting and len(places) < len(free):
            longest = max(longest, len(waiting[0].prompt))
            if places and longest * (len(places) + 1) > self.settings.prefill_tokens:
                break
            place = free[len(places)]
            self.rows[place] = waiting.popleft()
            places.append(place)
        if places:
            with self.clock("prefill", self.device):
                self._prefill(places)
        return len(places)

    def _prefill(self, places: list[int]) -> None:
        """Run the prompts at ``places`` through the target and commit each one's first token."""
        rows = [self.rows[place] for place in places]
        lengths = torch.tensor([len(row.prompt) for row in rows], device=self.device)
        width = int(lengths.max())
        ids = torch.tensor([row.prompt + [0] * (width - len(row.prompt)) for row in rows], device=self.device)
        index = torch.tensor(places, device=self.device)
        mask = self.cache.place_prompts(index, width)
        output = self.target.forward(ids, self.cache.positions, mask, self.cache)
        last = output.last_hidden[torch.arange(len(rows), device=self.device), lengths - 1]
        tokens = sample(probs(self.target.logits(last), self.settings.sampling), self.generator)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            self._commit(row, [token])
        if self.drafter is not None:
            new = NewContext.of(ids, self.cache.positions, lengths, output)
            self.context = new.placed(self.context, index, len(self.rows))

    def _leave(self, keep_places: bool) -> int:
        """Free the places of finished rows; with nobody waiting (``keep_places`` false) close the gaps as well."""
        finished = sum(row is not None and not row.running for row in self.rows)
        self.rows = [row if row is not None and row.running else None for row in self.rows]
        if not keep_places and None in self.rows:
            keep = survivors([row is not None for row in self.rows])
            self.rows = [self.rows[place] for place in keep]
            self.cache.select(keep)
            if self.drafter is not None and keep:
                index = torch.tensor(keep, device=self.device, dtype=torch.int64)
                self.draft_cache.select(index)
                self.context = self.context.select(index)
        return finished

    # One round

    def _round(self) -> int:
        """Draft, verify and commit one block of every row; returns the tokens committed."""
        anchor = torch.tensor([row.anchor for row in self.rows], device=self.device)
        anchor_position = torch.tensor([row.anchor_position for row in self.rows], device=self.device)
        with self.clock("draft", self.device):
            proposal = self._propose(anchor, anchor_position)
        lengths = self._lengths(proposal)
        with self.clock("verify", self.device):
            verdict = self._verify(anchor, anchor_position, proposal, lengths)
            accepted, next_token = verdict.accepted.tolist(), verdict.next_token.tolist()
        drafted, rows = proposal.tokens.tolist(), len(self.rows)
        told = (proposal.confidence, proposal.draft_top, verdict.expected)
        told = [[()] * rows if values is None else values.tolist() for values in told]
        depth = [None] * rows if proposal.depth is None else proposal.depth.tolist()
        return sum(
            self._count(row, [*drafted[i][: accepted[i]], next_token[i]], lengths[i], [v[i] for v in told], depth[i])
            for i, row in enumerate(self.rows)
        )

    def _lengths(self, proposal: Proposal) -> list[int]:
        """Drafted tokens [B] to verify: what the budget chooses of those that a row has."""
        rows = len(self.rows)
        drafted = [self.num_drafted] * rows if proposal.lengths is None else proposal.lengths.tolist()
        if self.budget is None:
            return drafted
        with self.clock("schedule", self.device):
            chosen = self.budget(proposal).tolist()
        return list(map(min, chosen, drafted))

    def _verify(self, anchor: Tensor, anchor_position: Tensor, proposal: Proposal, lengths: list[int]) -> Verdict:
        """One pass of the target over anchors and chosen prefixes; remembers what the drafter has not seen."""
        if self.budget is not None or proposal.lengths is not None:
            draw = (self.settings.sampling, self.generator)
            result = flat_round(self.target, self.cache, (anchor, anchor_position), proposal, lengths, draw)
            self.context = result.context()
            return result.verdict
        ids = torch.cat([anchor.unsqueeze(-1), proposal.tokens], dim=-1)
        positions = anchor_position.unsqueeze(-1) + torch.arange(ids.shape[1], device=self.device)
        mask = self.cache.place(positions)
        output = self.target.forward(ids, positions, mask, self.cache)
        logits = self.target.logits(output.last_hidden)
        verdict = verify(proposal, logits, self.settings.sampling, self.generator)
        if self.drafter is not None:
            self.context = NewContext.of(ids, positions, verdict.accepted + 1, output)
        return verdict

    def _propose(self, anchor: Tensor, anchor_position: Tensor) -> Proposal:
        if self.drafter is None:
            empty = torch.zeros(len(self.rows), 0, dtype=torch.int64, device=self.device)
            return Proposal(empty, torch.zeros(len(self.rows), 0, 1, device=self.device), None, None)
        context, policy = self.context.at(anchor, anchor_position), self.settings.exit
        habits = [row.habit for row in self.rows]
        options = {} if policy is None else {"leaving_out": policy.leave_out(habits, self.device)}
        return self.drafter.propose(context, self.draft_cache, self.settings.sampling, self.generator, **options)

    def _count(self, row: _Row, committed: list[int], proposed: int, told: Sequence[Sequence[float]], depth) -> int:
        """Record the round of ``row`` and commit its tokens; returns how many were committed to the output.

        ``told`` are the confidence, draft_top and expected of its slots, of which the first ``proposed`` were verified.
        """
        accepted = len(committed) - 1
        row.habit.note(self.settings.exit, proposed, accepted)
        stop = next((k for k, token in enumerate(committed) if token in self.stop_tokens), None)
        if stop is not None and stop < accepted:  # the stop token itself was drafted: nothing after it counts
            committed = committed[: stop + 1]
            accepted = proposed = stop + 1
        if self.drafter is not None:
            slots = (tuple(values[:proposed]) for values in told)
            row.generation.rounds.append(Round(proposed, accepted, len(committed), *slots, depth))
        return self._commit(row, committed)

    def _commit(self, row: _Row, tokens: list[int]) -> int:
        """Append ``tokens``, of which only the last can be a stop token, as far as ``max_new_tokens`` allows."""
        generation = row.generation
        tokens = tokens[: self.settings.max_new_tokens - len(generation.tokens)]
        generation.tokens.extend(tokens)
        if generation.tokens[-1] in self.stop_tokens:
            generation.finish_reason = "stop"
        elif len(generation.tokens) == self.settings.max_new_tokens:
            generation.finish_reason = "length"
        return len(tokens)
