"""A reduced draft vocabulary: the W tokens that cover most of the training answers.

    coverage(ids) = Σ_{v in ids} counts[v] / Σ_v counts[v]

Tokens outside it have draft probability 0; verification stays lossless, so this trades acceptance for a smaller LM
head. The module knows nothing of drafters.

    >>> choose_draft_vocabulary(torch.tensor([5, 0, 1, 4]), size=2)
    DraftVocabulary(ids=tensor([0, 3]), coverage=0.9)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftVocabulary:
    """Target token ids [W] int64, ascending, and the share of supervised training tokens that they cover."""

    ids: Tensor
    coverage: float


def token_counts(token_ids: Iterable[Tensor], vocab_size: int) -> Tensor:
    """How often each token occurs in the given id tensors, int64 [V].

    Raises:
        ValueError: a token id outside the vocabulary (answers of another tokenizer).
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for ids in token_ids:
        part = torch.bincount(ids.flatten().long(), minlength=vocab_size)
        if len(part) > vocab_size:
            raise ValueError(
                f"token id {len(part) - 1} is outside of the target's vocabulary of {vocab_size}; "
                "the tokenizer and the target do not belong together"
            )
        counts += part
    return counts


def choose_draft_vocabulary(counts: Tensor, size: int) -> DraftVocabulary:
    """The ``size`` most frequent tokens of ``counts`` [V]; ties, and places that are left over, go to lower ids.

    Raises:
        ValueError: a size outside 1..V, or no counted token at all.
    """
    if not 1 <= size <= len(counts):
        raise ValueError(f"drafter.draft_vocab_size must lie in 1..{len(counts)} (the target's vocabulary), got {size}")
    total = int(counts.sum())
    if total == 0:
        raise ValueError("no supervised token in the training answers, so no draft vocabulary can be chosen")
    ids = torch.sort(counts, descending=True, stable=True).indices[:size].sort().values
    return DraftVocabulary(ids, int(counts[ids].sum()) / total)
