"""Lossless verification of drafted blocks (method 1): pure laws first, two random draws last.

    α_k            = min(1, p_t^k(x_k) / p_d^k(x_k))        probability that x_k passes, given all before it
    P(accepted=a)  = Π_{i≤a} α_i · (1 - α_{a+1})            left to right; the first rejection ends the block
    next token     ~ norm(max(0, p_t - p_d)) after a rejection, else p_t (bonus)
    expected       c*_k = Σ_v min(p_d^k, p_t^k), what α_k is before x_k is drawn: kept for reports, decides nothing

The left-to-right tests are drawn as one number, how many tokens pass, from exactly that law. At temperature 0 nothing
is drawn. Laws of the target are made one slot at a time, [B, V], and the residual at one slot a row. The module knows
nothing of models, caches or stop tokens. Example, target and drafter uniform over three tokens:

    >>> proposal = Proposal(torch.tensor([[2]]), torch.full((1, 1, 3), 1 / 3), None, None)
    >>> verify(proposal, torch.zeros(1, 2, 3), Sampling()).accepted
    tensor([1])
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftlab.acceptance import accept_rate
from draftlab.sampling import Sampling, best_token, probs, residual, sample
from draftlab.target.flat import Flat
from draftlab.types import Proposal, Verdict


def verify(
    proposal: Proposal,
    target_logits: Tensor,
    sampling: Sampling,
    generator: torch.Generator | None = None,
    num_verified: Tensor | None = None,
) -> Verdict:
    """Decide how much of each drafted block the target accepts, and draw the token after it.

    Args:
        proposal: G drafted tokens a row; ``draft_probs`` must be the law they were drawn from.
        target_logits: [B, G+1, V]; slot k is the target's opinion of drafted token k, slot G of the bonus token.
        sampling: how the target's law is made from its logits; the drafter must have used the same.
        generator: source of the two draws.
        num_verified: int64 [B], how many drafted tokens were sent to the target (None: all that the row has); later ones are
            discarded unseen, and the token after the last verified one is drawn from p_t.
    """
    num_drafted = proposal.tokens.shape[1]
    if target_logits.shape[1] != num_drafted + 1:
        raise ValueError(f"target_logits needs {num_drafted + 1} slots (gamma + 1), got {target_logits.shape[1]}")
    limit = _limit(proposal, num_verified)
    if sampling.greedy:
        return _verify_greedy(proposal.tokens, best_token(target_logits), limit)
    token_probs, expected = target_opinion(proposal, target_logits, sampling)
    accept = acceptance_probs(proposal, token_probs)
    accepted = sample(accepted_law(accept, limit), generator)
    rows = torch.arange(len(accepted), device=accepted.device)
    law = next_token_law(proposal, target_logits[rows, accepted], sampling, accepted, limit)
    return Verdict(accepted, sample(law, generator), expected)


def verify_flat(
    proposal: Proposal, target_logits: Tensor, flat: Flat, sampling: Sampling, generator: torch.Generator | None = None
) -> Verdict:
    """:func:`verify` of unequal prefixes, from logits [T, V] of the tokens of ``flat`` alone.

    Row b sent its anchor and the first ``flat.lengths[b] - 1`` tokens of its block. The same law, the same two draws.
    """
    limit = torch.tensor(flat.lengths, device=target_logits.device) - 1
    if sampling.greedy:
        best = flat.pad(best_token(target_logits))
        return _verify_greedy(proposal.tokens[:, : flat.width - 1], best, limit)
    drafted = flat.columns < limit[flat.rows]
    rows, columns = flat.rows[drafted], flat.columns[drafted]
    laws = probs(target_logits[drafted], sampling)
    token_probs, expected = (laws.new_zeros(proposal.tokens.shape) for _ in range(2))
    token_probs[rows, columns] = laws.gather(-1, proposal.tokens[rows, columns].unsqueeze(-1)).squeeze(-1)
    expected[rows, columns] = _overlap(proposal.draft_probs[rows, columns], laws, proposal.draft_ids)
    accepted = sample(accepted_law(acceptance_probs(proposal, token_probs), limit), generator)
    law = next_token_law(proposal, target_logits[flat.starts + accepted], sampling, accepted, limit)
    return Verdict(accepted, sample(law, generator), expected)


def target_opinion(proposal: Proposal, target_logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """p_t^k(x_k) of the drafted tokens and c*_k, both [B, G], from logits [B, G+1, V], one slot at a time."""
    token_probs, expected = (target_logits.new_zeros(proposal.tokens.shape) for _ in range(2))
    for slot in range(proposal.tokens.shape[1]):
        law = probs(target_logits[:, slot], sampling)
        if slot == 0:
            token_probs, expected = token_probs.to(law.dtype), expected.to(law.dtype)
        token_probs[:, slot] = law.gather(-1, proposal.tokens[:, slot, None]).squeeze(-1)
        expected[:, slot] = _overlap(proposal.draft_probs[:, slot], law, proposal.draft_ids)
    return token_probs, expected


def _overlap(draft_law: Tensor, target_law: Tensor, draft_ids: Tensor | None) -> Tensor:
    """c* [N] of draft laws [N, W] and target laws [N, V]; rounding would leave 1 + 1e-7 now and then."""
    draftable = target_law if draft_ids is None else target_law[:, draft_ids]
    return accept_rate(draft_law, draftable).clamp_max(1.0)


def draft_token_probs(proposal: Proposal) -> Tensor:
    """p_d^k(x_k) [B, G] of the drafted tokens; positive, since each was drawn from that law."""
    index = proposal.tokens
    if proposal.draft_ids is not None:
        index = torch.searchsorted(proposal.draft_ids, index.contiguous())
    return proposal.draft_probs.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def acceptance_probs(proposal: Proposal, token_probs: Tensor) -> Tensor:
    """α_k = min(1, p_t/p_d) [B, G] from the target's probabilities [B, G] of the drafted tokens."""
    return (token_probs / draft_token_probs(proposal)).clamp_max(1.0)


