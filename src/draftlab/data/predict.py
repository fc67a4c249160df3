"""Shards written by Lightning's ``Trainer.predict``: one prediction a shard, ranks share the missing ones.

    trainer = L.Trainer(devices=2, strategy="ddp", logger=False, enable_progress_bar=False)
    manifest = write_cache(Writing(target, samples, folder, identity, settings), trainer)

The same command under ``torchrun`` or ``srun`` uses all their processes, since Lightning deals the shards out. All ranks must
see one folder. The module knows nothing of training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from draftlab.cli import stops_as_interrupts
from draftlab.data import lowrank
from draftlab.data.cache import (
    BASIS,
    CacheSettings,
    basis_digest,
    check_stamp,
    computing,
    layout_of,
    open_cache,
    planned_bytes,
)
from draftlab.data.features import compute_dtype, plan_shards, read_states
from draftlab.data.files import claim, digest, reopen, seal
from draftlab.data.progress import Progress
from draftlab.data.samples import Sample
from draftlab.data.shards import Layout, Member, Shard, extent, pack, shard_path, write_shard


def write_cache(writing: Writing, trainer: L.Trainer) -> dict[str, Any]:
    """Write the missing shards and the manifest, which is returned.

    Raises:
        ValueError: a state that is not finite, or a shard of another identity.
        OSError: the disk is full; what is finished stays.
        KeyboardInterrupt: the user stopped; what is finished stays.
    """
    if not writing.missing:
        return writing.finish()
    trainer.callbacks.append(ShardWriter(writing))
    with stops_as_interrupts(trainer):
        trainer.predict(PredictShards(writing), datamodule=MissingShards(writing), return_predictions=False)
    trainer.strategy.barrier()
    return writing.finish()


def prepare_cache(data: Any, target: Any, trainer: L.Trainer) -> tuple[Path, dict[str, Any], float]:
    """Write the cache of a loaded datamodule and open it: folder, manifest, and its size over that of plain bfloat16.

    Raises:
        ValueError: what :class:`Writing` and :func:`draftlab.data.cache.open_cache` refuse.
    """
    folder, identity = data.cache_place(target)
    training = [data.samples[index] for index in data.train_indices]
    writing = Writing(target, data.samples, folder, identity, data.cache, training)
    manifest = write_cache(writing, trainer)
    open_cache(target, data.samples, folder, identity, data.cache)
    counts = manifest["counts"]
    plain = CacheSettings("bf16", trim="none")
    whole = planned_bytes(plain, target.spec, counts["samples"], counts["tokens"] / counts["samples"])
    return folder, manifest, counts["bytes"] / whole


def print_cache(folder: Path, manifest: dict[str, Any], ratio: float) -> None:
    """Say what a finished cache takes."""
    counts, identity = manifest["counts"], manifest["identity"]
    print(
        f"{counts['samples']:,} conversations, {counts['tokens']:,} tokens, {counts['bytes'] / 1e9:.3f} GB in {folder}: "
        f"{counts['bytes_per_token']:,.1f} bytes a token with data.codec={identity['codec']} "
        f"data.last_codec={identity['last_codec']} data.trim={identity['trim']}, {ratio:.3f} of untrimmed bf16",
        flush=True,
    )


class Writing:
    """One unfinished cache: which shards are missing, and how one is made. Built by every rank before any of them writes.

    Args:
        teaching: what codec ``lowrank`` learns its basis from, as told by ``identity``; None: ``samples``.

    Raises:
        ValueError: the folder holds another identity, or a shard of another one.
    """

    def __init__(
        self,
        target: Any,
        samples: Sequence[Sample],
        folder: Path,
        identity: dict,
        settings: CacheSettings,
        teaching: Sequence[Sample] | None = None,
    ) -> None:
        self.target, self.samples, self.folder, self.identity = target, samples, folder, identity
        self.settings, self.stamp = settings, digest(identity)
        self.teaching = samples if teaching is None else teaching
        claim(folder, identity, "features", "data.cache_dir")
        self.shards = plan_shards(samples, settings.shard_tokens)
        # Nothing can be read without the basis it was made with, so that a lost one takes all shards with it.
        lost = settings.codec == lowrank.NAME and not (folder / BASIS).exists()
        self.missing = [index for index in range(len(self.shards)) if lost or not self._is_whole(index)]

    def _is_whole(self, index: int) -> bool:
        try:
            shard = Shard(shard_path(self.folder, index))
        except ValueError:
            return False  # missing or cut: made again
        check_stamp(shard, self.stamp, index)
        return True

    def begin(self) -> None:
        """Done by one rank while the others wait: take the manifest away, learn the basis."""
        if self.missing:
            reopen(self.folder, self.identity)
        if self.settings.codec == lowrank.NAME and not (self.folder / BASIS).exists():
            lowrank.save_basis(self.folder / BASIS, learn_basis(self.target, self.teaching, self.settings))

    @cached_property
    def layout(self) -> Layout:
        """Layout of the payloads; the basis must have been learned."""
        return layout_of(self.folder, self.target.spec, self.settings)

    @cached_property
    def basis(self) -> str | None:
        """Digest of the basis."""
        return basis_digest(self.layout)

    def make(self, index: int) -> list[Member]:
        """The members of shard ``index``, in its order."""
        return encode(self.target, self.samples, self.shards[index], self.layout, self.settings)

    def write(self, index: int, members: list[Member]) -> None:
        """Write shard ``index``, atomically."""
        stamp = {"stamp": self.stamp, "basis": self.basis, "shard": index}
        write_shard(shard_path(self.folder, index), stamp, members)

    def finish(self) -> dict[str, Any]:
        """Write the manifest once every shard is there, and return it; ranks may do so at the same time.

        Raises:
            ValueError: a shard is missing, or was made with another basis.
        """
        shards, totals = [], {"samples": 0, "tokens": 0, "bytes": 0}
        for index in range(len(self.shards)):
            shard = Shard(shard_path(self.folder, index))
            check_stamp(shard, self.stamp, index, self.basis)
            entries = shard.meta["samples"]
            shards.append({"bytes": len(shard), "digest": shard.digest})
            totals["samples"] += len(entries)
            totals["tokens"] += sum(entry["tokens"] for entry in entries)
            totals["bytes"] += len(shard)
        report = totals | {"bytes_per_token": totals["bytes"] / totals["tokens"]}
        manifest = {"identity": self.identity, "basis": self.basis, "counts": report, "shards": shards}
        seal(self.folder, manifest)
        return manifest


def encode(
    target: Any, samples: Sequence[Sample], indices: Sequence[int], layout: Layout, settings: CacheSettings
) -> list[Member]:
    """The conversations ``samples[i]`` for i in ``indices`` as members of a shard, read by the target together.

    Raises:
        ValueError: a state that is not finite.
    """
    part = [samples[i] for i in indices]
    states = read_states(target, part, computing(settings), torch.float32)
    lengths = [len(sample) for sample in part]
    rows = zip(states["features"].split(lengths), states["last_hidden"].split(lengths), strict=True)
    return [
        Member(i, sample.id, len(sample), _payload(target, sample, *row, layout, settings))
        for i, sample, row in zip(indices, part, rows, strict=True)
    ]


def _payload(
    target: Any, sample: Sample, features: Tensor, last: Tensor, layout: Layout, settings: CacheSettings
) -> bytes:
    kept = extent(sample.loss_mask, layout.trim)
    try:
        stored = layout.last_hidden.encode(last[kept.states])
        decoded = torch.zeros_like(last)
        decoded[kept.states] = layout.last_hidden.decode(stored, layout.hidden)
        teaching = decoded[kept.teachers].to(target.device, target.dtype)
        normalizer = target.log_normalizer(teaching, compute_dtype(target, computing(settings))).cpu()
        return pack(sample.input_ids, sample.loss_mask, features, stored, normalizer, layout)
    except ValueError as error:
        raise ValueError(f"target {target.spec.name!r}, sample {sample.id!r}: {error}") from None


def learn_basis(target: Any, samples: Sequence[Sample], settings: CacheSettings) -> lowrank.Basis:
    """Basis of the low-rank codec, from conversations chosen by a hash until they hold enough tokens."""
    rank, chosen, tokens = settings.rank_of(target.spec), [], 0
    for index in sorted(range(len(samples)), key=lambda i: (digest(samples[i].input_ids.tolist()), i)):
        if tokens >= lowrank.TOKENS_PER_RANK * rank:
            break
        chosen.append(samples[index])
        tokens += len(samples[index])
    print(f"learning a basis of {rank} directions from {tokens:,} tokens", flush=True)
    states = read_states(target, chosen, computing(settings), torch.float32)
    return lowrank.fit_basis(states["features"], target.spec.num_features, rank)


class PredictShards(L.LightningModule):
    """Shard index in, its members out."""

    def __init__(self, writing: Writing) -> None:
        super().__init__()
        self.target, self.writing = writing.target, writing

    def predict_step(self, index: int, batch_idx: int) -> tuple[int, list[Member]]:
        """Index and members of one shard."""
        return index, self.writing.make(index)


class MissingShards(L.LightningDataModule):
    """The missing shards; one rank of all machines begins the folder while the others wait."""

    def __init__(self, writing: Writing) -> None:
        super().__init__()
        self.prepare_data_per_node = False
        self.allow_zero_length_dataloader_with_multiple_devices = True  # ranks without a shard wait for the others
        self.writing = writing

    def prepare_data(self) -> None:
        """Learn the basis, if the codec has one."""
        self.writing.begin()

    def predict_dataloader(self) -> DataLoader:
        """Indices of the missing shards of this rank."""
        missing, trainer = self.writing.missing, self.trainer
        dealt = Dealt(missing, trainer.world_size, trainer.global_rank)
        return DataLoader(missing, batch_size=1, sampler=dealt, collate_fn=_only)


class Dealt(DistributedSampler):
    """Every item once, dealt out in turn; with fewer items than ranks some get none. Lightning leaves it alone."""

    def __init__(self, items: Sequence[int], world_size: int, rank: int) -> None:
        super().__init__(items, num_replicas=world_size, rank=rank, shuffle=False)
        self._places = range(rank, len(items), world_size)

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class ShardWriter(BasePredictionWriter):
    """Writes each shard as soon as it is made."""

    def __init__(self, writing: Writing) -> None:
        super().__init__("batch")
        self.writing = writing
        self._progress: Progress | None = None

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin to count the shards of this rank."""
        writing = self.writing
        done = len(writing.shards) - len(writing.missing)
        if done:
            print(f"features: {done:,} of {len(writing.shards):,} shards are there already", flush=True)
        mine = sum(trainer.num_predict_batches)
        self._progress = Progress("shards of this rank", total=int(mine), unit="tokens").__enter__()

    def write_on_batch_end(
        self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx
    ) -> None:
        """Write one shard, atomically."""
        index, members = prediction
        self.writing.write(index, members)
        self._progress.advance(1, sum(member.tokens for member in members))

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show the last count."""
        self._progress.__exit__()


def _only(items: list[int]) -> int:
    return items[0]
