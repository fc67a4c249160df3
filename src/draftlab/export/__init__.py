"""Drafters in the formats of other engines, out and in (``src/export.py``, ``src/adopt.py``): foreign names live here only."""
