"""A composed configuration as flat keys with values as YAML writes them, so that two can be compared.

    block: {block_size: 7}    ->    ("block.block_size", "7")

References such as ``${seed}`` stay as they are: one changed value is one changed key. Pure functions; nothing here knows a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(tree: Mapping, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and value as text of everything in ``tree``; an empty group is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", text(value)


def text(value: Any) -> str:
    """A value as YAML writes it; 1 and 1.0 are the same."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {text(item)}" for key, item in value.items()) + "}"
    return str(value)
