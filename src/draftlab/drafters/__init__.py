"""Drafters (``drafter=dspark|dflash|eagle3|mtp``) behind one interface; see :mod:`draftlab.drafters.base`."""

from draftlab.drafters.base import Drafter
from draftlab.drafters.cache import DraftCache
from draftlab.drafters.dflash import DFlash
from draftlab.drafters.dspark import DSpark
from draftlab.drafters.eagle3 import Eagle3
from draftlab.drafters.layers import LayerStyle
from draftlab.drafters.mtp import MTP

__all__ = ["MTP", "DFlash", "DSpark", "DraftCache", "Drafter", "Eagle3", "LayerStyle"]
