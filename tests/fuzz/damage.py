"""Ways in which files come damaged or foreign, as strategies: bytes that were cut, flipped or recoded, and values of other types.

    @given(damaged(content))            # bytes, now and then the very same ones
    @given(altered({"a": [1, 2]}))      # a JSON value with one place of it replaced or gone

``outcome`` is the one thing that a reader may do about them: give a value, or a ValueError that names the file.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

RAW = [
    *(b"", b"\n\n", b"null", b"3", b"[]", b"{}", b'"a"', b"[1]", b'{"a": NaN}', b"\x00" * 10, b"\xff\xfe{\x00}\x00"),
    *(b"[" * 100_000, b"9" * 5000, b"[" + b"9" * 5000 + b"]", b'{"a": "\\ud800"}', b"PK\x03\x04", b"{'a': 1}"),
]
ODD = [
    *(None, True, False, -1, 0, 3, 2.5, -0.0, 1e308, 10**30, float("nan"), float("inf"), "", "x", "1", [], {}),
    *([None], [[1]], ["x"], {"a": None}, [1, "x"], [10**30, 1], [float("nan")], "\ud800", {"": []}),
]
BOM = b"\xef\xbb\xbf"


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """``content`` with one accident, or none."""
    start, stop = sorted((draw(st.integers(0, len(content))), draw(st.integers(0, len(content)))))
    kind = draw(
        st.sampled_from(["none", "cut", "flip", "gone", "insert", "twice", "zeros", "bom", "crlf", "utf16", "raw"])
    )
    if kind == "flip":
        changed = bytearray(content)
        for place in draw(st.lists(st.integers(0, max(len(content) - 1, 0)), min_size=1, max_size=4)):
            if content:
                changed[place] ^= draw(st.integers(1, 255))
        return bytes(changed)
    return {
        "none": content,
        "cut": content[:start],
        "gone": content[:start] + content[stop:],
        "insert": content[:start]
        + draw(st.sampled_from([b"\x00", b"\r", b"\xff", BOM, b"\n", b"NaN", b"}"]))
        + content[start:],
        "twice": content + content[start:stop],
        "zeros": content[:start] + b"\x00" * (stop - start) + content[stop:],
        "bom": BOM + content,
        "crlf": content.replace(b"\n", b"\r\n"),
        "utf16": content.decode("utf-8", "replace").encode("utf-16"),
        "raw": draw(st.sampled_from(RAW)),
    }[kind]


def _places(value: Any, path: tuple = ()) -> list[tuple]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in _places(child, (*path, key)))]


@st.composite
def altered(draw, value: Any) -> Any:
    """``value`` with one place of it odd, gone, or twice there; odd values may stand at the very top."""
    *path, last = (None, *draw(st.sampled_from(_places(value))))
    if last is None:
        return draw(st.sampled_from(ODD))
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[1:]:
        inner = inner[key]
    kind = draw(st.sampled_from(["odd", "odd", "odd", "gone", "twice"]))
    if kind == "odd":
        inner[last] = draw(st.sampled_from(ODD))
    elif kind == "gone":
        del inner[last]
    elif isinstance(inner, list):
        inner.insert(last, inner[last])
    else:
        inner[f"{last}_"] = inner[last]
    return changed


def as_json(value: Any) -> bytes:
    """As Python writes it: NaN and Infinity bare, broken characters escaped."""
    return json.dumps(value).encode()


def outcome(read: Callable[[Path], Any], path: Path, content: bytes | None = None) -> Any:
    """What ``read`` gives for ``path``, or its ValueError, which must name the file and say more than a line of it."""
    if content is not None:
        path.write_bytes(content)
    try:
        return read(path)
    except ValueError as error:
        said = str(error)
        assert path.name in said or str(path.parent) in said, f"{type(error).__name__} names no file: {said[:300]}"
        return error
