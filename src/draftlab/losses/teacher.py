"""The target's law at the slots of drafted blocks, from its last hidden states (method 3).

    p_t^k = softmax(LMHead(last hidden state at position a + k - 1))         once for each distinct position of a chunk

Over a reduced draft vocabulary the law is exact: it is divided by the sum over all V tokens. The module knows no loss.

    target_probs = teacher_probs(drafter, batch, blocks, rows, kept)          # [S, W]
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftlab.types import Batch, Blocks


@torch.no_grad()
def teacher_probs(drafter, batch: Batch, blocks: Blocks, rows: Tensor, kept: Tensor) -> Tensor:
    """p_t [S, W] float32 at the ``kept`` slots of blocks ``rows``, made once per distinct position.

    Over a reduced draft vocabulary the law is exact, not renormalised: ``log_normalizer`` covers all V tokens.
    """
    num_blocks, num_tokens = blocks.anchors.shape[1], batch.input_ids.shape[1]
    sequence = (rows // num_blocks).unsqueeze(-1) * num_tokens
    flat = (sequence + blocks.teacher_positions.flatten(0, 1)[rows])[kept]
    distinct, slot_of = flat.unique(return_inverse=True)
    states = batch.last_hidden.flatten(0, 1)[distinct]
    if drafter.draft_ids is None:
        return torch.softmax(drafter.ends.logits(states).float(), dim=-1)[slot_of]
    logits = drafter.ends.logits(states, drafter.draft_ids).float()
    if batch.log_normalizer is not None:
        normalizer = batch.log_normalizer.flatten()[distinct].float()
    else:
        normalizer = torch.logsumexp(drafter.ends.logits(states).float(), dim=-1)
    return logits.sub_(normalizer.unsqueeze(-1)).exp_()[slot_of]


def draft_index(ids: Tensor, draft_ids: Tensor | None) -> Tensor:
    """Index of target token ids [S] in the ascending draft vocabulary [W]; -1 outside it."""
    if draft_ids is None:
        return ids
    place = torch.searchsorted(draft_ids, ids).clamp_max(len(draft_ids) - 1)
    return torch.where(draft_ids[place] == ids, place, -1)
