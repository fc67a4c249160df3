"""Batches in an order that is a pure function of (seed, step, rank), and loaders that go on exactly where a run
stopped.

    plan = BatchPlan(lengths, batch_size=4, seed=0)
    plan.rows(epoch=0, index=3)          # sample indices of the fourth batch of the first epoch

An epoch is a seeded permutation; inside windows of it samples are sorted by length and cut into batches (little
padding), whose order is shuffled again. Every sample occurs exactly once an epoch. The state of a loader is the number
of batches that the trainer has finished, not the number that workers have fetched ahead. The module knows nothing of
files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from draftlab.types import Batch

if TYPE_CHECKING:
    import lightning as L


class BatchPlan:
    """Which samples make which batch.

    Args:
        lengths: tokens of every sample.
        batch_size: samples a batch and rank.
        seed: of the order; None keeps it fixed and sorted by length (validation).
        world_size: ranks that share an epoch; ``rank``: this one.
        window: batches within which samples are sorted by length.

    Every rank has the same number of batches; a rank that the last step leaves without a sample gets an empty list.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        seed: int | None = 0,
        world_size: int = 1,
        rank: int = 0,
        window: int = 16,
    ) -> None:
        self.lengths, self.batch_size, self.seed, self.window = list(lengths), batch_size, seed, window
        self.world_size, self.rank = world_size, rank
        self._epoch, self._steps = -1, []

    def __len__(self) -> int:
        """Batches of an epoch, the same for every rank."""
        per_step = self.batch_size * self.world_size
        return -(-len(self.lengths) // per_step)

    def rows(self, epoch: int, index: int) -> list[int]:
        """Sample indices of batch ``index`` of ``epoch`` on this rank."""
        if epoch != self._epoch:
            self._epoch, self._steps = epoch, self._lay_out(epoch)
        return self._steps[index][self.rank :: self.world_size]

    def _lay_out(self, epoch: int) -> list[list[int]]:
        """Sample indices of every step, all ranks together."""
        per_step = self.batch_size * self.world_size
        if self.seed is None:
            order = sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], i))
            return [order[first : first + per_step] for first in range(0, len(order), per_step)]
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        steps: list[list[int]] = []
        for first in range(0, len(order), per_step * self.window):
            part = sorted(order[first : first + per_step * self.window], key=lambda i: (self.lengths[i], i))
            steps += [part[start : start + per_step] for start in range(0, len(part), per_step)]
        return [steps[i] for i in torch.randperm(len(steps), generator=generator).tolist()]


class Batches(Dataset):
    """A dataset whose items are whole batches, by (epoch, index), each made within ``reading`` of it."""

    def __init__(
        self,
        plan: BatchPlan,
        make: Callable[[list[int]], Batch],
        reading: Callable[[int, int], AbstractContextManager] = lambda *_: nullcontext(),
    ) -> None:
        self.plan, self.make, self.reading = plan, make, reading

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        with self.reading(*key):
            return self.make(self.plan.rows(*key))


class BatchOrder(DistributedSampler):
    """Yields the (epoch, index) of as many batches as an epoch has, from the position on; Lightning leaves it alone.

    A pass that starts in the middle of an epoch goes on into the next one, since a trainer that was stopped there counts
    its own epochs from there.
    """

    def __init__(self, batches: Batches, position: Callable[[], int]) -> None:
        super().__init__(batches, num_replicas=1, rank=0, shuffle=False)
        self.batches, self.position = batches, position

    def __iter__(self) -> Iterator[tuple[int, int]]:
        first = self.position()
        for step in range(first, first + len(self.batches)):
            yield divmod(step, len(self.batches))


class ResumableLoader(DataLoader):
    """A loader of whole batches that starts where training stands.

    Args:
        batches: what to load.
        finished: how many batches the trainer has finished, over all epochs; None if there is no trainer to ask, then
            the loaded state counts.
        num_workers: processes that load ahead.
        advanced: told the number of finished batches before the first batch and after each; None: nobody is.
    """

    def __init__(
        self,
        batches: Batches,
        finished: Callable[[], int | None],
        num_workers: int = 0,
        advanced: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(batches, batch_size=None, sampler=BatchOrder(batches, self._position), num_workers=num_workers)
        self._finished, self._loaded, self._advanced = finished, 0, advanced

    def __iter__(self) -> Iterator[Batch]:
        """The batches of a pass."""
        return super().__iter__() if self._advanced is None else self._telling()

    def _telling(self) -> Iterator[Batch]:
        first = self._position()
        self._advanced(first)
        for count, batch in enumerate(super().__iter__(), start=1):
            yield batch
            finished = self._finished()  # without a trainer, a batch is behind us as soon as the next one is asked for
            self._advanced(first + count if finished is None else finished)

    def state_dict(self) -> dict[str, int]:
        """Where the trainer stands."""
        return {"batches": self._position()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Start after the batches of ``state``."""
        self._loaded = state["batches"]

    def _position(self) -> int:
        finished = self._finished()
        return self._loaded if finished is None else finished


def finished_batches(trainer: L.Trainer | None) -> int | None:
    """Training batches whose optimisation has ended, over all epochs; what was fetched ahead does not count."""
    return None if trainer is None else trainer.fit_loop.epoch_loop.batch_progress.total.processed


def planned_batches(trainer: L.Trainer | None, batches: int) -> int | None:
    """Training batches of the whole training, at most, in epochs of ``batches``; None if it has no known end."""
    if trainer is None:
        return None
    ends = [trainer.max_epochs * batches] if trainer.max_epochs not in (None, -1) else []
    ends += [trainer.max_steps * trainer.accumulate_grad_batches] if trainer.max_steps > 0 else []
    return min(ends, default=None)
