"""Named loss terms and their evaluation over chunks of blocks (method 3)."""

from draftlab.losses.draft_loss import DraftLoss, LossReport, draft_index, teacher_probs
from draftlab.losses.terms import Confidence, CrossEntropy, Slots, Term, TotalVariation

__all__ = [
    "Confidence",
    "CrossEntropy",
    "DraftLoss",
    "LossReport",
    "Slots",
    "Term",
    "TotalVariation",
    "draft_index",
    "teacher_probs",
]
