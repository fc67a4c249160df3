"""Drafter: what training, decoding and export may ask of any draft model (method 2).

    forward(batch, blocks) -> DraftOutput          hidden states h_k and confidences of all blocks, teacher-forced
    draft_logits(hidden, previous) -> [K, G, W]    U_k + B_k,  U_k = LMHead(h_k)      the target's head, or a trained copy
    coded_logits(hidden, codes) -> [S, W]          the same for single slots, from what the head made of whole blocks
    propose(context, cache, …) -> Proposal         left to right from the anchor, the same layers and the same logits

A drafter owns its trainable layers only. It meets the target at the two frozen ends, attached after construction and
absent from every checkpoint. With a reduced draft vocabulary, ``draft_ids`` [W] holds the target's ids of the draft's
tokens; tokens outside it have draft probability 0. The module knows nothing of losses, anchors being drawn, or
verification.

    drafter = DSpark(spec, BlockSpec(), partial(MarkovHead, rank=256)).attach(target.ends)
    cache = drafter.start(batch_size=8, max_length=1024)
    proposal = drafter.propose(context, cache, Sampling(temperature=1.0), generator)
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from draftlab.blocks import BlockSpec
from draftlab.drafters.cache import DraftCache
from draftlab.heads import ConfidenceHead, Head
from draftlab.sampling import Sampling, probs, sample, top_probability
from draftlab.target.ends import TargetEnds
from draftlab.target.spec import TargetSpec
from draftlab.types import Batch, Blocks, Context, DraftOutput, Proposal


class Drafter(nn.Module, ABC):
    """Base of all drafters: ends, draft vocabulary, head, confidence, and drawing a block left to right.

    Args:
        spec: the target's sizes and mask token.
        block: block size G and layout.
        head: builds the sequential head from ``vocab_size``, ``draft_vocab_size`` and ``hidden_size``.
        confidence_head: whether to predict confidences.
        draft_vocab_size: W; None drafts over the whole vocabulary of the target.
        train_head: train a copy of the target's LM head [W, D]; False drafts with the frozen head itself.

    Raises:
        ValueError: a draft vocabulary that does not fit the target's.
    """

    ends: TargetEnds | None
    draft_ids: Tensor | None  # [W] int64, ascending ids of the target's vocabulary
    lm_head: nn.Parameter | None  # [W, D]; starts as the target's rows, see attach
    exit_layers: tuple[int, ...] = ()  # layers after which a block may stop, see draftlab.drafters.exits
    can_sit_out = False  # whether propose takes leaving_out, as of rows that do not draft
    reads_last_hidden = False  # whether the target's last hidden states are context, too, not only what teaches
    reads_layers = True  # whether the outputs of the target's tapped layers are

    def __init__(
        self,
        spec: TargetSpec,
        block: BlockSpec,
        head: Callable[..., Head],
        confidence_head: bool,
        draft_vocab_size: int | None = None,
        train_head: bool = False,
    ) -> None:
        super().__init__()
        if draft_vocab_size is not None and not 1 <= draft_vocab_size <= spec.vocab_size:
            raise ValueError(
                f"drafter.draft_vocab_size must lie in 1..{spec.vocab_size}, the target's vocabulary, "
                f"got {draft_vocab_size}; write null to draft over the whole vocabulary"
            )
        self.spec, self.block = spec, block
        self.family = type(self).__name__  # a strategy that shards weights puts a class of its own in front
        self.draft_vocab_size = draft_vocab_size or spec.vocab_size
        object.__setattr__(self, "ends", None)  # not a submodule: a cast of the drafter must not cast the target
        self.markov_head = head(
            vocab_size=spec.vocab_size, draft_vocab_size=self.draft_vocab_size, hidden_size=spec.hidden_size
        )
        self.confidence_head = ConfidenceHead(spec.hidden_size, self.markov_head.rank) if confidence_head else None
        reduced = self.draft_vocab_size < spec.vocab_size
        self.register_buffer("draft_ids", torch.full((self.draft_vocab_size,), -1) if reduced else None)
        # No random numbers for what is overwritten: other weights start the same with and without a trained head.
        copied = nn.Parameter(torch.zeros(self.draft_vocab_size, spec.hidden_size)) if train_head else None
        self.register_parameter("lm_head", copied)
        self._head_is_filled = False  # by the target's rows or by a checkpoint
        self.register_load_state_dict_post_hook(_after_load)

    # What every drafter implements

    @abstractmethod
    def forward(self, batch: Batch, blocks: Blocks) -> DraftOutput:
        """h_k and confidences of ``blocks`` over the target features of ``batch``."""

    @abstractmethod
    def start(self, batch_size: int, max_length: int, device=None, dtype: torch.dtype | None = None) -> DraftCache:
        """Empty cache for ``batch_size`` rows; anchor and draft of a row must fit into ``max_length`` positions."""

    @abstractmethod
    def propose(
        self,
        context: Context,
        cache: DraftCache,
        sampling: Sampling,
        generator: torch.Generator | None = None,
        num_tokens: int | None = None,
    ) -> Proposal:
        """Read what is new in ``context`` and draft ``num_tokens`` (None: G) tokens after each row's anchor."""

    # Ends and draft vocabulary

    def attach(self, ends: TargetEnds) -> Drafter:
        """Share the target's frozen embedding and LM head, and return the drafter itself.

        A head to train starts as a copy of the target's, here or once the draft vocabulary is set; a head that was loaded
        from a checkpoint, or copied before, stays as it is.

        Raises:
            ValueError: ends of another vocabulary or hidden size.
        """
        expected, got = (self.spec.vocab_size, self.spec.hidden_size), (ends.vocab_size, ends.hidden_size)
        if expected != got:
            raise ValueError(
                f"the drafter was built for target {self.spec.name!r} with vocabulary and hidden size {expected}, "
                f"but the ends to attach have {got}; use the target that the drafter was trained for"
            )
        object.__setattr__(self, "ends", ends)
        self._move_ends()
        self._fill_head()
        return self

    def set_draft_vocabulary(self, ids: Tensor) -> None:
        """Set the target's ids [W] that can be drafted, in ascending order.

        Raises:
            ValueError: another size than ``draft_vocab_size``, or ids that are not ascending or leave the vocabulary.
        """
        if self.draft_ids is None:
            raise ValueError("this drafter drafts over the whole vocabulary; set drafter.draft_vocab_size to reduce it")
        ids = torch.as_tensor(ids, dtype=torch.int64, device=self.draft_ids.device)
        if ids.shape != self.draft_ids.shape:
            raise ValueError(
                f"the draft vocabulary must have {self.draft_vocab_size} ids (drafter.draft_vocab_size), "
                f"got {list(ids.shape)}"
            )
        if ids[0] < 0 or ids[-1] >= self.spec.vocab_size or bool((ids[1:] <= ids[:-1]).any()):
            raise ValueError(
                f"draft vocabulary ids must be distinct, ascending and within 0..{self.spec.vocab_size - 1}"
            )
        if not torch.equal(ids, self.draft_ids):
            self._head_is_filled = False  # a trained head holds rows of the old selection
        self.draft_ids = ids.clone()  # a new tensor, so that copies kept of the old selection are dropped
        self._fill_head()

    def shortened(self, block_size: int) -> Drafter:
        """This drafter with blocks of the first ``block_size`` tokens only: the same weights, ends and caches.

        It computes no slot that it does not draft. Where slots see each other (DFlash, DSpark) its law is that of a shorter
        block, which verification is told like any other.

        Raises:
            ValueError: more tokens than blocks have, or none.
        """
        if self._num_tokens(block_size) == self.block.block_size:
            return self
        shorter = copy.copy(self)
        shorter.block = dataclasses.replace(self.block, block_size=block_size)
        return shorter

    @property
    def has_confidence(self) -> bool:
        """Whether the drafter predicts confidences."""
        return self.confidence_head is not None

    # From hidden states to logits, confidences and tokens

    def draft_logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """U_k + B_k [K, G, W] of ``hidden`` [K, G, D], with the true previous tokens [K, G] (teacher forcing)."""
        return self.coded_logits(hidden, self.markov_head.codes(hidden, previous))

    def coded_logits(self, hidden: Tensor, codes: Tensor | None) -> Tensor:
        """U_k + B_k [..., W] of any slots, from h_k [..., D] and what the head made for them with the whole block, [..., R]."""
        return _add(self.base_logits(hidden), None if codes is None else self.markov_head.markov_w2(codes))

    @property
    def logit_parameters(self) -> list[nn.Parameter]:
        """What :meth:`coded_logits` multiplies with and trains: W_2 of the head, and a trained LM head."""
        parameters = [] if self.lm_head is None else [self.lm_head]
        if hasattr(self.markov_head, "markov_w2"):
            parameters.append(self.markov_head.markov_w2.weight)
        return parameters

    def base_logits(self, hidden: Tensor) -> Tensor:
        """U_k [..., W]: the LM head, frozen or trained, over ``hidden`` [..., D], at the draft vocabulary."""
        self._require_ready()
        return self.ends.logits(hidden, self.draft_ids, self.lm_head)

    def confidence_logits(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """Logits of c_k [...] from the state [..., D] it reads (h_k, or h_k before the final norm) and x_{k-1} [...]; None
        without a confidence head."""
        if self.confidence_head is None:
            return None
        return self.confidence_head(hidden, self.markov_head.previous_features(previous))

    def draw(
        self,
        hidden: Tensor,
        anchor: Tensor,
        sampling: Sampling,
        generator: torch.Generator | None = None,
        confidence_hidden: Tensor | None = None,
    ) -> Proposal:
        """Draw one token a slot, left to right, from the transformed law of U_k + B_k(x_<k).

        Args:
            hidden: h_1.. of each row, [B, G, D].
            anchor: x_0 [B], token ids of the target.
            sampling: the transforms that the target's law gets too; at temperature 0 the most likely token is taken.
            generator: source of the draws.
            confidence_hidden: states [B, G, D] that confidences are read from; None: ``hidden``.
        """
        base = self.base_logits(hidden)  # [B, G, W]
        state = self.markov_head.start(len(anchor))
        previous, tokens, laws, tops = [anchor], [], [], []
        for slot in range(hidden.shape[1]):
            bias, state = self.markov_head.step(hidden[:, slot], previous[-1], state)
            logits = _add(base[:, slot], bias)
            law = probs(logits, sampling)
            tops.append(top_probability(logits))
            token = law.argmax(-1) if sampling.greedy else sample(law, generator)
            tokens.append(token if self.draft_ids is None else self.draft_ids[token])
            laws.append(law)
            previous.append(tokens[-1])
        read = hidden if confidence_hidden is None else confidence_hidden
        logits = self.confidence_logits(read, torch.stack(previous[:-1], dim=1))
        confidence = None if logits is None else torch.sigmoid(logits.float())
        drawn, laws, tops = (torch.stack(parts, dim=1) for parts in (tokens, laws, tops))
        return Proposal(drawn, laws, self.draft_ids, confidence, tops)

    # Inner workings

    def _num_tokens(self, num_tokens: int | None) -> int:
        if num_tokens is None:
            return self.block.block_size
        if not 1 <= num_tokens <= self.block.block_size:
            raise ValueError(f"num_tokens must lie in 1..{self.block.block_size} (block.block_size), got {num_tokens}")
        return num_tokens

    def _require_ready(self) -> None:
        if self.ends is None:
            raise ValueError("the drafter has no target yet; call attach(target.ends) first")
        # draft_ids is a new tensor whenever it changes, so its values are looked at once only.
        if self.draft_ids is not None and self.draft_ids is not getattr(self, "_known_ids", None):
            if self.draft_ids[0] < 0:
                raise ValueError(
                    "the draft vocabulary is not set yet; call set_draft_vocabulary(ids) or load a checkpoint"
                )
            object.__setattr__(self, "_known_ids", self.draft_ids)

    @torch.no_grad()
    def _fill_head(self) -> None:
        """Copy the target's rows into a head to train, once, as soon as ends and draft vocabulary are known."""
        if self.lm_head is None or self.lm_head.is_meta or self.ends is None or self._head_is_filled:
            return
        if self.draft_ids is not None and self.draft_ids[0] < 0:
            return
        self.lm_head.copy_(self.ends.head if self.draft_ids is None else self.ends.head_rows(self.draft_ids))
        self._head_is_filled = True

    def _apply(self, fn, recurse: bool = True):
        super()._apply(fn, recurse)
        self._move_ends()
        return self

    def _move_ends(self) -> None:
        """Let the ends follow the drafter to another device; their dtype stays the target's."""
        device = next(self.parameters()).device
        if self.ends is not None and device.type != "meta" and self.ends.embedding.device != device:
            self.ends.to(device)


def _add(base: Tensor, bias: Tensor | None) -> Tensor:
    return base if bias is None else base + bias


def _after_load(drafter: Drafter, incompatible_keys) -> None:
    """Loading writes into the old tensor of ids; a new one tells the ends that their kept rows are stale. A loaded head is
    not overwritten by the target's."""
    if drafter.draft_ids is not None:
        drafter.draft_ids = drafter.draft_ids.clone()
    if not any(key.endswith("lm_head") for key in incompatible_keys.missing_keys):
        drafter._head_is_filled = True
