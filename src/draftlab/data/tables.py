"""Rows with named columns from wherever they lie: JSONL, JSON and Parquet files, folders of them, folders written by
``datasets``' ``save_to_disk``, and the hub.

Files are read one after another and never held whole (but a JSON array is), so the first rows come at once. The module
knows nothing of what the columns mean.

    rows = open_rows("chats.parquet")
    rows.columns                                   # ("id", "messages")
    for row in rows.read(["messages"]): ...        # dictionaries
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlab.data.files import read_json, read_jsonl, resolve_path

SUFFIXES = (".jsonl", ".json", ".parquet")
SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")  # marks of save_to_disk
SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")  # words that say which split a file holds


@dataclass(frozen=True)
class Rows:
    """A table to be read once or several times.

    Args:
        columns: those that every file has; of a JSONL file, those of its first line.
        total: number of rows (of a JSONL file, of lines).
        read: gives the rows as dictionaries that have at least those of the named columns that a row has.
    """

    columns: tuple[str, ...]
    total: int
    read: Callable[[Sequence[str]], Iterator[dict[str, Any]]]


def open_rows(path: str | Path, name: str | None = None, split: str = "train") -> Rows:
    """Rows of a file, a folder or a hub id; a file is read whole, whatever ``split`` says.

    Args:
        path: what to read; ``project:…`` lies in the project's folder.
        name: the hub configuration, if the set has several.
        split: of the hub (a part of one as well: ``train[:20000]``), of a saved ``DatasetDict``, or the word in the
            names of a folder's files (``train-00000-of-00002.parquet``; all files if no name holds such a word).

    Raises:
        ValueError: nothing there, a file of another kind, damaged or without rows, or an unknown split.
    """
    place = resolve_path(path)
    if place.is_dir():
        return _saved(place, split) if any((place / mark).exists() for mark in SAVED) else _files(_chosen(place, split))
    if place.is_file():
        return _files([place])
    if place.suffix in SUFFIXES or str(path).startswith((".", "/", "~", "project:")):
        raise ValueError(f"prompts.path: no file or folder at {place}")
    return _hub(str(path), name, split)


def _hub(path: str, name: str | None, split: str) -> Rows:
    import datasets  # slow to import, and needed for the hub and for saved sets only

    try:
        return _dataset(datasets.load_dataset(path, name, split=split))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:  # id, split, connection, files
        raise ValueError(
            f"prompts.path: {path} is neither a file or folder here nor a data set that could be loaded from the hub: "
            f"{error}"
        ) from error


def _saved(place: Path, split: str) -> Rows:
    import datasets

    try:
        rows = datasets.load_from_disk(str(place))
    except (OSError, ValueError) as error:
        raise ValueError(f"prompts.path: the data set saved in {place} cannot be opened: {error}") from error
    if isinstance(rows, dict):
        if split not in rows:
            raise ValueError(f"prompts.split: {place} has the splits {', '.join(rows)}, not {split!r}")
        rows = rows[split]
    return _dataset(rows)


def _dataset(rows: Any) -> Rows:
    columns = tuple(rows.column_names)
    return Rows(columns, len(rows), lambda wanted: iter(rows.select_columns([c for c in wanted if c in columns])))


def _chosen(folder: Path, split: str) -> list[Path]:
    """The files of ``folder`` that hold ``split`` by their names."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise ValueError(f"prompts.path: no {', '.join(SUFFIXES)} file in {folder}, nor a set written by save_to_disk")
    words = {path: re.split(r"[^a-z]+", str(path.relative_to(folder)).lower()) for path in files}
    named = {word for path in files for word in words[path] if word in SPLITS or word == split}
    if named and split not in named:
        raise ValueError(f"prompts.split: the files of {folder} are named {', '.join(sorted(named))}, not {split!r}")
    return [path for path in files if not named or split in words[path]]


def _files(paths: Sequence[Path]) -> Rows:
    parts = [_file(path) for path in paths]
    columns = tuple(column for column in parts[0].columns if all(column in part.columns for part in parts))
    return Rows(
        columns, sum(part.total for part in parts), lambda wanted: (row for part in parts for row in part.read(wanted))
    )


def _file(path: Path) -> Rows:
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix == ".jsonl" or (path.suffix == ".json" and not _is_array(path)):
        return _jsonl(path)
    if path.suffix == ".json":
        return _array(path)
    raise ValueError(f"prompts.path: {path} is of an unknown kind; expected {', '.join(SUFFIXES)}")


def _parquet(path: Path) -> Rows:
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from error
    columns = tuple(file.schema_arrow.names)

    def read(wanted: Sequence[str]) -> Iterator[dict]:
        for batch in file.iter_batches(1024, columns=[column for column in wanted if column in columns]):
            yield from batch.to_pylist()

    return Rows(columns, file.metadata.num_rows, read)


def _jsonl(path: Path) -> Rows:
    _, first = next(read_jsonl(path))
    with path.open("rb") as file:
        total = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return Rows(tuple(first), max(total, 1), lambda _: (record for _, record in read_jsonl(path)))


def _array(path: Path) -> Rows:
    records = read_json(path)
    if not records:
        raise ValueError(f"{path} is empty: expected a JSON array of objects")
    for index, record in enumerate(records):
        if not isinstance(record, dict):
            raise ValueError(f"{path}, entry {index}: expected a JSON object, got {type(record).__name__}")
    return Rows(tuple(records[0]), len(records), lambda _: iter(records))


def _is_array(path: Path) -> bool:
    """Whether a ``.json`` file is one array, as ShareGPT's; else it is taken as one object a line."""
    with path.open("rb") as file:
        return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
