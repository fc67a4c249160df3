"""The feature cache of sets that need many machines: shards of encoded target states, written once and read at random.

    settings = CacheSettings(codec="int4", last_codec="int8")
    write_cache(Writing(target, samples, folder, identity, settings), trainer)     # predict.py
    store = open_cache(target, samples, folder, identity, settings)
    features, last_hidden, log_normalizer = store[index]

Every shard is a pure function of its samples, so any number of ranks writes the same bytes and a killed writer loses only the
shard in its hands. The manifest comes last. The log-normalizer is that of the *stored* last hidden state, so that both describe
one law. Opening compares the states of one conversation with the target's own, after a trip through the same codec (case 1).
Which conversations there are, and in which order they are trained on, is the matter of datamodule.py and loaders.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftlab.data import lowrank
from draftlab.data.codecs import CODECS, Codec, PerLayer, bytes_per_token, relative_error
from draftlab.data.features import FeatureSettings, cache_root, compute_dtype, plan_shards, text_identity
from draftlab.data.files import MANIFEST, claim, digest, read_object
from draftlab.data.samples import Sample
from draftlab.data.shards import BLOCK, RECORD, TRIMS, Layout, Shard, extent, shard_path, unpack

CODEC_NAMES = (*CODECS, lowrank.NAME)
BASIS = "basis.safetensors"
IDS_AND_MASK, NORMALIZER = 4 + 1, 4  # bytes
MEMBER_OVERHEAD = BLOCK + BLOCK / 2 + 128  # tar header, half a block of filling, the entry in the shard's own list
SHARD_OVERHEAD = BLOCK + 2 * BLOCK + RECORD / 2  # the list's header, the end, half a record of filling


@dataclass(frozen=True)
class CacheSettings:
    """How states are stored.

    Args:
        codec: of the tapped layers. last_codec: of the last hidden state, a name of CODECS; None: as ``codec``, or 4 bits
            beside ``lowrank``, which is of all layers together.
        trim: which positions are stored, see shards.py. rank: of codec ``lowrank``; None: a fifth of M*D.
        compute_dtype: of the target's matrix products. batch_tokens, shard_tokens: held at a time.

    Raises:
        ValueError: a value outside its range.
    """

    codec: str = "bf16"
    last_codec: str | None = None
    trim: str = "teachers"
    rank: int | None = None
    compute_dtype: str = "auto"
    batch_tokens: int = 4096
    shard_tokens: int = 16384

    def __post_init__(self) -> None:
        if self.last_codec is None:
            object.__setattr__(self, "last_codec", "int4" if self.codec == lowrank.NAME else self.codec)
        for name, value, allowed in (
            ("codec", self.codec, CODEC_NAMES),
            ("last_codec", self.last_codec, tuple(CODECS)),
            ("trim", self.trim, TRIMS),
        ):
            if value not in allowed:
                raise ValueError(f"data.{name} must be one of {', '.join(allowed)}, got {value!r}")
        for name, value in (("codec_rank", self.rank), ("shard_tokens", self.shard_tokens)):
            if value is not None and value < 1:
                raise ValueError(f"data.{name} must be at least 1, got {value}")

    def rank_of(self, spec: Any) -> int:
        """R of the low-rank codec for the target of ``spec``.

        Raises:
            ValueError: more than the features are wide.
        """
        rank = self.rank or lowrank.default_rank(spec.feature_size)
        if rank > spec.feature_size:
            raise ValueError(
                f"data.codec_rank must be at most {spec.feature_size}, the width of the features, got {rank}"
            )
        return rank

    def feature_bytes(self, spec: Any) -> int:
        """Bytes that the tapped layers of one token take."""
        if self.codec == lowrank.NAME:
            return lowrank.bytes_per_token(spec.num_features, self.rank_of(spec))
        return spec.num_features * bytes_per_token(self.codec, spec.hidden_size)

    def payload_bytes(self, spec: Any, loss_mask: Tensor) -> int:
        """Bytes that the conversation with supervised positions ``loss_mask`` bool [T] takes, exactly."""
        kept = extent(loss_mask, self.trim)
        states = len(kept.states) * bytes_per_token(self.last_codec, spec.hidden_size)
        features = kept.context * self.feature_bytes(spec)
        return kept.tokens * IDS_AND_MASK + features + states + len(kept.teachers) * NORMALIZER

    def layout(self, spec: Any, basis: lowrank.Basis | None = None) -> Layout:
        """Layout of payloads for the target of ``spec``; ``basis`` belongs to codec ``lowrank``."""
        layers = spec.num_features
        features: Codec = PerLayer(CODECS[self.codec], layers) if basis is None else lowrank.LowRank(basis)
        return Layout(layers, spec.hidden_size, features, CODECS[self.last_codec], self.trim)


def cache_identity(
    target: Any, samples: Sequence[Sample], settings: CacheSettings, text: dict, held_out: Sequence[int] = ()
) -> dict[str, Any]:
    """What must agree for a cache to be this run's.

    Args:
        text: names tokenizer, template and max_length. held_out: indices of samples that a basis is not learned from.
    """
    low_rank = settings.codec == lowrank.NAME
    return {
        **text_identity(target, samples, text),
        "format": "shards-1",
        "codec": settings.codec,
        "codec_rank": settings.rank_of(target.spec) if low_rank else None,
        "last_codec": settings.last_codec,
        "trim": settings.trim,
        "supervised": digest([sample.loss_mask.nonzero().squeeze(-1).tolist() for sample in samples]),
        "compute_dtype": str(compute_dtype(target, computing(settings))),
        "shard_tokens": settings.shard_tokens,
        **({"held_out": digest(sorted(held_out))} if low_rank else {}),
    }


def planned_bytes(
    settings: CacheSettings, spec: Any, samples: int, tokens: float, teachers: float | None = None
) -> float:
    """Bytes of the cache of ``samples`` conversations that store ``tokens`` each, on average.

    Args:
        teachers: tokens of each with a last hidden state and a normalizer; None: all, which is the most it can be.
    """
    teachers = tokens if teachers is None else teachers
    states = tokens * settings.feature_bytes(spec) + teachers * bytes_per_token(settings.last_codec, spec.hidden_size)
    payload = states + tokens * IDS_AND_MASK + teachers * NORMALIZER
    shards = -(-samples * tokens // settings.shard_tokens)
    return samples * (payload + MEMBER_OVERHEAD) + shards * SHARD_OVERHEAD


def cache_folder(folder: Path | None, identity: dict) -> Path:
    """``folder``, or the one in the cache that is named by the identity."""
    return folder or cache_root() / "features" / digest(identity)


class CacheStore:
    """Features by sample index, decoded from the shards of a finished cache.

    Raises:
        ValueError: no finished cache of this identity in the folder, or damaged shards.
    """

    def __init__(
        self, samples: Sequence[Sample], folder: Path, identity: dict, layout: Layout, shard_tokens: int
    ) -> None:
        self.folder, self.samples, self.layout = folder, samples, layout
        self._stamp, self._manifest = digest(identity), read_object(folder / MANIFEST)
        self._shards: dict[int, Shard] = {}
        shards = plan_shards(samples, shard_tokens)
        self._shard_of = {index: shard for shard, members in enumerate(shards) for index in members}
        self._digests = _digests(folder / MANIFEST, self._manifest, len(shards))
        if self._manifest.get("basis") != basis_digest(layout):
            raise ValueError(f"{folder / BASIS} is not the basis that the manifest names; prepare the features again")
        for index in range(len(shards)):
            self._open(index)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """``features`` [T, M*D], ``last_hidden`` [T, D] and ``log_normalizer`` [T] of sample ``index``.

        Raises:
            ValueError: bytes were changed, or they are another conversation's.
        """
        return read_sample(self._open(self._shard_of[index]), index, self.samples[index], self.layout)

    def _open(self, index: int) -> Shard:
        if index not in self._shards:
            shard = Shard(shard_path(self.folder, index))
            check_stamp(shard, self._stamp, index, self._manifest.get("basis"))
            if shard.digest != self._digests[index]:
                raise ValueError(f"{shard.path} is not the shard that the manifest names; prepare the features again")
            self._shards[index] = shard
        return self._shards[index]

    def __getstate__(self) -> dict[str, Any]:
        """Without open maps, for loader processes that are spawned."""
        return self.__dict__ | {"_shards": {}}

    def check(self, target: Any, compute: torch.dtype) -> None:
        """Refuse states that are not the target's own, at the shortest conversation (case 1).

        Raises:
            ValueError: stored states differ from the target's by more than their codec and twice the rounding explain.
        """
        index = min(self._shard_of, key=lambda i: (len(self.samples[i]), i))
        sample, stored = self.samples[index], self[index]
        ids = sample.input_ids.long()[None]
        target.self_check(ids)
        live = target(ids.to(target.device))
        kept = extent(sample.loss_mask, self.layout.trim)
        _compare(
            live.features[0, : kept.context].float().cpu(), stored[0][: kept.context], self.layout, "features", compute
        )
        own = live.last_hidden[0].float().cpu()[kept.states]
        _compare(own, stored[1][kept.states], self.layout, "last_hidden", compute)


def _digests(path: Path, manifest: dict[str, Any], count: int) -> list[str]:
    """Digests of the ``count`` shards that a manifest names.

    Raises:
        ValueError: it names others, or none.
    """
    shards = manifest.get("shards")
    if not isinstance(shards, list) or len(shards) != count or not all(isinstance(shard, dict) for shard in shards):
        raise ValueError(
            f"{path} does not name the {count} shards of this cache; it was damaged: prepare the features again"
        )
    return [shard.get("digest") for shard in shards]


def read_sample(shard: Shard, index: int, sample: Sample, layout: Layout) -> tuple[Tensor, Tensor, Tensor | None]:
    """``features`` [T, M*D], ``last_hidden`` [T, D] and ``log_normalizer`` [T] of ``sample``, number ``index``, in ``shard``.

    Raises:
        ValueError: bytes were changed, or they are another conversation's.
    """
    stored = unpack(shard.payload(index), sample.loss_mask, layout)
    if not torch.equal(stored.input_ids, sample.input_ids[: len(stored.input_ids)].to(torch.int32)):
        raise ValueError(
            f"{shard.path} holds another conversation in place of {sample.id!r}; prepare the features again"
        )
    return stored.features, stored.last_hidden, stored.log_normalizer


def open_cache(
    target: Any, samples: Sequence[Sample], folder: Path, identity: dict, settings: CacheSettings
) -> CacheStore:
    """The finished cache of ``samples``.

    Raises:
        ValueError: it is missing, unfinished, of another identity, damaged, or not this target's.
    """
    if not (folder / MANIFEST).exists():
        raise ValueError(
            f"no finished feature cache in {folder}; run prepare.py stage=features with the same choices first"
        )
    claim(folder, identity, "features", "data.cache_dir")
    layout = layout_of(folder, target.spec, settings)
    store = CacheStore(samples, folder, identity, layout, settings.shard_tokens)
    store.check(target, compute_dtype(target, computing(settings)))
    return store


def basis_digest(layout: Layout) -> str | None:
    """Digest of the layout's basis; None for a codec without one."""
    return layout.features.basis.digest if isinstance(layout.features, lowrank.LowRank) else None


