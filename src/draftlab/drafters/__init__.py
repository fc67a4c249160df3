"""Drafters (``drafter=dspark|dflash``) behind one interface; see :mod:`draftlab.drafters.base`."""

from draftlab.drafters.base import Drafter
from draftlab.drafters.cache import DraftCache
from draftlab.drafters.dflash import DFlash
from draftlab.drafters.dspark import DSpark

__all__ = ["DFlash", "DSpark", "DraftCache", "Drafter"]
