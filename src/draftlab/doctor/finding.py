"""One line of the doctor's page: something, what was found of it, and what its absence costs.

>>> Finding("git", "not found", remedy="install git", lacks="sources of llama.cpp").is_missing
True
"""

from __future__ import annotations

from dataclasses import dataclass

UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Finding:
    """What was found of one thing.

    Args:
        what: its name. found: its version, place or size. note: what was wanted, or where it is.
        lacks: what does not work without it; empty where all is well.
        remedy: what to do about it.
        needed: the quick start needs it.
    """

    what: str
    found: str
    note: str = ""
    lacks: str = ""
    remedy: str = ""
    needed: bool = False

    @property
    def is_missing(self) -> bool:
        """Whether something does not work for want of it."""
        return bool(self.lacks)


def size_text(size: float) -> str:
    """A number of bytes as people say it.

    >>> size_text(543_000_000)
    '543 MB'
    """
    power = 0
    while size >= 999.5 and power < len(UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.3g} {UNITS[power]}"
