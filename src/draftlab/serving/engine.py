"""A continuous-batching engine for experiments, on a real target in this process (method 5).

    step = [read the prompts that join] -> draft for all -> choose prefixes -> ONE flattened pass over Σ (l_r + 1) tokens -> commit

Requests join and leave at any step; nothing is padded to the longest in the target's pass. Without a drafter, or while a
scheduler does not draft, l_r = 0: the same engine decodes plainly. Every request draws from a generator of its own, seeded by
its number, so at a fixed length its answer does not depend on its company; a scheduler that looks at all requests may verify
another length in other company, and then the answer's *law* stays the same (at temperature 0 the answer itself). The engine
knows nothing of text. Production means exporting to an engine that is made for it.

    steps, served = Engine(target, drafter, settings, budget).run(ClosedLoop(prompts, users=8), seconds=30.0)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from draftlab.data.files import digest
from draftlab.decode.budget import Budget
from draftlab.decode.cache import RowCache, grouped_attention, survivors
from draftlab.decode.flat_round import FlatResult, flat_round
from draftlab.decode.settings import DecodeSettings
from draftlab.sampling import RowDraws, probs, sample
from draftlab.serving.active import Active, unseen_context
from draftlab.serving.load import Load, Request
from draftlab.serving.records import Served, Step
from draftlab.types import Proposal


class Engine:
    """Serves requests step by step; ``answers`` keeps the tokens of finished ones by number.

    Args:
        target: a FrozenTarget. drafter: attached to its ends; None decodes plainly.
        settings: ``batch_size`` is the most requests at a time, ``prefill_tokens`` the padded prompt tokens of one pass.
        budget: chooses how much of each block is verified; None: all of it.
        longest_prompt: tokens that a prompt may have; caches are made for it.
        seed: of the requests' generators.

    Raises:
        ValueError: prompts and answers beyond the target's positions, or a budget that does not fit the drafter.
    """

    def __init__(
        self,
        target,
        drafter,
        settings: DecodeSettings,
        budget: Budget | None = None,
        longest_prompt: int = 1024,
        seed: int = 0,
    ) -> None:
        self.target, self.drafter, self.settings, self.seed = target, drafter, settings, seed
        self.budget = budget.check(drafter) if budget is not None and drafter is not None else None
        self.gamma = drafter.block.block_size if drafter is not None else 0
        self._drafters = {length: drafter.shortened(length) for length in range(1, self.gamma + 1)}
        self.longest_prompt = longest_prompt
        self.max_length = longest_prompt + settings.max_new_tokens + self.gamma + 1
        limit = target.spec.max_position
        if limit is not None and self.max_length > limit:
            raise ValueError(
                f"prompts of {longest_prompt} tokens with {settings.max_new_tokens} new ones and a block need "
                f"{self.max_length} positions, but {target.spec.name} has {limit}; lower max_new_tokens or leave out long "
                "prompts"
            )
        self.device = target.device
        self.answers: dict[int, list[int]] = {}

    @torch.inference_mode()
    def run(
        self, load: Load, seconds: float = float("inf"), on_step: Callable[[Step], None] | None = None
    ) -> tuple[list[Step], list[Served]]:
        """Serve ``load`` for so many seconds, or until nobody comes any more; requests then still running are left out.

        Time without a request is skipped, not waited for.

        Raises:
            ValueError: a prompt longer than ``longest_prompt``.
        """
        self._begin()
        steps, served, skipped = [], [], 0.0
        begin = time.perf_counter()

        def now() -> float:
            return time.perf_counter() - begin + skipped

        with grouped_attention(self.device):
            while (start := now()) < seconds:
                joining = load.take(start, len(self.rows))
                prefill = self._timed(self._join, joining, start)
                first_tokens = len(joining)
                for row in self.rows[len(self.rows) - first_tokens :]:
                    row.first_token = now()
                served += self._leave(now())
                if self.rows:
                    steps.append(self._step(start, prefill))
                    served += self._leave(now())
                    if on_step is not None:
                        on_step(steps[-1])
                elif not joining:
                    coming = load.next_arrival()
                    if coming is None:
                        break
                    skipped += max(coming - now(), 0.0)
        return steps, served

    def _begin(self) -> None:
        self.rows: list[Active] = []
        self.answers.clear()
        self.cache = RowCache(self.settings.batch_size)
        self.cache.num_rows = 0
        self.draft_cache = None
        if self.drafter is not None:
            self.draft_cache = self.drafter.start(self.settings.batch_size, self.max_length, device=self.device)
            self.draft_cache.resize(0)
        if self.budget is not None:
            self.budget.reset()

    def _timed(self, function: Callable, *arguments) -> float:
        """Seconds that ``function`` takes, the device's work included."""
        start = time.perf_counter()
        function(*arguments)
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # Requests come and go

    def _join(self, requests: Sequence[Request], now: float) -> None:
        """Read the prompts of ``requests`` in passes of at most ``prefill_tokens``, and commit their first tokens."""
        group: list[Request] = []
        for request in requests:
            if len(request.prompt) > self.longest_prompt:
                raise ValueError(
                    f"request {request.number} has {len(request.prompt)} tokens, but the engine was made for prompts of "
                    f"{self.longest_prompt}"
                )
            longest = max(len(other.prompt) for other in [*group, request])
            if group and longest * (len(group) + 1) > self.settings.prefill_tokens:
                self._prefill(group, now)
                group = []
            group.append(request)
        if group:
            self._prefill(group, now)

    def _prefill(self, requests: Sequence[Request], now: float) -> None:
        first = len(self.rows)
        joined = [Active(request, self._generator(request), now) for request in requests]
        self.rows += joined
        self.cache.num_rows = len(self.rows)
        if self.draft_cache is not None:
            self.draft_cache.resize(len(self.rows))
        lengths = torch.tensor([len(request.prompt) for request in requests], device=self.device)
        width = int(lengths.max())
        ids = torch.tensor([[*r.prompt, *[0] * (width - len(r.prompt))] for r in requests], device=self.device)
        mask = self.cache.place_prompts(torch.arange(first, len(self.rows), device=self.device), width)
        positions = self.cache.positions
        output = self.target.forward(ids, positions, mask, self.cache)
        last = output.last_hidden[torch.arange(len(requests), device=self.device), lengths - 1]
        draws = self._draws(joined, 1)
        tokens = sample(probs(self.target.logits(last), self.settings.sampling), draws).tolist()
        for index, (row, length) in enumerate(zip(joined, lengths.tolist(), strict=True)):
            row.commit([tokens[index]], self.settings)
            if self.drafter is not None:
                parts = (ids, positions, output.features, output.last_hidden)
                row.unseen.append(tuple(part[index, :length] for part in parts))

    def _generator(self, request: Request) -> torch.Generator:
        # A digest, since generators seeded with neighbouring numbers begin alike.
        return torch.Generator().manual_seed(int(digest([self.seed, request.number])[:15], 16))

    def _draws(self, rows: Sequence[Active], count: int) -> RowDraws:
        return RowDraws.of([row.generator for row in rows], count)

    def _leave(self, now: float) -> list[Served]:
        """Free the places of finished requests."""
        gone = [row for row in self.rows if row.stopped]
        if gone:
            self.answers |= {row.request.number: row.tokens for row in gone}
            keep = survivors([not row.stopped for row in self.rows])
            self.rows = [self.rows[place] for place in keep]
            self.cache.select(keep)
            if self.draft_cache is not None:
                self.draft_cache.select(torch.tensor(keep, dtype=torch.int64, device=self.device))
        return [row.served(now) for row in gone]

    # One step

    def _step(self, start: float, prefill: float) -> Step:
        """Draft, choose, verify and commit once for every running request."""
        marks = [time.perf_counter()]
        anchor = torch.tensor([row.tokens[-1] for row in self.rows], device=self.device)
        position = torch.tensor([row.anchor_position for row in self.rows], device=self.device)
        draws = None if self.settings.sampling.greedy else self._draws(self.rows, self.gamma + 2)
        proposal = self._propose(anchor, position, draws)
        self._mark(marks)
        gamma = proposal.tokens.shape[1]
        lengths = [gamma] * len(self.rows)
        if gamma and self.budget is not None:
            lengths = self.budget(proposal).tolist()
        self._mark(marks)
        draw = (self.settings.sampling, draws)
        result = flat_round(self.target, self.cache, (anchor, position), proposal, lengths, draw)
        committed = self._commit(proposal, result)
        self._mark(marks)
        counts = {"requests": len(lengths), "drafted": gamma * len(lengths), "verified": sum(lengths)}
        counts |= {"accepted": int(result.verdict.accepted.sum()), "committed": committed}
        draft, schedule, verify = (end - begin for begin, end in pairwise(marks))
        return Step(start, prefill, draft, schedule, verify, **counts)

    def _mark(self, marks: list[float]) -> None:
        self._wait()
        marks.append(time.perf_counter())

    def _propose(self, anchor: Tensor, position: Tensor, draws: RowDraws | None) -> Proposal:
        length = self.gamma if self.budget is None else self.budget.draft_length(self.gamma)
        if length == 0:
            tokens = torch.zeros(len(self.rows), 0, dtype=torch.int64, device=self.device)
            return Proposal(tokens, torch.zeros(len(self.rows), 0, 1, device=self.device), None, None)
        context = unseen_context(self.rows, anchor, position)
        return self._drafters[length].propose(context, self.draft_cache, self.settings.sampling, draws)

    def _commit(self, proposal: Proposal, result: FlatResult) -> int:
        """Commit what was accepted and the token after it; returns the tokens that the answers grew by."""
        offsets = result.flat.offsets
        drafted, output = proposal.tokens.tolist(), result.output
        accepted, following = result.verdict.accepted.tolist(), result.verdict.next_token.tolist()
        committed = 0
        for index, row in enumerate(self.rows):
            committed += row.commit([*drafted[index][: accepted[index]], following[index]], self.settings)
            if self.drafter is not None and not row.stopped:
                own = slice(offsets[index], offsets[index] + accepted[index] + 1)
                parts = (result.ids, result.positions, output.features[0], output.last_hidden[0])
                row.unseen.append(tuple(part[own] for part in parts))
        return committed
