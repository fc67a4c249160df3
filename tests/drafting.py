"""Tiny drafters with well-spread weights, random batches, and decode contexts cut out of them.

Weights are random everywhere (a fresh head has no bias and fresh norms are neutral, which would hide faults):

    drafter = tiny_drafter(head="rnn", block=BlockSpec(4, 3))          # attached to random ends, float64
    batch = random_batch(drafter.spec, lengths=(12, 9))
    context = context_of(batch, begins=(0, 0), anchors=(7, 5))
"""

from __future__ import annotations

from functools import partial

import torch

from draftlab.blocks import BlockSpec, lay_out
from draftlab.drafters import MTP, DFlash, DSpark, Eagle3
from draftlab.heads import DominoHead, GatedHead, MarkovHead, NoHead, RNNHead
from draftlab.target import TargetEnds, TargetSpec
from draftlab.types import Batch, Context

RANK = 5
FAMILIES = {"dflash": DFlash, "eagle3": Eagle3, "mtp": MTP}  # those without a head
HEADS = {"markov": MarkovHead, "gated": GatedHead, "rnn": RNNHead, "domino": DominoHead, "none": NoHead}
LAYOUTS = {"anchor-first": True, "1+N": False}


def small_spec(**changes):
    facts = {
        "name": "small",
        "path": "small",
        "num_layers": 4,
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 6,
        "vocab_size": 23,
        "target_layer_ids": (0, 2),
        "mask_token_id": 3,
        "rope_theta": 100.0,
    }
    return TargetSpec(**(facts | changes))


def make_head(name):
    """A head class with the rank of the tests filled in, as conf/head does."""
    if name == "none":
        return NoHead
    return lambda **sizes: HEADS[name](**sizes, rank=RANK)


def random_ends(spec, scale=1.0, seed=1, dtype=torch.float64, **options):
    """Untied random ends whose logits spread, so that laws are peaked."""
    generator = torch.Generator().manual_seed(seed)
    embedding, head = torch.randn(2, spec.vocab_size, spec.hidden_size, generator=generator, dtype=dtype)
    return TargetEnds(embedding, head * scale, **options)


def tiny_drafter(head="markov", block=None, spec=None, seed=0, dtype=torch.float64, **options):
    """A drafter whose every weight is random; ``head="dflash"``, ``"eagle3"`` or ``"mtp"`` makes one of that family."""
    spec, block = spec or small_spec(), block or BlockSpec(block_size=4, num_anchors=3)
    options = {"num_layers": 2} | options
    family = FAMILIES.get(head)
    build = partial(DSpark, spec, block, make_head(head)) if family is None else partial(family, spec, block)
    drafter = build(**options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 1 + 0.3 * noise)
    return drafter.to(dtype).attach(random_ends(spec, dtype=dtype))


def random_batch(spec, lengths=(12, 9), seed=2, dtype=torch.float64):
    """Right-padded random tokens and features; everything but position 0 is supervised."""
    generator = torch.Generator().manual_seed(seed)
    size = (len(lengths), max(lengths))
    mask = torch.arange(size[1]) < torch.tensor(lengths).unsqueeze(-1)
    return Batch(
        input_ids=torch.randint(0, spec.vocab_size, size, generator=generator),
        attention_mask=mask,
        loss_mask=mask & (torch.arange(size[1]) > 0),
        features=torch.randn(*size, spec.feature_size, generator=generator, dtype=dtype),
        last_hidden=torch.randn(*size, spec.hidden_size, generator=generator, dtype=dtype),
    )


def rows_of(batch, rows):
    """The batch of these rows, in that order; rows may repeat."""
    rows = torch.as_tensor(rows)
    names = ("input_ids", "attention_mask", "loss_mask", "features", "last_hidden")
    return Batch(**{name: getattr(batch, name)[rows] for name in names})


def blocks_at(batch, drafter, anchors):
    """Blocks at chosen ``anchors`` [B][N]."""
    anchors = torch.as_tensor(anchors)
    valid = torch.ones_like(anchors, dtype=torch.bool)
    return lay_out(batch, anchors, valid, drafter.block, drafter.spec.mask_token_id)


def context_of(batch, begins, anchors):
    """What the decode loop hands over when row b's tokens ``begins[b]`` .. ``anchors[b]``-1 are new.

    Padding holds rubbish, as the tail of a verified block does.
    """
    counts = torch.tensor(anchors) - torch.tensor(begins)
    positions = torch.tensor(begins).unsqueeze(-1) + torch.arange(int(counts.max()))
    mask = torch.arange(int(counts.max())) < counts.unsqueeze(-1)
    rows = torch.arange(len(anchors)).unsqueeze(-1)
    inside = positions.clamp_max(batch.input_ids.shape[1] - 1)
    rubbish = torch.full_like(batch.features[rows, inside], 1e3)
    return Context(
        anchor=batch.input_ids[rows.squeeze(-1), torch.tensor(anchors)],
        anchor_position=torch.tensor(anchors),
        new_ids=batch.input_ids[rows, inside],
        new_positions=positions.masked_fill(~mask, 0),
        new_mask=mask,
        new_features=torch.where(mask.unsqueeze(-1), batch.features[rows, inside], rubbish),
        new_last_hidden=batch.last_hidden[rows, inside],
    )