def layout_of(folder: Path, spec: Any, settings: CacheSettings) -> Layout:
    """Layout of the cache in ``folder``, with its basis if the codec has one.

    Raises:
        ValueError: the basis is missing or damaged.
    """
    low_rank = settings.codec == lowrank.NAME
    return settings.layout(spec, lowrank.load_basis(folder / BASIS, spec.num_features) if low_rank else None)


def check_stamp(shard: Shard, stamp: str, index: int, basis: str | None = None) -> None:
    """Refuse a shard of another identity, place or basis, naming what differs."""
    for key, expected in (("stamp", stamp), ("shard", index), *([("basis", basis)] if basis else [])):
        if shard.meta.get(key) != expected:
            raise ValueError(
                f"{shard.path} is a foreign shard: its {key} is {shard.meta.get(key)!r}, expected {expected!r}; remove it and "
                "run prepare.py with the same stage again"
            )


def _compare(own: Tensor, stored: Tensor, layout: Layout, name: str, compute: torch.dtype) -> None:
    codec = getattr(layout, name)
    usual = relative_error(own, codec.decode(codec.encode(own), own.shape[-1])) if len(own) else 0.0
    error, allowed = relative_error(own, stored), 2 * usual + max(1e-3, 8 * torch.finfo(compute).eps)
    if not error <= allowed:
        raise ValueError(
            f"the stored {name} differ from the target's own by {error:.3g} of their size (allowed {allowed:.3g}): they were made "
            "by another target, of other layers, or before the final norm; prepare them again in another folder (data.cache_dir=…)"
        )


def computing(settings: CacheSettings) -> FeatureSettings:
    """Settings of the target's reading; bfloat16 products serve every codec."""
    return FeatureSettings(compute_dtype=settings.compute_dtype, batch_tokens=settings.batch_tokens)
