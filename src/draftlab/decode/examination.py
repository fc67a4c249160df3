"""Measurements for a diagnosis: the draft law in training and in decoding, and acceptance on texts that are given.

    gap        = ½ ‖p_d(training forward) - p_d(decode loop)‖_1 for every slot of the same text
    acceptance = τ and c*_1 expected over blocks drawn from conversations, with the true tokens before each slot

The decode loop is the real one; a recorder notes what its drafter proposes. Then the text that a round stood on, with the tokens
that it drafted, goes through the forward pass of training. The module judges nothing and knows no configuration.

    gaps = train_serve_gaps(target, drafter, prompts)
    length, first = acceptance(target, drafter, loss, samples)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftlab.acceptance import l1_distance
from draftlab.blocks import draw_anchors, lay_out
from draftlab.data.cache import open_cache
from draftlab.data.features import FeatureSettings, cache_root, collate, compute_features, features_identity
from draftlab.data.files import MANIFEST, digest
from draftlab.data.samples import Sample
from draftlab.decode.loop import Decoder
from draftlab.decode.settings import DecodeSettings
from draftlab.metrics import AcceptedLength, ConditionalAcceptance
from draftlab.sampling import Sampling, probs
from draftlab.types import Batch, Proposal

NEW_TOKENS, ROUNDS = 24, 6  # decoded a prompt, and rounds of them that are compared
BATCH, ANCHORS = 4, 32  # conversations at a time, blocks of each


class _Recorder:
    """A drafter for batches of one row that notes where it drafted and what."""

    def __init__(self, drafter) -> None:
        self.drafter = drafter
        self.rounds: list[tuple[int, Proposal]] = []

    def __getattr__(self, name: str):
        return getattr(self.drafter, name)

    def propose(self, context, *args, **options) -> Proposal:
        proposal = self.drafter.propose(context, *args, **options)
        self.rounds.append((int(context.anchor_position[0]), proposal))
        return proposal


@torch.no_grad()
def train_serve_gaps(target, drafter, prompts: Sequence[list[int]], seed: int = 0) -> list[float]:
    """Total variation in [0, 1] between both draft laws, one a slot, of a few rounds a prompt (token ids)."""
    settings = DecodeSettings(NEW_TOKENS, Sampling(1.0), target.eos_token_ids, batch_size=1)
    generator = torch.Generator(device=target.device).manual_seed(seed)
    gaps: list[float] = []
    for prompt in prompts:
        recorder = _Recorder(drafter)
        written = Decoder(target, recorder, settings).run([prompt], generator)[0].tokens
        text = [*prompt, *written]
        for anchor, proposal in recorder.rounds[:: -(-len(recorder.rounds) // ROUNDS) or 1]:
            drafted = proposal.tokens[0].tolist()
            trained = probs(_training_logits(target, drafter, [*text[: anchor + 1], *drafted], anchor), Sampling(1.0))
            gaps += (0.5 * l1_distance(proposal.draft_probs[0].float(), trained.float())).tolist()
    return gaps


def _training_logits(target, drafter, text: list[int], anchor: int) -> Tensor:
    """Logits [G, W] of the block at ``anchor`` as training makes them, with the tokens of ``text`` as the true ones."""
    ids = torch.tensor([text], device=target.device)
    everything = torch.ones_like(ids, dtype=torch.bool)
    batch = target.read(Batch(ids, everything, everything), log_normalizer=False)
    anchors = torch.tensor([[anchor]], device=target.device)
    blocks = lay_out(
        batch, anchors, torch.ones_like(anchors, dtype=torch.bool), drafter.block, drafter.spec.mask_token_id
    )
    return drafter.draft_logits(drafter(batch, blocks).hidden[0], blocks.previous[0])[0]


@torch.no_grad()
def acceptance(target, drafter, loss, samples: Sequence[Sample], seed: int = 0) -> tuple[float, float]:
    """Accepted length of whole blocks, bonus included, and accept rate of the first token, expected on ``samples`` at T=1.

    Features are made by the target here, as decoding makes them. NaN where no block reaches far enough.
    """
    length, conditional = AcceptedLength(), ConditionalAcceptance(drafter.block.block_size)
    generator = torch.Generator().manual_seed(seed)
    for first in range(0, len(samples), BATCH):
        batch = target.read(collate(samples[first : first + BATCH]).to(target.device), drafter.draft_ids is not None)
        anchors, valid = draw_anchors(batch.loss_mask, ANCHORS, generator)
        blocks = lay_out(batch, anchors, valid, drafter.block, drafter.spec.mask_token_id)
        rates = loss(drafter, drafter(batch, blocks), blocks, batch).accept_rate.cpu()
        for metric in (length, conditional):
            metric.update(rates, blocks.label_mask.cpu())
    return float(length.compute()), float(conditional.compute().view(-1)[0])


def stored_gap(data, target, drafter) -> float | None:
    """Relative distance of the features that ``data`` keeps of one conversation from those that ``target`` makes now.

    None where nothing is stored. Stores compare their last hidden states with the target when they are opened; a cache of encoded
    shards its features, too, as far as their codec allows, so that its distance is 0 here.

    Raises:
        ValueError: they are damaged, or not this target's.
    """
    if data.features == "cache":
        folder, identity = data.cache_place(target)
        if not (folder / MANIFEST).is_file():
            return None
        open_cache(target, data.samples, folder, identity, data.cache)
        return 0.0
    if data.features != "memory" or not drafter.reads_layers:
        return None
    normalizer = drafter.draft_ids is not None
    settings = FeatureSettings(data.feature_dtype, normalizer, data.compute_dtype, layers=drafter.reads_layers)
    identity = features_identity(target, data.samples, settings, data.text_identity)
    folder = data.features_folder or cache_root() / "features" / digest(identity)
    if not (folder / MANIFEST).is_file():
        return None  # freed since, and not worth making again
    store = compute_features(target, data.samples, folder, identity, settings)
    index = min(range(len(data.samples)), key=lambda i: len(data.samples[i]))
    batch = target.read(collate([data.samples[index]]).to(target.device), log_normalizer=False)
    now, stored = batch.features[0].float().cpu(), store[index][0].float()
    return float((now - stored).norm() / now.norm())
