"""DraftDataModule: answers on disk -> batches of types.Batch, with stored target features (memory) or without (online).

    data = DraftDataModule("project:data/demo", max_length=512, batch_size=4, val_samples=36)
    data.load(spec, tokenizer)                                # reads, renders, splits; prints what was skipped and why
    data.compute_features(target, log_normalizer=True)        # features=memory: once, then from disk
    trainer.fit(module, data)

Validation samples are chosen by a seeded hash of what was asked, so that no prompt is on both sides. Training order,
resuming and stored features are the matter of loaders.py and features.py. The module knows nothing of drafters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from draftlab.data.answers import read_manifest
from draftlab.data.batches import BatchMaker, PackedMaker
from draftlab.data.cache import CacheStore, cache_folder, cache_identity, open_cache
from draftlab.data.chat import Chat
from draftlab.data.description import DraftData
from draftlab.data.features import FeatureSettings, FeatureStore, compute_features, features_identity
from draftlab.data.loaders import Batches, BatchPlan, ResumableLoader, finished_batches, planned_batches
from draftlab.data.packing import padding_share
from draftlab.data.samples import Sample, SampleCounts, read_samples, split
from draftlab.data.stream import StreamStore, open_stream, stream_of
from draftlab.data.vocabulary import token_counts


class DraftDataModule(DraftData, L.LightningDataModule):
    """Training and validation batches of one set of answers; takes what :class:`draftlab.data.description.DraftData` takes.

    Raises:
        ValueError: a value outside its range.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.samples: list[Sample] = []
        self.counts = SampleCounts()
        self.train_indices: list[int] = []
        self.val_indices: list[int] = []
        self._vocab_size = 0
        self.text_identity: dict[str, Any] = {}
        self._store: FeatureStore | CacheStore | StreamStore | None = None

    def load(self, spec: Any, tokenizer: Any) -> DraftDataModule:
        """Read, render and split the answers, and print what was kept and skipped.

        Raises:
            ValueError: no answers, a malformed line, no usable sample, or too few of them for ``val_samples``.
        """
        chat = Chat(tokenizer, spec.thinking, spec.eos_token_ids)
        self.samples, self.counts = [], SampleCounts()
        for folder in self.folders:
            samples, counts = read_samples(folder, chat, self.max_length)
            print(f"data {folder}: {counts}")
            self.samples, self.counts = [*self.samples, *samples], self.counts + counts
        self.train_indices, self.val_indices = split(self.samples, self.val_samples, self.seed)
        if not self.train_indices:
            raise ValueError(
                f"data.val_samples is {self.val_samples}, which leaves nothing to train on of {len(self.samples)} "
                "samples; make it smaller"
            )
        self._vocab_size = spec.vocab_size
        self.text_identity = {
            "tokenizer": chat.tokenizer_hash,
            "template": chat.template_hash,
            "max_length": self.max_length,
        }
        print(f"{len(self.train_indices)} samples to train on, {len(self.val_indices)} held out", flush=True)
        print(self._padding_text(), flush=True)
        self._warn_of_other_target(spec)
        if self.features == "stream":
            stream_of(self).check_size(spec)
        return self

    def token_counts(self) -> Tensor:
        """Supervised tokens of the training samples by id, int64 [V]."""
        samples = (self.samples[index] for index in self.train_indices)
        return token_counts((sample.input_ids[sample.loss_mask] for sample in samples), self._vocab_size)

    def compute_features(
        self, target: Any, log_normalizer: bool = True, last_hidden_context: bool = False, layers: bool = True
    ) -> None:
        """Compute the features of all samples, or open those of an earlier run; does nothing in online mode.

        Args:
            log_normalizer: whether the drafter's vocabulary is reduced. last_hidden_context: whether it reads last hidden
                states as context. layers: whether it reads the tapped layers; a cache or stream holds them all the same.

        Raises:
            ValueError: a cache that is missing, damaged, of another identity, or without the states that are read.
        """
        if self.features == "online":
            return
        if self.features in ("cache", "stream"):
            if last_hidden_context and self.cache.trim == "teachers":
                raise ValueError(
                    "data.trim=teachers keeps last hidden states where they teach only, but this drafter reads them as "
                    "context; prepare and train with data.trim=span"
                )
            if self.features == "stream":
                self._store = open_stream(target, stream_of(self))
            else:
                self._store = open_cache(target, self.samples, *self.cache_place(target), self.cache)
            return
        settings = FeatureSettings(self.feature_dtype, log_normalizer, self.compute_dtype, layers=layers)
        identity = features_identity(target, self.samples, settings, self.text_identity)
        self._store = compute_features(target, self.samples, self.features_folder, identity, settings)

    def cache_place(self, target: Any) -> tuple[Path, dict[str, Any]]:
        """Folder and identity of the cache of the loaded samples."""
        identity = cache_identity(target, self.samples, self.cache, self.text_identity, self.val_indices)
        return cache_folder(self.features_folder, identity), identity

    def setup(self, stage: str) -> None:
        """Called by the trainer before it loads anything."""
        self.require_ranks(self.trainer.world_size)

    def teardown(self, stage: str) -> None:
        """Called by the trainer when it has ended well."""
        if stage == "fit" and isinstance(self._store, StreamStore):
            self._store.close(finished_batches(self.trainer))

    def train_dataloader(self) -> ResumableLoader:
        """Training batches, shuffled by (seed, epoch), from where the trainer stands."""
        plan, store = self._plan(self.train_indices, self.seed), self._store
        maker = BatchMaker(self.samples, self.train_indices, store)
        make = maker if self.packing is None else PackedMaker(maker, self.packing)
        if not isinstance(store, StreamStore):
            return ResumableLoader(Batches(plan, make), lambda: finished_batches(self.trainer), self.num_workers)
        store.until = planned_batches(self.trainer, len(plan))
        return ResumableLoader(
            Batches(plan, make, store.reading), lambda: finished_batches(self.trainer), self.num_workers, store.advance
        )

    def val_dataloader(self) -> ResumableLoader | list:
        """Held-out batches, always the same in the same order."""
        if not self.val_indices:
            return []
        plan = self._plan(self.val_indices, None)
        maker = BatchMaker(self.samples, self.val_indices, self._store)
        if isinstance(self._store, StreamStore):
            held = [self.samples[index] for index in self.val_indices]
            maker = BatchMaker(held, list(range(len(held))), self._store.held)
        return ResumableLoader(Batches(plan, maker), lambda: 0, self.num_workers)

    def _plan(self, indices: list[int], seed: int | None) -> BatchPlan:
        if not self.samples:
            raise ValueError("the data was not loaded; call load(spec, tokenizer) before training")
        if self.features != "online" and self._store is None:
            raise ValueError(f"data.features={self.features} needs compute_features(target) before training")
        world_size, rank = (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)
        return BatchPlan([len(self.samples[index]) for index in indices], self.batch_size, seed, world_size, rank)

    def _padding_text(self) -> str:
        """How much of a training epoch's batches is padding, in padded rows and, where they are packed, in those."""
        lengths = [len(self.samples[index]) for index in self.train_indices]
        plan = BatchPlan(lengths, self.batch_size, self.seed)
        batches = [[lengths[row] for row in plan.rows(0, index)] for index in range(len(plan))]
        text = f"padding: {padding_share(batches):.1%} of the tokens of an epoch's batches"
        if self.packing is None:
            return f"{text} (data.packing=null)"
        return f"{text}, {padding_share(batches, self.packing):.1%} in packed rows (data.packing={self.packing})"

    def _warn_of_other_target(self, spec: Any) -> None:
        for folder in self.folders:
            manifest = read_manifest(folder) if folder.is_dir() else None
            writer = ((manifest or {}).get("identity", {}).get("target") or {}).get("name")
            if writer is not None and writer != spec.name:
                print(
                    f"warning: the answers in {folder} were written by {writer}; a drafter for {spec.name} learns more "
                    f"from those of {spec.name} itself"
                )
