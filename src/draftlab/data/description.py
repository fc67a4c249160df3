"""DraftData: a data choice before anything of it is read: its settings checked, its folders, its prompts.

    data = DraftData("project:data/demo", max_length=512, batch_size=4)
    data.folder, data.read_prompts()                          # what prepare.py answers, and where the answers go

A plan, a refusal and the writing of answers need no more; :class:`draftlab.data.datamodule.DraftDataModule` makes batches of
the answers for Lightning, which is slow to import. The module knows nothing of targets or trainers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from draftlab.data.cache import CacheSettings
from draftlab.data.features import DTYPES
from draftlab.data.files import resolve_path
from draftlab.data.prompts import Prompt
from draftlab.data.window import StreamSettings

FEATURES = ("online", "memory", "cache", "stream")


class DraftData:
    """The settings of one set of answers.

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
        for name, value in (expected or {}).items():
            if value < 1:
                raise ValueError(f"data.expected.{name} must be at least 1, got {value}")
        if isinstance(more_paths, str):
            raise ValueError(f"data.more_paths is a list, as data.more_paths=[{more_paths}], got {more_paths!r}")
        self.path, self.more_paths, self.prompts, self.features = path, tuple(more_paths), prompts, features
        self.max_length, self.batch_size, self.val_samples, self.seed = max_length, batch_size, val_samples, seed
        self.num_workers, self.cache_dir = num_workers, cache_dir
        self.feature_dtype, self.compute_dtype = feature_dtype, compute_dtype
        self.cache = CacheSettings(codec, last_codec, trim, codec_rank, compute_dtype, shard_tokens=shard_tokens)
        self.stream = StreamSettings(window_gb, producer_seconds)
        self.expected, self.packing = dict(expected or {}), packing

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
