"""The drafter's loss over supervised slots, in chunks of blocks (method 3).

    L = Σ_terms λ · Σ_slots w_k value / Σ_slots w_k

Only numerators and Σ w leave this module, so that micro-batches and ranks combine into an exact global mean. Each chunk
makes its logits, does one softmax a side, shares it among all terms, and gives its gradient before the next chunk comes
(:mod:`draftlab.losses.chunked`): memory does not grow with N·G·W, and nothing is made twice. Teacher logits are made once per
distinct position of a chunk. Weights w_k are the block's decay, times a factor that follows acceptance where asked
(:mod:`draftlab.losses.positions`).

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

from draftlab.losses.chunked import chunked_sum
from draftlab.losses.law import draft_law
from draftlab.losses.positions import POSITION_WEIGHTS
from draftlab.losses.teacher import draft_index, teacher_probs
from draftlab.losses.terms import Slots, Term
from draftlab.types import Batch, Blocks, DraftOutput

# Float32 values a slot and token that a chunk holds at its peak, terms with laws of their own apart: at first draft logits and
# probabilities, the target's and their minimum; then both laws, the gradient, and what its product with W_2 lays out.
KEPT_PER_LOGIT = 4
AUTO = "auto"


@dataclass(frozen=True)
class LossReport:
    """Sums over the supervised slots of one micro-batch; all but ``numerator`` and ``exits`` are of the whole drafter."""

    numerator: Tensor  # Σ_terms λ Σ w value, and what the exits add to it; backward starts here
    weight: Tensor  # Σ w of the weights really used, shared by all terms
    terms: Mapping[str, Tensor]  # name -> Σ w value, detached, not multiplied by λ
    accept_rate: Tensor  # [B, N, G] float32 c*_k, detached; 0 where unsupervised or without teacher states
    outside: Tensor  # labels outside the draft vocabulary (they add nothing to ce)
    num_slots: Tensor  # supervised slots
    exits: Mapping[int, LossReport] = field(default_factory=dict)  # by layers run: each exit's own sums, detached

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
        chunk_blocks: blocks whose logits exist at a time; None takes all at once, ``auto`` as many as ``chunk_gb`` holds.
        position_weights: ``decay`` leaves the block's weights as they are, ``acceptance`` and ``expected_length`` multiply
            them by what :mod:`draftlab.losses.positions` says.
        exit_weight: of the loss of every early exit, or one number for each; nothing to a drafter without exits.
        chunk_gb: memory (10^9 bytes) that the logits of both sides and what is made of them may take with ``auto``.

    Raises:
        ValueError: no term with a positive weight, a chunk size below 1, ``auto`` without a size in GB, unknown position
            weights, or an exit weight that is no number above 0.
    """

    def __init__(
        self,
        terms: Mapping[str, Term],
        chunk_blocks: int | str | None = None,
        position_weights: str = "decay",
        exit_weight: float | Sequence[float] = 1.0,
        chunk_gb: float | None = None,
    ) -> None:
        self.terms = {name: term for name, term in terms.items() if term is not None}
        if not any(term.weight > 0 for term in self.terms.values()):
            raise ValueError("loss.terms needs at least one term with weight > 0; nothing would be trained")
        if chunk_blocks not in (None, AUTO) and not (isinstance(chunk_blocks, int) and chunk_blocks >= 1):
            raise ValueError(f"loss.chunk_blocks must be auto, null or a whole number from 1, got {chunk_blocks!r}")
        if chunk_blocks == AUTO and not (chunk_gb is not None and math.isfinite(chunk_gb) and chunk_gb > 0):
            raise ValueError(f"loss.chunk_blocks=auto needs loss.chunk_gb above 0, got {chunk_gb}; 1.0 is usual")
        if position_weights not in POSITION_WEIGHTS:
            raise ValueError(
                f"loss.position_weights must be one of {', '.join(POSITION_WEIGHTS)}, got {position_weights!r}"
            )
        self.chunk_blocks, self.chunk_gb = chunk_blocks, chunk_gb
        self.exit_weight = _exit_weight(exit_weight)
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
            drafter: gives ``coded_logits`` and the frozen ends. output: its forward pass over ``blocks``.
            batch: with ``last_hidden`` where a term needs the teacher, and ``log_normalizer`` for a reduced vocabulary.
        """
        self._require_teacher(batch)
        outputs = [output, *output.exits.values()]
        chunks = self._chunks(blocks.label_mask.flatten(0, 1).any(-1), drafter, blocks.label_mask.shape[-1])
        by_row = [part for depth in outputs for part in _states(drafter, depth, blocks)]
        parts: list[list[_Part]] = []  # by chunk and depth

        def evaluate(rows: Tensor, *states: Tensor | None) -> Tensor:
            depths = [states[first : first + 3] for first in range(0, len(states), 3)]
            values, of_depths = self._values(drafter, depths, blocks, batch, rows)
            parts.append(of_depths)
            return sum(factor * value for factor, value in zip(self._factors(len(values)), values, strict=True))

        numerator = chunked_sum(evaluate, chunks, by_row, drafter.logit_parameters)
        whole, *others = (self._report([chunk[i] for chunk in parts], chunks, blocks) for i in range(len(outputs)))
        return replace(
            whole,
            numerator=numerator + sum(map(_attach_everything, outputs)),
            exits=dict(zip(output.exits, others, strict=True)),
        )

    def _factors(self, num_depths: int) -> tuple[float, ...]:
        """What the loss of each depth counts, the whole drafter first."""
        exits = self.exit_weight if isinstance(self.exit_weight, tuple) else (self.exit_weight,) * (num_depths - 1)
        return (1.0, *exits)

    def _report(self, parts: Sequence[_Part], chunks: Sequence[Tensor], blocks: Blocks) -> LossReport:
        """The sums of one depth from those of its chunks, detached."""
        rates, weights = (torch.zeros_like(blocks.weights).flatten(0, 1) for _ in range(2))  # [B*N, G]
        for rows, part in zip(chunks, parts, strict=True):
            rates[rows], weights[rows] = part.rates, part.weights
        sums = {name: torch.stack([part.sums[name] for part in parts]).sum() for name in self.active}
        return LossReport(
            numerator=sum(term.weight * sums[name] for name, term in self.active.items()),
            weight=weights.sum(),
            terms=sums,
            accept_rate=rates.view(blocks.label_mask.shape),
            outside=sum(part.outside for part in parts),
            num_slots=blocks.label_mask.sum(),
        )

    def blocks_within(self, block_size: int, draft_vocab_size: int, num_depths: int = 1) -> int:
        """Blocks of G slots whose logits over W tokens, and what a chunk makes of them, take ``chunk_gb``; at least 1."""
        per_slot = 4 * self.kept_per_logit * draft_vocab_size * num_depths  # bytes: of every depth at once
        return max(1, int(self.chunk_gb * 1e9 / (per_slot * block_size)))

    @property
    def kept_per_logit(self) -> int:
        """Float32 values a slot and token of the draft vocabulary that a chunk holds at its peak."""
        return KEPT_PER_LOGIT + sum(term.kept for term in self.active.values())

    def _require_teacher(self, batch: Batch) -> None:
        if batch.last_hidden is not None:
            return
        needing = [f"loss.terms.{name}" for name, term in self.active.items() if term.needs_teacher]
        needing += ["loss.position_weights"] if self.positions.needs_teacher else []
        if needing:
            raise ValueError(f"{', '.join(needing)} need the target's last hidden states, but the batch has none")

    def _chunks(self, supervised: Tensor, drafter, block_size: int) -> list[Tensor]:
        """Flat indices [K] of the ``supervised`` blocks (bool [B*N]), by chunk, in order: neighbours share teacher positions.

        A batch without any keeps one block at weight 0, so that its loss is a finite zero attached to every parameter and no
        rank waits for another (case 7).
        """
        rows = supervised.nonzero().squeeze(-1)
        rows = rows if len(rows) else torch.zeros(1, dtype=torch.int64, device=rows.device)
        size = self.chunk_blocks or len(rows)
        if size == AUTO:
            size = self.blocks_within(block_size, drafter.draft_vocab_size, 1 + len(drafter.exit_layers))
        count = -(-len(rows) // size)
        return list(rows.tensor_split(count))  # equal chunks: none is small

    def _values(self, drafter, depths: Sequence[Sequence[Tensor | None]], blocks: Blocks, batch: Batch, rows: Tensor):
        """Of a chunk, for every depth: Σ_terms λ Σ w value, where its gradient starts, and the values to report.

        Each of ``depths`` holds, of its K blocks: h [K, G, D], the head's codes [K, G, R] or None, confidence logits [K, G] or
        None. Logits are made for supervised slots only.
        """
        supervised, labels, decay = (
            part.flatten(0, 1)[rows] for part in (blocks.label_mask, blocks.labels, blocks.weights)
        )
        kept = supervised if supervised.any() else torch.ones_like(supervised)  # the weight-0 block of case 7
        target_probs = None if batch.last_hidden is None else teacher_probs(drafter, batch, blocks, rows, kept)
        labels = draft_index(labels[kept], drafter.draft_ids)
        values = []
        for states in depths:
            hidden, codes, confidence = (None if x is None else x[kept] for x in states)
            logits = drafter.coded_logits(hidden, codes).float()  # [S, W]
            slots = self._slots(logits, labels, confidence, target_probs)
            values.append(self._sums(slots, decay, supervised, kept))
        return zip(*values, strict=True)

    def _sums(self, slots: Slots, decay: Tensor, supervised: Tensor, kept: Tensor) -> tuple[Tensor, _Part]:
        """Σ_terms λ Σ w value of one depth, and what it reports."""
        rates = torch.zeros_like(decay)
        if slots.accept_rate is not None:
            rates[kept] = slots.accept_rate.detach().clamp(0.0, 1.0)
        rates = rates * supervised
        weights = self._weights(slots, rates, decay, supervised, kept)
        sums = {name: (term(slots) * weights[kept]).sum() for name, term in self.active.items()}
        numerator = sum(term.weight * sums[name] for name, term in self.active.items())
        outside = ((slots.labels < 0) & supervised[kept]).sum()
        return numerator, _Part({name: value.detach() for name, value in sums.items()}, rates, weights, outside)

    def _slots(
        self, logits: Tensor, labels: Tensor, confidence_logits: Tensor | None, target_probs: Tensor | None
    ) -> Slots:
        """What terms may use of slots with draft logits [S, W]: the draft's softmax is made here and nowhere else."""
        whole_log = any(term.needs_log_law for term in self.active.values())
        picked, rate, draft_probs, log_probs = draft_law(logits, labels.clamp_min(0), target_probs, whole_log)
        confidence_logits = None if confidence_logits is None else confidence_logits.float()
        return Slots(log_probs, labels, rate, confidence_logits, target_probs, draft_probs, picked)

    def _weights(self, slots: Slots, rates: Tensor, decay: Tensor, supervised: Tensor, kept: Tensor) -> Tensor:
        """w_k [K, G], detached: the decay [K, G] times the factor of ``position_weights``."""
        label_probs = torch.zeros_like(decay)
        label_probs[kept] = slots.label_log_probs.detach().exp() * (slots.labels >= 0)
        return decay * self.positions.factor(rates, label_probs, supervised)


@dataclass(frozen=True)
class _Part:
    """What a chunk of K blocks reports, detached."""

    sums: Mapping[str, Tensor]  # name -> Σ w value
    rates: Tensor  # [K, G] c*_k
    weights: Tensor  # [K, G] w_k
    outside: Tensor  # labels outside the draft vocabulary


def _states(drafter, output: DraftOutput, blocks: Blocks) -> tuple[Tensor | None, ...]:
    """h [B*N, G, D], the head's codes [B*N, G, R] or None, and confidence logits [B*N, G] or None of one depth."""
    codes = drafter.markov_head.codes(output.hidden, blocks.previous)
    parts = (output.hidden, codes, output.confidence_logits)
    return tuple(None if part is None else part.flatten(0, 1) for part in parts)


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
