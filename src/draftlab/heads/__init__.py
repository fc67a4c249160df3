"""Sequential heads (``head=markov|gated|rnn|domino|none``) and the confidence head; see :mod:`draftlab.heads.base`."""

from draftlab.heads.base import Head
from draftlab.heads.confidence import ConfidenceHead
from draftlab.heads.domino import DominoHead
from draftlab.heads.gated import GatedHead
from draftlab.heads.markov import MarkovHead
from draftlab.heads.none import NoHead
from draftlab.heads.rnn import RNNHead

__all__ = ["ConfidenceHead", "DominoHead", "GatedHead", "Head", "MarkovHead", "NoHead", "RNNHead"]
