"""A tiny target and an untrained drafter that fit each other, in float64, for exact tests of decoding.

target, drafter = tiny_pair("markov", vocab_size=16, gamma=3)
"""

from __future__ import annotations

from functools import partial

import torch

import tiny
from draftlab.blocks import BlockSpec
from draftlab.drafters import MTP, DFlash, DSpark, Eagle3
from draftlab.heads import GatedHead, MarkovHead, NoHead, RNNHead

HEADS = {
    "markov": partial(MarkovHead, rank=4),
    "gated": partial(GatedHead, rank=4),
    "rnn": partial(RNNHead, rank=4),
    "none": NoHead,
}
FAMILIES = {"dflash": DFlash, "eagle3": Eagle3, "mtp": MTP}


def tiny_pair(name, vocab_size, gamma, draft_ids=None, sample_from_anchor=True, num_layers=1, **options):
    """A float64 target and an untrained drafter whose laws are neither flat nor alike."""
    target = tiny.tiny_target(
        vocab_size=vocab_size, hidden_size=16, dtype=torch.float64, spec={"mask_token_id": tiny.UNK}
    )
    block = BlockSpec(block_size=gamma, sample_from_anchor=sample_from_anchor)
    options |= {"num_layers": num_layers, "draft_vocab_size": None if draft_ids is None else len(draft_ids)}
    kind = partial(DSpark, head=HEADS[name]) if name in HEADS else FAMILIES[name]
    drafter = kind(target.spec, block, **options).double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in drafter.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.add_(0.5 * noise)
    drafter.attach(target.ends)
    if draft_ids is not None:
        drafter.set_draft_vocabulary(draft_ids)
    return target, drafter
