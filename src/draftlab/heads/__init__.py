"""Sequential heads (``head=markov|gated|rnn|none``) and the confidence head; see :mod:`draftlab.heads.base`."""

from draftlab.heads.base import Head
from draftlab.heads.confidence import ConfidenceHead
from draftlab.heads.gated import GatedHead
from draftlab.heads.markov import MarkovHead
from draftlab.heads.none import NoHead
from draftlab.heads.rnn import RNNHead

__all__ = ["ConfidenceHead", "GatedHead", "Head", "MarkovHead", "NoHead", "RNNHead"]
