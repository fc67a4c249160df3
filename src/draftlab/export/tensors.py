"""A drafter's tensors under foreign names, and back; what is missing, extra or misshapen is named one by one.

    ours                      theirs
    layers.0.…                midlayer.… in one layout of Eagle3
    draft_ids [W]             d2t int64 [W], offsets target id - draft id;  t2d bool [V]
    lm_head [W, D]            lm_head.weight: of a trained copy, or the target's rows of a reduced vocabulary
    (shared with the target)  embed_tokens.weight, lm_head.weight, left out unless ``ends="copied"``

All other names are the same. It knows nothing of files.

    tensors = foreign_tensors(drafter, layout, torch.float32, copied=False)
    state = own_state(tensors, layout, drafter)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftlab.export.layout import Layout
from draftlab.target import TargetEnds

EMBEDDING, HEAD, DRAFT_TO_TARGET, TARGET_TO_DRAFT = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"
UNUSED = ("verifier_lm_head.weight", "verifier_norm.weight", "rotary_emb.inv_freq")  # of the target, or made anew
EXITS = "exits."  # parts that no engine knows
MOST = 8  # tensors that a refusal names


def foreign_tensors(drafter, layout: Layout, dtype: torch.dtype, copied: bool = False) -> dict[str, Tensor]:
    """Contiguous tensors by foreign name, floats in ``dtype``. ``copied``: the target's ends go along, as in released
    checkpoints; otherwise engines share the target's. Early exits stay behind: every block runs through all layers.
    """
    state = {name: value.detach() for name, value in drafter.state_dict().items() if not name.startswith(EXITS)}
    ids, own_head = state.pop("draft_ids", None), state.pop("lm_head", None)
    tensors = {_renamed(name, "layers.0.", layout.first_layer): value for name, value in state.items()}
    ends = drafter.ends
    if copied:
        tensors[EMBEDDING] = ends.embedding
    if own_head is not None:
        tensors[HEAD] = own_head
    elif ids is not None:
        tensors[HEAD] = ends.head_rows(drafter.draft_ids)
    elif copied:
        tensors[HEAD] = ends.head
    if ids is not None:
        tensors[DRAFT_TO_TARGET] = ids - torch.arange(len(ids), device=ids.device)
        tensors[TARGET_TO_DRAFT] = torch.zeros(drafter.spec.vocab_size, dtype=torch.bool).index_fill_(
            0, ids.cpu(), True
        )
    return {name: _plain(value, dtype) for name, value in sorted(tensors.items())}


def own_names(tensors: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """The same under our names, without what is the target's or nobody's."""
    strip = all(name.startswith("model.") for name in tensors if name not in (HEAD, DRAFT_TO_TARGET, TARGET_TO_DRAFT))
    plain = {name.removeprefix("model.") if strip else name: value for name, value in tensors.items()}
    plain = {_renamed(name, layout.first_layer, "layers.0."): value for name, value in plain.items()}
    return {name: value for name, value in plain.items() if not name.endswith(UNUSED)}


def has_own_head(tensors: Mapping[str, Tensor], ends: TargetEnds) -> bool:
    """Whether ``lm_head.weight`` is there and is not the target's, at the draft vocabulary if there is one.

    Raises:
        ValueError: embeddings that are not the target's, or a head of a size that fits neither vocabulary.
    """
    embedding = tensors.get(EMBEDDING)
    if embedding is not None and (embedding.shape != ends.embedding.shape or not _same(embedding, ends.embedding)):
        different = "its shape differs" if embedding.shape != ends.embedding.shape else _rows(embedding, ends.embedding)
        raise ValueError(
            f"{EMBEDDING} is not the target's embedding ({different}); DraftLab's drafters share that of the target. Check that "
            "target= is the model that the checkpoint was trained for"
        )
    head = tensors.get(HEAD)
    if head is None:
        return False
    ids = draft_ids(tensors, ends.vocab_size)
    theirs = ends.head if ids is None else ends.head_rows(ids)
    if head.shape != theirs.shape:
        raise ValueError(
            f"{HEAD} is {list(head.shape)}, expected {list(theirs.shape)}: the target's width, and the draft vocabulary's rows"
        )
    return not _same(head, theirs)


def draft_ids(tensors: Mapping[str, Tensor], vocab_size: int) -> Tensor | None:
    """Target ids [W] of a reduced draft vocabulary, from offsets ``d2t`` [W]; None without one.

    Raises:
        ValueError: ids that are not ascending or leave the vocabulary, or ``t2d`` that says otherwise.
    """
    offsets = tensors.get(DRAFT_TO_TARGET)
    if offsets is None:
        return None
    ids = offsets.reshape(-1).long() + torch.arange(offsets.numel())
    if bool((ids[1:] <= ids[:-1]).any()) or int(ids[0]) < 0 or int(ids[-1]) >= vocab_size:
        raise ValueError(
            f"{DRAFT_TO_TARGET} must hold offsets (target id - draft id) of ascending target ids below {vocab_size}; as ids they "
            "are not, perhaps since the file holds the ids themselves"
        )
    reverse = tensors.get(TARGET_TO_DRAFT)
    if reverse is not None and not torch.equal(reverse.reshape(-1).nonzero().squeeze(-1), ids):
        raise ValueError(f"{TARGET_TO_DRAFT} marks other tokens than {DRAFT_TO_TARGET} names; one of them is wrong")
    return ids


def own_state(tensors: Mapping[str, Tensor], drafter, own_head: bool) -> dict[str, Tensor]:
    """The state dict of ``drafter`` from tensors under our names; floats in the drafter's dtype.

    Raises:
        ValueError: tensors that are missing, extra or of another shape, each named.
    """
    given = {name: value for name, value in tensors.items() if name not in (EMBEDDING, HEAD, TARGET_TO_DRAFT)}
    ids = draft_ids(tensors, drafter.spec.vocab_size)
    given.pop(DRAFT_TO_TARGET, None)
    if ids is not None:
        given["draft_ids"] = ids
    if own_head:
        given["lm_head"] = tensors[HEAD]
    expected = drafter.state_dict()
    optional = {name for name in expected if name.endswith("layer_scalar")} - given.keys()  # a factor of 1
    missing = sorted(expected.keys() - given.keys() - optional)
    extra = sorted(given.keys() - expected.keys())
    misshapen = [
        f"{name} {list(given[name].shape)}, expected {list(value.shape)}"
        for name, value in expected.items()
        if name in given and given[name].shape != value.shape
    ]
    faults = [f"{what}: {_listed(names)}" for what, names in _faults(missing, extra, misshapen) if names]
    if faults:
        raise ValueError(f"the tensors do not fit what config.json says; {'; '.join(faults)}")
    return {name: given.get(name, value).to(value.dtype) for name, value in expected.items()}


def _faults(missing: list[str], extra: list[str], misshapen: list[str]):
    return ("missing", missing), ("extra", extra), ("misshapen", misshapen)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def _renamed(name: str, old: str, new: str) -> str:
    return new + name[len(old) :] if name.startswith(old) else name


def _plain(value: Tensor, dtype: torch.dtype) -> Tensor:
    value = value.to(dtype) if value.is_floating_point() else value
    return value.cpu().contiguous().clone()


def _same(stored: Tensor, target: Tensor) -> bool:
    """Whether ``stored`` is ``target`` as far as its dtype tells."""
    return torch.equal(stored, target.detach().cpu().to(stored.dtype))


def _rows(stored: Tensor, target: Tensor) -> str:
    different = (stored != target.detach().cpu().to(stored.dtype)).any(-1).nonzero().squeeze(-1).tolist()
    return f"{len(different)} of {len(stored)} rows differ, the first is {different[0]}"