def accepted_law(accept: Tensor, limit: Tensor) -> Tensor:
    """Law [B, G+1] of the number of accepted tokens from α [B, G], of which the first ``limit`` [B] are verified."""
    num_drafted = accept.shape[1]
    slots = torch.arange(num_drafted, device=accept.device)
    accept = accept.masked_fill(slots >= limit.unsqueeze(-1), 0.0)
    ones = accept.new_ones(accept.shape[0], 1)
    reach = torch.cat([ones, accept.cumprod(-1)], dim=-1)  # reach[a]: the first a all pass
    stop = torch.cat([1.0 - accept, ones], dim=-1)  # stop[a]: and the next one does not
    return reach * stop


def next_token_law(
    proposal: Proposal, slot_logits: Tensor, sampling: Sampling, accepted: Tensor, limit: Tensor
) -> Tensor:
    """Law [B, V] of the token after ``accepted`` [B] passed ones: residual after a rejection, else p_t itself.

    ``slot_logits`` [B, V] are the target's at the slot after them.
    """
    law = probs(slot_logits, sampling)
    rejected = (accepted < limit).nonzero().squeeze(-1)
    if len(rejected) == 0:
        return law
    narrow = proposal.draft_probs[rejected, accepted[rejected]].to(law.dtype)
    if proposal.draft_ids is None:
        draft = narrow
    else:
        draft = law.new_zeros(len(rejected), law.shape[-1])
        draft[:, proposal.draft_ids] = narrow
    law[rejected] = residual(law[rejected], draft)
    return law


def _verify_greedy(tokens: Tensor, best: Tensor, limit: Tensor) -> Verdict:
    """Temperature 0: tokens [B, G] are accepted while they equal the target's argmax ``best`` [B, G+1]."""
    slots = torch.arange(tokens.shape[1], device=tokens.device)
    equal = (tokens == best[:, :-1]) & (slots < limit.unsqueeze(-1))
    accepted = equal.long().cumprod(-1).sum(-1)
    expected = (tokens == best[:, :-1]).float()  # the overlap of two one-hot laws
    return Verdict(accepted, best.gather(-1, accepted.unsqueeze(-1)).squeeze(-1), expected)


def _limit(proposal: Proposal, num_verified: Tensor | None) -> Tensor:
    num_rows, num_drafted = proposal.tokens.shape
    if proposal.lengths is not None:
        num_verified = proposal.lengths if num_verified is None else torch.minimum(num_verified, proposal.lengths)
    if num_verified is None:
        return torch.full((num_rows,), num_drafted, dtype=torch.int64, device=proposal.tokens.device)
    if bool(((num_verified < 0) | (num_verified > num_drafted)).any()):
        raise ValueError(f"num_verified must lie in 0..{num_drafted} (gamma), got {num_verified.tolist()}")
    return num_verified.to(proposal.tokens.device)
