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
from draftlab.data.files import digest, resolve_path
from draftlab.data.loaders import Batches, BatchPlan, ResumableLoader
from draftlab.data.packing import padding_share
from draftlab.data.prompts import Prompt
from draftlab.data.responses import read_manifest
from draftlab.data.samples import Sample, SampleCounts, read_samples
from draftlab.data.vocabulary import token_counts

FEATURES = ("online", "memory", "cache")


class DraftDataModule(L.LightningDataModule):
    """Training and validation batches of one set of answers.

    Args:
        path: folder written by ``prepare.py``, or a JSONL file; ``project:…`` lies in the project's folder.
        more_paths: further answers to train on, of the same kinds; a prompt answered in several is on one side only.
        prompts: gives the prompts whose answers belong into ``path``; used by ``prepare.py`` only.
        features: ``memory`` (computed once, kept on disk, mapped), ``online`` (the target runs inside training) or ``cache``
            (encoded shards that ``prepare.py stage=features`` has written).
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
        codec, last_codec, trim, codec_rank, shard_tokens: of the cache, see :class:`draftlab.data.cache.CacheSettings`.
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
        self.expected, self.packing = dict(expected or {}), packing
        self.samples: list[Sample] = []
        self.counts = SampleCounts()
        self.train_indices: list[int] = []
        self.val_indices: list[int] = []
        self._vocab_size = 0
        self._text_identity: dict[str, Any] = {}
        self._store: FeatureStore | CacheStore | None = None

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
        self._text_identity = {
            "tokenizer": chat.tokenizer_hash,
            "template": chat.template_hash,
            "max_length": self.max_length,
        }
        print(f"{len(self.train_indices)} samples to train on, {len(self.val_indices)} held out", flush=True)
        print(self._padding_text(), flush=True)
        self._warn_of_other_target(spec)
        return self

    def token_counts(self) -> Tensor:
        """Supervised tokens of the training samples by id, int64 [V]."""
        samples = (self.samples[index] for index in self.train_indices)
        return token_counts((sample.input_ids[sample.loss_mask] for sample in samples), self._vocab_size)

    def compute_features(self, target: Any, log_normalizer: bool = True, last_hidden_context: bool = False) -> None:
        """Compute the features of all samples, or open those of an earlier run; does nothing in online mode.

        Args:
            log_normalizer: whether the drafter's vocabulary is reduced. last_hidden_context: whether it reads last hidden
                states as context.

        Raises:
            ValueError: a cache that is missing, damaged, of another identity, or without the states that are read.
        """
        if self.features == "online":
            return
        if self.features == "cache":
            if last_hidden_context and self.cache.trim == "teachers":
                raise ValueError(
                    "data.trim=teachers keeps last hidden states where they teach only, but this drafter reads them as "
                    "context; prepare and train with data.trim=span"
                )
            self._store = open_cache(target, self.samples, *self.cache_place(target), self.cache)
            return
        settings = FeatureSettings(self.feature_dtype, log_normalizer, self.compute_dtype)
        identity = features_identity(target, self.samples, settings, self._text_identity)
        folder = None if self.cache_dir is None else resolve_path(self.cache_dir)
        self._store = compute_features(target, self.samples, folder, identity, settings)

    def cache_place(self, target: Any) -> tuple[Path, dict[str, Any]]:
        """Folder and identity of the cache of the loaded samples."""
        identity = cache_identity(target, self.samples, self.cache, self._text_identity)
        return cache_folder(None if self.cache_dir is None else resolve_path(self.cache_dir), identity), identity

    def train_dataloader(self) -> ResumableLoader:
        """Training batches, shuffled by (seed, epoch), from where the trainer stands."""
        return self._loader(self.train_indices, self.seed, lambda: finished_batches(self.trainer), self.packing)

    def val_dataloader(self) -> ResumableLoader | list:
        """Held-out batches, always the same in the same order."""
        return self._loader(self.val_indices, None, lambda: 0) if self.val_indices else []

    def _loader(
        self, indices: list[int], seed: int | None, finished: Callable[[], int | None], packing: int | None = None
    ) -> ResumableLoader:
        if not self.samples:
            raise ValueError("the data was not loaded; call load(spec, tokenizer) before training")
        if self.features != "online" and self._store is None:
            raise ValueError(f"data.features={self.features} needs compute_features(target) before training")
        trainer = self.trainer
        world_size, rank = (trainer.world_size, trainer.global_rank) if trainer else (1, 0)
        lengths = [len(self.samples[index]) for index in indices]
        plan = BatchPlan(lengths, self.batch_size, seed, world_size, rank)
        maker = BatchMaker(self.samples, indices, self._store)
        batches = Batches(plan, maker if packing is None else PackedMaker(maker, packing))
        return ResumableLoader(batches, finished, self.num_workers)

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


def finished_batches(trainer: L.Trainer | None) -> int | None:
    """Training batches whose optimisation has ended, over all epochs; what was fetched ahead does not count."""
    return None if trainer is None else trainer.fit_loop.epoch_loop.batch_progress.total.processed


def split(samples: Sequence[Sample], val_samples: int, seed: int) -> tuple[list[int], list[int]]:
    """Indices to train on and at least ``val_samples`` held-out ones (none for 0), disjoint by question, in file order.

    Every sample is on one side, and samples that ask the same (``prompts.question``: whatever case, spacing, system
    message, file or answer) on the same side. Questions are ranked by a seeded hash and held out from the front.
    """
    ranks = [digest([seed, sample.prompt]) for sample in samples]
    first: dict[str, str] = {}  # question -> the least rank of its wordings
    for sample, rank in zip(samples, ranks, strict=True):
        first[sample.question] = min(rank, first.get(sample.question, rank))
    keys = [(first[sample.question], sample.question) for sample in samples]
    ranked = sorted(range(len(samples)), key=lambda index: (keys[index], index))
    held_out = val_samples
    while 0 < held_out < len(ranked) and keys[ranked[held_out]] == keys[ranked[held_out - 1]]:
        held_out += 1
    return sorted(ranked[held_out:]), sorted(ranked[:held_out])
