"""Named loss terms and their evaluation over chunks of blocks (method 3)."""

from draftlab.losses.divergences import KL, LK, JensenShannon, NegLogAcceptance, ReverseKL
from draftlab.losses.draft_loss import DraftLoss, LossReport, draft_index, teacher_probs
from draftlab.losses.terms import Confidence, CrossEntropy, Slots, SoftCrossEntropy, Term, TotalVariation

__all__ = [
    "KL",
    "LK",
    "Confidence",
    "CrossEntropy",
    "DraftLoss",
    "JensenShannon",
    "LossReport",
    "NegLogAcceptance",
    "ReverseKL",
    "Slots",
    "SoftCrossEntropy",
    "Term",
    "TotalVariation",
    "draft_index",
    "teacher_probs",
]
