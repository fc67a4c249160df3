"""DraftDataModule: answers on disk -> batches of types.Batch, with stored target features (memory) or without (online).

    data = DraftDataModule("project:data/demo", max_length=512, batch_size=4, val_samples=36)
    data.load(spec, tokenizer)                                # reads, renders, splits; prints what was skipped and why
    data.compute_features(target, log_normalizer=True)        # features=memory: once, then from disk
    trainer.fit(module, data)

Validation samples are chosen by a seeded hash of what was asked, so that no prompt is on both sides. Training order,
resuming and stored features are the matter of loaders.py and features.py. The module knows nothing of drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from draftlab.data.batches import BatchMaker, PackedMaker
from draftlab.data.cache import CacheSettings, CacheStore, cache_folder, cache_identity, open_cache
from draftlab.data.chat import Chat
from draftlab.data.features import DTYPES, FeatureSettings, FeatureStore, compute_features, features_identity
from draftlab.data.files import resolve_path
from draftlab.data.loaders import Batches, BatchPlan, ResumableLoader, finished_batches, planned_batches
from draftlab.data.packing import padding_share
from draftlab.data.prompts import Prompt
from draftlab.data.responses import read_manifest
from draftlab.data.samples import Sample, SampleCounts, read_samples, split
from draftlab.data.stream import StreamStore, open_stream, stream_of
from draftlab.data.vocabulary import token_counts
from draftlab.data.window import StreamSettings

FEATURES = ("online", "memory", "cache", "stream")


class DraftDataModule(L.LightningDataModule):
    """Training and validation batches of one set of answers.

    Args:
        path: folder written by ``prepare.py``, or a JSONL file; ``project:…`` lies in the project's folder.
        more_paths: further answers to train on, of the same kinds; a prompt answered in several is on one side only.
        prompts: gives the prompts whose answers belong into ``path``; used by ``prepare.py`` only.
        features: ``memory`` (computed once, kept on disk, mapped), ``online`` (the target runs inside training), ``cache``
            (encoded shards that ``prepare.py stage=features`` has written) or ``stream`` (a window of shards that
            ``prepare.py stage=stream`` fills while training empties it).
        max_length: tokens after which a conversation is cut.
        batch_size: sequences a rank and step.
        val_samples: held-out samples.
        seed: of the split and of the training order.
        num_workers: loader processes.
        feature_dtype: of stored features; batches come in float32.
        compute_dtype: of the target's matrix products when features are computed; ``auto`` lets the CPU decide.
        cache_dir: folder of stored features; null for one in the cache that is chosen by their identity.
        expected: ``samples`` and ``tokens`` of each, for plans of answers that are not written yet; also ``teachers`` of each,
            the tokens that an anchor can be at.
        codec, last_codec, trim, codec_rank, shard_tokens: of cache and stream, see :class:`draftlab.data.cache.CacheSettings`.
        window_gb, producer_seconds: of the stream, see :class:`draftlab.data.window.StreamSettings`.
        packing: tokens of a row in which several conversations of a training batch stand one behind the other; null pads each
            to a row of its own. Held-out batches are never packed.

    Raises:
        ValueError: a value outside its range.
    """

    def __init__(
        self,
        path: str | None = None,
        more_paths: Sequence[str] = (),
        prompts: Callable[[], list[Prompt]] | None = None,
        features: str = "memory",
        max_length: int = 512,
        batch_size: int = 4,
        val_samples: int = 32,
        seed: int = 0,
        num_workers: int = 0,
        feature_dtype: str = "bfloat16",
        compute_dtype: str = "auto",
        cache_dir: str | None = None,
        expected: dict[str, int] | None = None,
        codec: str = "bf16",
        last_codec: str | None = None,
        trim: str = "teachers",
        codec_rank: int | None = None,
        shard_tokens: int = 16384,
        packing: int | None = None,
        window_gb: float = 20.0,
        producer_seconds: float = 120.0,
    ) -> None:
        super().__init__()
        if packing is not None and (not isinstance(packing, int) or packing < max_length):
            raise ValueError(
                f"data.packing must be null or the tokens of a row, at least data.max_length={max_length}, got {packing!r}"
            )
        if features not in FEATURES:
            raise ValueError(f"data.features must be one of {', '.join(FEATURES)}, got {features!r}")
        if feature_dtype not in DTYPES:
            raise ValueError(f"data.feature_dtype must be one of {', '.join(DTYPES)}, got {feature_dtype!r}")
        if compute_dtype not in ("auto", *DTYPES):
            raise ValueError(f"data.compute_dtype must be one of auto, {', '.join(DTYPES)}, got {compute_dtype!r}")
        for name, value, least in (
            ("max_length", max_length, 2),
            ("batch_size", batch_size, 1),
            ("val_samples", val_samples, 0),
            ("num_workers", num_workers, 0),
        ):
            if value < least:
                raise ValueError(f"data.{name} must be at least {least}, got {value}")
        if isinstance(more_paths, str):
            raise ValueError(f"data.more_paths is a list, as data.more_paths=[{more_paths}], got {more_paths!r}")
        self.path, self.more_paths, self.prompts, self.features = path, tuple(more_paths), prompts, features
        self.max_length, self.batch_size, self.val_samples, self.seed = max_length, batch_size, val_samples, seed
        self.num_workers, self.cache_dir = num_workers, cache_dir
        self.feature_dtype, self.compute_dtype = feature_dtype, compute_dtype
        self.cache = CacheSettings(codec, last_codec, trim, codec_rank, compute_dtype, shard_tokens=shard_tokens)
        self.stream = StreamSettings(window_gb, producer_seconds)
        self.expected, self.packing = dict(expected or {}), packing
        self.samples: list[Sample] = []
        self.counts = SampleCounts()
        self.train_indices: list[int] = []
        self.val_indices: list[int] = []
        self._vocab_size = 0
        self.text_identity: dict[str, Any] = {}
        self._store: FeatureStore | CacheStore | StreamStore | None = None

    @property
    def folder(self) -> Path:
        """Where the answers are, or belong.

        Raises:
            ValueError: no path was given.
        """
        if self.path is None:
            raise ValueError("data.path is not set: expected a folder written by src/prepare.py or a JSONL file")
        if self.path.endswith("-None"):
            raise ValueError(
                "data.path ends with the target's name, which is not set: give target.name=… or data.path=…"
            )
        return resolve_path(self.path)

    @property
    def folders(self) -> list[Path]:
        """All places to read answers from, the one of ``path`` first."""
        return [self.folder, *map(resolve_path, self.more_paths)]

    @property
    def features_folder(self) -> Path | None:
        """Folder of stored features; None for one that is named by their identity."""
        return None if self.cache_dir is None else resolve_path(self.cache_dir)

    def read_prompts(self) -> list[Prompt]:
        """The prompts whose answers belong into ``path``."""
        if self.prompts is None:
            raise ValueError(
                "data.prompts is not set, so there is nothing to answer; choose a data config that names prompts"
            )
        return self.prompts()

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

    def require_ranks(self, world_size: int) -> None:
        """Refuse what ``world_size`` processes cannot make or train from.

        Raises:
            ValueError: a stream and several processes.
        """
        if self.features == "stream" and world_size > 1:
            raise ValueError(
                f"data.features=stream has one process on either side, since a shard is freed behind training, but this run has "
                f"{world_size} (devices × num_nodes); use data.features=cache or online with several"
            )

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
