"""What makes a batch: samples and their stored features, padded, or packed one behind the other.

    make = BatchMaker(samples, indices, store)
    make([0, 4])                                # samples[indices[0]] and samples[indices[4]] as types.Batch

Makers are sent to loader processes, so they hold no trainer and no target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftlab.data.cache import CacheStore
from draftlab.data.features import FeatureStore, collate
from draftlab.data.packing import pack
from draftlab.data.samples import Sample
from draftlab.data.stream import StreamStore
from draftlab.types import Batch


@dataclass(frozen=True)
class BatchMaker:
    """Makes batches of ``samples[indices[row]]``; padded; no row gives one without supervision."""

    samples: list[Sample]
    indices: list[int]
    store: FeatureStore | CacheStore | StreamStore | None

    def __call__(self, rows: Sequence[int]) -> Batch:
        """Rows as a batch, with features where they are stored; no row at all gives one without supervision."""
        if not rows:
            batch = self([0])
            return dataclasses.replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
        indices = [self.indices[row] for row in rows]
        batch = collate([self.samples[index] for index in indices])
        if self.store is None:
            return batch
        features, last_hidden, normalizer = zip(*(self.store[index] for index in indices), strict=True)
        return dataclasses.replace(
            batch,
            features=_pad(features),
            last_hidden=_pad(last_hidden),
            log_normalizer=None if normalizer[0] is None else _pad(normalizer),
        )


@dataclass(frozen=True)
class PackedMaker:
    """Makes the batches of ``maker`` in packed rows of at most ``tokens_per_row`` tokens."""

    maker: BatchMaker
    tokens_per_row: int

    def __call__(self, rows: Sequence[int]) -> Batch:
        """Rows as a packed batch."""
        return pack(self.maker(rows), self.tokens_per_row)


def _pad(parts: Sequence[Tensor]) -> Tensor:
    """Rows of unequal length, right-padded with 0, in float32."""
    return pad_sequence([part.float() for part in parts], batch_first=True)
