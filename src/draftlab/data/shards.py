"""Shards of the feature cache: ``shard-%06d.tar``, one member a conversation, which WebDataset reads in sequence and
:class:`Shard` at random.

    payload of a member    ids int32 [T] | supervised uint8 [T] | features [C, S_f] | last hidden [K, S_l] | normalizer float32 [K']

Which positions are stored follows from the supervised ones alone (``trim``), so no index is stored:

    none       everything at every token
    span       features before the last anchor (context is strictly before an anchor), last hidden states up to it
    teachers   as span, but last hidden states at anchors only: where they teach (method 3)

The normalizer is stored at anchors only. The first member, ``__meta__``, holds the stamp of the identity and the size and
checksum of each payload; it fixes all offsets, so a cut file is known by its length and a changed byte when it is read. A
shard is written whole under a temporary name, flushed and renamed. The module knows nothing of targets.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftlab.blocks import anchor_candidates
from draftlab.data.codecs import Codec, as_bytes, from_bytes
from draftlab.data.files import replacing

TRIMS = ("none", "span", "teachers")
META, EXTENSION = "__meta__", "states"
BLOCK, RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
FORMAT = 1


@dataclass(frozen=True)
class Extent:
    """Which positions of a conversation are stored."""

    tokens: int  # T of the stored ids
    context: int  # features of positions 0 … context - 1
    states: Tensor  # [K] positions of last hidden states
    teachers: Tensor  # [K'] positions of normalizers


def extent(loss_mask: Tensor, trim: str) -> Extent:
    """What ``trim`` keeps of a conversation with supervised positions ``loss_mask`` bool [T]; at least one anchor."""
    teachers = anchor_candidates(loss_mask[None])[0].nonzero().squeeze(-1)
    if trim == "none":
        return Extent(len(loss_mask), len(loss_mask), torch.arange(len(loss_mask)), teachers)
    last = int(teachers[-1])
    return Extent(last + 2, last, teachers if trim == "teachers" else torch.arange(last + 1), teachers)


@dataclass(frozen=True)
class Layout:
    """What a payload holds: sizes M and D, the codecs of both kinds of states, and what is trimmed."""

    layers: int
    hidden: int
    features: Codec  # over M*D values
    last_hidden: Codec  # over D values
    trim: str
    log_normalizer: bool = True

    def sections(self, kept: Extent) -> list[tuple[int, int]]:
        """(rows, bytes of a row) of every section of a payload, in order."""
        return [
            (kept.tokens, 4),
            (kept.tokens, 1),
            (kept.context, self.features.bytes_per_token(self.layers * self.hidden)),
            (len(kept.states), self.last_hidden.bytes_per_token(self.hidden)),
            (len(kept.teachers) if self.log_normalizer else 0, 4),
        ]


@dataclass(frozen=True)
class Stored:
    """One conversation read back; states are 0 and normalizers infinite where none are stored."""

    input_ids: Tensor  # [T'] int32, as far as stored
    loss_mask: Tensor  # [T'] bool
    features: Tensor  # [T, M*D] float32
    last_hidden: Tensor  # [T, D] float32
    log_normalizer: Tensor | None  # [T] float32


def pack(
    ids: Tensor, loss_mask: Tensor, features: Tensor, last: Tensor, normalizer: Tensor | None, layout: Layout
) -> bytes:
    """Payload of one conversation.

    Args:
        ids, loss_mask: [T]. features: [T, M*D]. last: *encoded* last hidden states [K, S_l] at ``extent(…).states``, since the
            normalizer must be theirs. normalizer: [K'] at ``extent(…).teachers``; None if the layout has none.
    """
    kept = extent(loss_mask, layout.trim)
    parts = [
        as_bytes(ids[: kept.tokens].to(torch.int32)),
        loss_mask[: kept.tokens].to(torch.uint8),
        layout.features.encode(features[: kept.context]),
        last,
        *([] if normalizer is None else [as_bytes(normalizer.float())]),
    ]
    return b"".join(part.numpy().tobytes() for part in parts)


def unpack(payload: bytes, loss_mask: Tensor, layout: Layout) -> Stored:
    """The conversation of a payload, at the full length of ``loss_mask`` bool [T].

    Raises:
        ValueError: another length than these supervised positions give, so another conversation.
    """
    kept = extent(loss_mask, layout.trim)
    sections = layout.sections(kept)
    if len(payload) != sum(rows * size for rows, size in sections):
        raise ValueError("a payload has another length than its conversation gives")
    raw = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    ids, mask, features, last, normalizer = (
        part.reshape(rows, size)
        for part, (rows, size) in zip(raw.split([r * s for r, s in sections]), sections, strict=True)
    )
    width, length = layout.layers * layout.hidden, len(loss_mask)
    states = torch.zeros(length, layout.hidden)
    states[kept.states] = layout.last_hidden.decode(last, layout.hidden)
    context = torch.zeros(length, width)
    context[: kept.context] = layout.features.decode(features, width)
    log_normalizer = torch.full((length,), torch.inf) if layout.log_normalizer else None
    if log_normalizer is not None:
        log_normalizer[kept.teachers] = from_bytes(normalizer, torch.float32).squeeze(-1)
    return Stored(from_bytes(ids, torch.int32).squeeze(-1), mask.squeeze(-1).bool(), context, states, log_normalizer)


@dataclass(frozen=True)
class Member:
    """One conversation of a shard, ready to be written."""

    index: int  # of the sample
    id: str
    tokens: int  # of the whole conversation
    payload: bytes


def write_shard(path: Path, stamp: dict[str, Any], members: Sequence[Member]) -> None:
    """Write a shard atomically; the same members give the same bytes.

    Raises:
        OSError: the disk is full or the like; nothing of this shard is left then.
    """
    import webdataset  # slow to import, and reading needs it not

    meta = _meta(stamp, members)
    with replacing(path) as file, webdataset.TarWriter(file, encoder=False, mtime=0, mode=0o644) as writer:
        header = tarfile.TarInfo(META)
        header.size = len(meta)
        writer.tarstream.addfile(header, io.BytesIO(meta))
        for member in members:
            writer.write({"__key__": f"{member.index:09d}", EXTENSION: member.payload})


def shard_bytes(stamp: dict[str, Any], members: Sequence[Member]) -> int:
    """Bytes of the file that :func:`write_shard` makes of them."""
    sizes = (len(_meta(stamp, members)), *(len(member.payload) for member in members))
    return archive_bytes(sum(map(member_bytes, sizes)))


def _meta(stamp: dict[str, Any], members: Sequence[Member]) -> bytes:
    """The list of a shard, which is its first member."""
    entries = [
        {"index": m.index, "id": m.id, "tokens": m.tokens, "bytes": len(m.payload), "sha256": _checksum(m.payload)}
        for m in members
    ]
    return json.dumps({"format": FORMAT, **stamp, "samples": entries}, ensure_ascii=False).encode()


class Shard:
    """A finished shard, mapped; payloads by sample index.

    Raises:
        ValueError: the file is missing, cut, or no shard.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            header = tarfile.TarInfo.frombuf(self._map[:BLOCK], "utf-8", "strict")
            text = self._map[BLOCK : BLOCK + header.size]
            self.meta = json.loads(text) if header.name == META else {}
            samples = _entries(self.meta)
        except (OSError, ValueError, RecursionError, tarfile.TarError) as error:
            raise ValueError(f"{path} is not a whole shard of target features ({error or 'empty'}); {AGAIN}") from None
        self.digest = hashlib.sha256(text).hexdigest()[:32]
        self._place: dict[int, tuple[int, dict]] = {}
        offset = member_bytes(header.size)
        for entry in samples:
            self._place[entry["index"]] = offset + BLOCK, entry
            offset += member_bytes(entry["bytes"])
        if len(self._map) != archive_bytes(offset):
            raise ValueError(
                f"{path} has {len(self._map)} bytes, its own list needs {archive_bytes(offset)}: it was cut; {AGAIN}"
            )
        self._checked: set[int] = set()

    def __len__(self) -> int:
        """Bytes of the file."""
        return len(self._map)

    def payload(self, index: int) -> bytes:
        """Payload of sample ``index``, its checksum compared at the first reading.

        Raises:
            ValueError: the shard holds no such sample, or changed bytes.
        """
        if index not in self._place:
            raise ValueError(f"{self.path} holds no sample {index}: it is of another cache; {AGAIN}")
        start, entry = self._place[index]
        payload = self._map[start : start + entry["bytes"]]
        if index not in self._checked and _checksum(payload) != entry["sha256"]:
            raise ValueError(
                f"{self.path}: the checksum of sample {entry['id']!r} differs, its bytes were changed; {AGAIN}"
            )
        self._checked.add(index)
        return payload


AGAIN = "remove the file and run prepare.py with the same stage again, which makes what is missing"


def shard_path(folder: Path, index: int) -> Path:
    """Path of shard ``index``."""
    return folder / f"shard-{index:06d}.tar"


def member_bytes(size: int) -> int:
    """Bytes that a payload of ``size`` takes in a tar file: its header, and whole blocks."""
    return BLOCK + -(-size // BLOCK) * BLOCK


def archive_bytes(content: int) -> int:
    """Bytes of a tar file whose members take ``content``: two empty blocks, and whole records."""
    return -(-(content + 2 * BLOCK) // RECORD) * RECORD


def _entries(meta: Any) -> list[dict[str, Any]]:
    """The list of a shard's conversations.

    Raises:
        ValueError: there is none, or an entry lacks something.
    """
    entries = meta.get("samples") if isinstance(meta, dict) else None
    if not isinstance(entries, list):
        raise ValueError("no list of conversations")
    for entry in entries:
        fits = isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and "id" in entry
        if not fits or any(type(entry.get(key)) is not int or entry[key] < 0 for key in ("index", "bytes")):
            raise ValueError(f"its list has the entry {entry!r:.100}")
    return entries


def _checksum(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()[:32]
