"""Small file helpers of the data stages: whole-file atomic writes, durable appends, JSONL with line numbers, digests.

A file is written under a temporary name, flushed to disk and renamed, so that a reader sees the old file or the new one
and never half of one (case 13). Appends write whole lines; a torn last line, left by a killed writer, is cut off on
resume. The module knows nothing of conversations or models.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    True
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

PROJECT_PREFIX = "project:"
MANIFEST, IDENTITY = "manifest.json", "identity.json"
TEXT = "utf-8-sig"  # UTF-8, with the mark before it that some editors write or without


def resolve_path(path: str | Path) -> Path:
    """Absolute path of ``path``; ``project:data/demo`` lies in the project's own folder, from any working directory.

    Raises:
        ValueError: a ``project:`` path of an installation that has no project folder (no source checkout).
    """
    text = str(path)
    if not text.startswith(PROJECT_PREFIX):
        return Path(text).expanduser().absolute()
    root = Path(__file__).resolve().parents[3]
    if not (root / "conf").is_dir():
        raise ValueError(f"{text} needs a source checkout of DraftLab (no conf/ folder in {root}); give a path instead")
    return root / text.removeprefix(PROJECT_PREFIX)


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` so that a kill at any moment leaves the old content or the new one."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` so that a kill at any moment leaves the old content or the new one."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` when the block ends; after an error nothing of it is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON value of a file.

    Raises:
        ValueError: it is missing or not valid JSON.
    """
    try:
        return _loads(path.read_text(encoding=TEXT))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file.

    Raises:
        ValueError: it is missing, not valid JSON, or something else than an object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(
            f"{path}: expected a JSON object, got {type(value).__name__}; it was damaged or is another file"
        )
    return value


def append_lines(path: Path, records: Iterable[dict]) -> None:
    """Append one JSON line a record in a single write and wait until it is on the disk."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    with path.open("ab") as file:
        file.write(text.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())


def drop_torn_line(path: Path) -> bool:
    """Cut a last line without its newline off ``path``; True if there was one. A missing file is fine."""
    if not path.exists():
        return False
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == len(content):
        return False
    os.truncate(path, whole)
    return True


def read_jsonl(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield (line number from 1, object) of a JSONL file; blank lines are passed over.

    Raises:
        ValueError: no such file, a line that is not a JSON object (with its number), or no object at all.
    """
    if not path.is_file():
        raise ValueError(f"no such JSONL file: {path}")
    found = False
    with path.open(encoding=TEXT, errors="strict") as file:
        for number, line in enumerate(_decoded(file, path), start=1):
            if not line.strip():
                continue
            found = True
            yield number, _parse(line, path, number)
    if not found:
        raise ValueError(f"{path} is empty: expected one JSON object a line")


def digest(value: Any) -> str:
    """Hexadecimal SHA-256 (first 16 characters) of a JSON-serialisable value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8")).hexdigest()[:16]


def first_difference(expected: dict, found: dict, prefix: str = "") -> tuple[str, Any, Any] | None:
    """Dotted name of the first key at which two nested dictionaries differ, with both values; None if they agree."""
    for key in sorted(expected.keys() | found.keys()):
        ours, theirs = expected.get(key), found.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            if inner := first_difference(ours, theirs, f"{prefix}{key}."):
                return inner
        elif ours != theirs:
            return f"{prefix}{key}", ours, theirs
    return None


def claim(folder: Path, identity: dict, what: str, field: str) -> None:
    """Make ``folder`` hold ``what`` of this identity: note it in ``identity.json`` until a manifest takes its place.

    Raises:
        ValueError: it is a file, cannot be written to, or was begun with another identity; the message names the
            differing key and ``field``.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{field} must be a folder for the {what}, but {folder} is a file; give another path")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{field}: no folder for the {what} can be made at {folder} ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{field}: {folder} cannot be written to; give another folder, or mend its permissions")
    for path in (folder / MANIFEST, folder / IDENTITY):
        if not path.exists():
            continue
        found = read_object(path)
        found = found.get("identity") if path.name == MANIFEST else found
        if not isinstance(found, dict):
            raise ValueError(
                f"{path} names no identity of its {what}: it was damaged; remove {folder}, or give another ({field}=…)"
            )
        if difference := first_difference(identity, found):
            key, ours, theirs = difference
            raise ValueError(
                f"{folder} holds {what} made with another {key}: there it is {theirs!r}, now it is {ours!r}. "
                f"Give another folder ({field}=…) or the same settings"
            )
    if not (folder / MANIFEST).exists():
        write_json(folder / IDENTITY, identity)


def seal(folder: Path, manifest: dict) -> None:
    """Write the manifest, the sign that the folder is complete; it holds the identity from now on."""
    write_json(folder / MANIFEST, manifest)
    (folder / IDENTITY).unlink(missing_ok=True)


def reopen(folder: Path, identity: dict) -> None:
    """Take the manifest away before a complete folder grows; the identity stays on the disk at every moment."""
    write_json(folder / IDENTITY, identity)
    (folder / MANIFEST).unlink(missing_ok=True)


def _decoded(file, path: Path) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        try:
            line = file.readline()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number} or a little after it: not UTF-8 text ({error.reason})") from None
        if not line:
            return
        yield line


def _loads(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: no JSON, a number of thousands of digits, or half a character, which no file could hold again.
        RecursionError: brackets inside brackets without end.
    """
    value = json.loads(text)
    if "\\ud" in text.lower():  # an escaped surrogate, usually one of a pair
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"it holds half a character, {error.object[error.start]!a}") from None
    return value


def _parse(line: str, path: Path, number: int) -> dict:
    try:
        value = _loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number}: not valid JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number}: not readable as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}, line {number}: expected a JSON object, got {type(value).__name__}")
    return value
