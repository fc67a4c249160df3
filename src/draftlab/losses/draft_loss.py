"""The drafter's loss over supervised slots, in chunks of blocks (method 3).

    L = Σ_terms λ · Σ_slots w_k value / Σ_slots w_k

Only numerators and Σ w leave this module, so that micro-batches and ranks combine into an exact global mean. Each chunk
makes its logits, does one softmax a side, and shares it among all terms; with ``chunk_blocks`` set, logits are
recomputed in the backward pass and memory does not grow with N·G·W. Teacher logits are made once per distinct position. Weights
w_k are the block's decay, times a factor that follows acceptance where asked (:mod:`draftlab.losses.positions`).

A drafter with early exits is trained at all of them on the same blocks: L = L_whole + Σ_exits λ_exit L_exit, each with all terms
and each divided by Σ w of the whole drafter; teacher laws are made once for all. The module knows nothing of optimisers, logging or
how anchors are drawn.

    report = DraftLoss(terms)(drafter, drafter(batch, blocks), blocks, batch)
    (report.numerator / report.weight).backward()
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from draftlab.acceptance import accept_rate
from draftlab.losses.positions import POSITION_WEIGHTS
from draftlab.losses.terms import Slots, Term
from draftlab.types import Batch, Blocks, DraftOutput


@dataclass(frozen=True)
class LossReport:
    """Sums over the supervised slots of one micro-batch; all but ``numerator`` and ``exits`` are of the whole drafter."""

    numerator: Tensor  # Σ_terms λ Σ w value, and what the exits add to it; backward starts here
    weight: Tensor  # Σ w of the weights really used, shared by all terms
    terms: Mapping[str, Tensor]  # name -> Σ w value, detached, not multiplied by λ
    accept_rate: Tensor  # [B, N, G] float32 c*_k, detached; 0 where unsupervised or without teacher states
    outside: Tensor  # labels outside the draft vocabulary (they add nothing to ce)
    num_slots: Tensor  # supervised slots
    exits: Mapping[int, LossReport] = field(default_factory=dict)  # by layers run: each exit's own sums

    def means(self) -> dict[str, float]:
        """Loss and terms averaged over this micro-batch, for logging; 0 without supervised slots."""
        weight = max(float(self.weight), torch.finfo(torch.float32).tiny)
        own = {"loss": float(self.numerator.detach()) / weight} | {n: float(t) / weight for n, t in self.terms.items()}
        of_exits = {f"exit_{depth}/loss": report.means()["loss"] for depth, report in self.exits.items()}
        return own | of_exits


class DraftLoss:
    """Weighted sum of named terms.

    Args:
        terms: name -> term; the names are the log keys.
        chunk_blocks: blocks whose logits exist at a time; None takes all at once and keeps them for the backward pass.
        position_weights: ``decay`` leaves the block's weights as they are, ``acceptance`` and ``expected_length`` multiply
            them by what :mod:`draftlab.losses.positions` says.
        exit_weight: of the loss of every early exit, or one number for each; nothing to a drafter without exits.

    Raises:
        ValueError: no term with a positive weight, a chunk size below 1, unknown position weights, or an exit weight that is
            no number above 0.
    """

    def __init__(
        self,
        terms: Mapping[str, Term],
        chunk_blocks: int | None = None,
        position_weights: str = "decay",
        exit_weight: float | Sequence[float] = 1.0,
    ) -> None:
        self.terms = {name: term for name, term in terms.items() if term is not None}
        if not any(term.weight > 0 for term in self.terms.values()):
            raise ValueError("loss.terms needs at least one term with weight > 0; nothing would be trained")
        if chunk_blocks is not None and chunk_blocks < 1:
            raise ValueError(f"loss.chunk_blocks must be null or at least 1, got {chunk_blocks}")
        if position_weights not in POSITION_WEIGHTS:
            raise ValueError(
                f"loss.position_weights must be one of {', '.join(POSITION_WEIGHTS)}, got {position_weights!r}"
            )
        self.exit_weight = _exit_weight(exit_weight)
        self.chunk_blocks = chunk_blocks
        self.positions = POSITION_WEIGHTS[position_weights]

    @property
    def active(self) -> dict[str, Term]:
        """The terms with weight > 0: the only ones that are computed (case 8)."""
        return {name: term for name, term in self.terms.items() if term.weight > 0}

    def check(self, drafter) -> None:
        """Refuse terms that the drafter cannot give.

        Raises:
            ValueError: a term on confidences for a drafter without confidence head, or weights for other exits than it has.
        """
        for name, term in self.active.items():
            if term.needs_confidence and not drafter.has_confidence:
                raise ValueError(
                    f"loss.terms.{name}.weight is {term.weight}, but the drafter has no confidence head; "
                    f"set loss.terms.{name}.weight=0 or drafter.confidence_head=true"
                )
        if isinstance(self.exit_weight, tuple) and len(self.exit_weight) != len(drafter.exit_layers):
            raise ValueError(
                f"loss.exit_weight has {len(self.exit_weight)} numbers, but the drafter has the exits "
                f"{list(drafter.exit_layers)} (drafter.exits); give one number for each, or a single one for all"
            )

    def __call__(self, drafter, output: DraftOutput, blocks: Blocks, batch: Batch) -> LossReport:
        """Evaluate all terms over the supervised slots of ``blocks``.

        Args:
            drafter: gives ``draft_logits`` and the frozen ends. output: its forward pass over ``blocks``.
            batch: with ``last_hidden`` where a term needs the teacher, and ``log_normalizer`` for a reduced vocabulary.
        """
        self._require_teacher(batch)
        rows = self._rows(blocks)  # [K] of the B*N flat blocks
        chunks = rows.split(self.chunk_blocks or len(rows))
        outputs = [output, *output.exits.values()]
        parts = [self._chunk(drafter, outputs, blocks, batch, chunk) for chunk in chunks]
        whole, *others = (
            self._report(each, [part[index] for part in parts], chunks, blocks) for index, each in enumerate(outputs)
        )
        factors = self.exit_weight if isinstance(self.exit_weight, tuple) else (self.exit_weight,) * len(others)
        added = sum(factor * report.numerator for factor, report in zip(factors, others, strict=True))
        return replace(whole, numerator=whole.numerator + added, exits=dict(zip(output.exits, others, strict=True)))

    def _report(
        self, output: DraftOutput, parts: Sequence[tuple], chunks: Sequence[Tensor], blocks: Blocks
    ) -> LossReport:
        """The sums of one depth from its values in all chunks."""
        sums = {name: torch.stack([part[0][name] for part in parts]).sum() for name in self.active}
        rates, weights = (torch.zeros_like(blocks.weights).flatten(0, 1) for _ in range(2))  # [B*N, G]
        for chunk, (_, rate, weight, _) in zip(chunks, parts, strict=True):
            rates[chunk], weights[chunk] = rate, weight
        numerator = sum(term.weight * sums[name] for name, term in self.active.items())
        return LossReport(
            numerator=numerator + _attach_everything(output),
            weight=weights.sum(),
            terms={name: value.detach() for name, value in sums.items()},
            accept_rate=rates.view(blocks.label_mask.shape),
            outside=sum(part[3] for part in parts),
            num_slots=blocks.label_mask.sum(),
        )

    def _require_teacher(self, batch: Batch) -> None:
        if batch.last_hidden is not None:
            return
        needing = [f"loss.terms.{name}" for name, term in self.active.items() if term.needs_teacher]
        needing += ["loss.position_weights"] if self.positions.needs_teacher else []
        if needing:
            raise ValueError(f"{', '.join(needing)} need the target's last hidden states, but the batch has none")

    def _rows(self, blocks: Blocks) -> Tensor:
        """Flat indices of blocks with supervision. A batch without any keeps one block at weight 0, so that its loss
        is a finite zero attached to every parameter and no rank waits for another (case 7)."""
        rows = blocks.label_mask.any(-1).flatten().nonzero().squeeze(-1)
        return rows if len(rows) else torch.zeros(1, dtype=torch.int64, device=rows.device)

    def _chunk(
        self, drafter, outputs: Sequence[DraftOutput], blocks: Blocks, batch: Batch, rows: Tensor
    ) -> list[tuple]:
        states = [
            tuple(
                None if value is None else value.flatten(0, 1)[rows] for value in (each.hidden, each.confidence_logits)
            )
            for each in outputs
        ]
        if self.chunk_blocks is None:
            return self._values(drafter, states, blocks, batch, rows)
        return checkpoint(
            self._values,
            drafter,
            states,
            blocks,
            batch,
            rows,
            use_reentrant=False,
            preserve_rng_state=False,
        )

    def _values(self, drafter, states: Sequence[tuple], blocks: Blocks, batch: Batch, rows: Tensor) -> list[tuple]:
        """For each (hidden [K, G, D], confidence logits [K, G]) of ``states``: weighted sums of the active terms, accept rates and
        weights [K, G], and the count of outside labels of a chunk."""
        supervised = blocks.label_mask.flatten(0, 1)[rows]
        kept = supervised if supervised.any() else torch.ones_like(supervised)  # the weight-0 block of case 7
        previous = blocks.previous.flatten(0, 1)[rows]
        labels = draft_index(blocks.labels.flatten(0, 1)[rows][kept], drafter.draft_ids)
        target_probs = None if batch.last_hidden is None else teacher_probs(drafter, batch, blocks, rows, kept)
        values = []
        for hidden, confidence in states:
            logits = drafter.draft_logits(hidden, previous)
            logits = (
                logits.flatten(0, 1) if kept.all() else logits[kept]
            ).float()  # most chunks need no copy of [K, G, W]
            slots = _slots(logits, labels, None if confidence is None else confidence[kept], target_probs)
            values.append(self._sums(slots, logits, blocks.weights.flatten(0, 1)[rows], supervised, kept))
        return values

    def _sums(self, slots: Slots, logits: Tensor, decay: Tensor, supervised: Tensor, kept: Tensor) -> tuple:
        """What :meth:`_values` says, of one depth."""
        rates = torch.zeros_like(decay)
        if slots.accept_rate is not None:
            rates[kept] = slots.accept_rate.detach().clamp(0.0, 1.0)
        rates = rates * supervised
        weights = self._weights(slots, rates, decay, supervised, kept)
        sums = {name: (term(slots) * weights[kept]).sum() for name, term in self.active.items()}
        if not any(term.trains_law for term in self.active.values()):  # the head still gets a gradient, 0 (case 8)
            sums = {name: value + logits.sum() * 0.0 for name, value in sums.items()}
        return sums, rates, weights, ((slots.labels < 0) & supervised[kept]).sum()

    def _weights(self, slots: Slots, rates: Tensor, decay: Tensor, supervised: Tensor, kept: Tensor) -> Tensor:
        """w_k [K, G], detached: the decay [K, G] times the factor of ``position_weights``."""
        label_probs = torch.zeros_like(decay)
        label_probs[kept] = slots.label_log_probs.detach().exp() * (slots.labels >= 0)
        return decay * self.positions.factor(rates, label_probs, supervised)


def _slots(logits: Tensor, labels: Tensor, confidence_logits: Tensor | None, target_probs: Tensor | None) -> Slots:
    """What terms may use of slots with draft logits [S, W]: the draft's softmax is made here and nowhere else."""
    log_draft_probs = F.log_softmax(logits, dim=-1)
    confidence_logits = None if confidence_logits is None else confidence_logits.float()
    if target_probs is None:
        return Slots(log_draft_probs, labels, None, confidence_logits)
    draft_probs = log_draft_probs.exp()
    rate = accept_rate(draft_probs, target_probs)
    return Slots(log_draft_probs, labels, rate, confidence_logits, target_probs, draft_probs)


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
    return torch.exp(logits - normalizer.unsqueeze(-1))[slot_of]


def draft_index(ids: Tensor, draft_ids: Tensor | None) -> Tensor:
    """Index of target token ids [S] in the ascending draft vocabulary [W]; -1 outside it."""
    if draft_ids is None:
        return ids
    place = torch.searchsorted(draft_ids, ids).clamp_max(len(draft_ids) - 1)
    return torch.where(draft_ids[place] == ids, place, -1)


def _attach_everything(output: DraftOutput) -> Tensor:
    """Zero, attached to every output: a parameter that no term uses still gets a gradient under DDP (case 8)."""
    unused = output.hidden.sum() * 0.0
    return unused if output.confidence_logits is None else unused + output.confidence_logits.sum() * 0.0


def _exit_weight(value) -> float | tuple[float, ...]:
    """One weight for all exits, or one for each."""
    alone = isinstance(value, int | float)
    weights = [value] if alone or not isinstance(value, Sequence) else list(value)
    if not weights or not all(isinstance(w, int | float) and math.isfinite(w) and w > 0 for w in weights):
        raise ValueError(f"loss.exit_weight must be a number above 0, or a list of such, got {value!r}")
    return float(value) if alone else tuple(map(float, weights))
