"""Starting a drafter from its target instead of from noise: what a short training would otherwise spend its steps on.

    layers    draft layers   <- the target's last decoder layers (projections, MLP, norms)
    context   fc, hidden_norm <- the deepest tapped layer passed through, normed as the first copied layer norms its input;
              MTP's eh_proj likewise: the target's last hidden state passed through
    head      W_1            <- the R principal directions of the target's embedding, so that similar tokens share a bias

With ``layers`` and ``context``, a draft layer that follows the deepest tapped layer starts with exactly the values that
the target itself would attend to. A layer that reads an embedding beside its state (Eagle3's first) takes the target's
projections for the state and starts with noise for the embedding. Each part can be switched off; nothing of the target
stays shared. The module knows nothing of training.

    warm_start(drafter, target, WarmStart(layers=True, context=True, head=True))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from draftlab.drafters.layered import SIZES

PASS_THROUGH_NOISE = 0.002  # std of what takes nothing from the target: small beside what does, but not a dead start


@dataclass(frozen=True)
class WarmStart:
    """Which parts start from the target; all False is a random start."""

    layers: bool = False
    context: bool = False
    head: bool = False


def check_warm_start(drafter, parts: WarmStart) -> None:
    """Refuse draft layers that cannot be the target's, by its description alone; :func:`warm_start` sees the tensors.

    Raises:
        ValueError: more draft layers than the target has, or layers of other sizes.
    """
    if not parts.layers:
        return
    spec, differing = drafter.spec, []
    if len(drafter.layers) > spec.num_layers:
        differing.append(f"num_layers {len(drafter.layers)} of {spec.num_layers} at most")
    for name in SIZES:
        ours, theirs = getattr(drafter.sizes, name), getattr(spec, name)
        if ours != theirs:
            differing.append(f"{name} {ours}, the target's is {theirs}")
    if differing:
        raise ValueError(
            f"trainer.warm_start.layers copies layers of the target, but the drafter has {'; '.join(differing)}; "
            "drop these drafter settings, or give trainer.warm_start.layers=false"
        )


@torch.no_grad()
def warm_start(drafter, target, parts: WarmStart) -> None:
    """Overwrite the random start of ``drafter`` with values of the frozen ``target``, in place.

    Raises:
        ValueError: the target's layers are built otherwise than the draft layers, in names or in shapes.
    """
    if parts.layers:
        _copy_layers(drafter.layers, target.layers)
    if parts.context:
        _pass_last_state(drafter.projection)
        if parts.layers and drafter.hidden_norm is not None:
            drafter.hidden_norm.weight.copy_(drafter.layers[0].input_layernorm.weight)
    if parts.head and drafter.markov_head.rank:
        table = drafter.markov_head.markov_w1.weight
        table.copy_(principal_codes(target.ends.embedding.float(), table.shape[1]))


def _copy_layers(draft_layers: nn.ModuleList, target_layers) -> None:
    """Draft layer i of n takes projections, MLP and norms of the target's layer L-n+i."""
    if len(draft_layers) > len(target_layers):
        raise ValueError(
            f"trainer.warm_start.layers: the drafter has {len(draft_layers)} layers, the target {len(target_layers)}; "
            "use fewer draft layers, or trainer.warm_start.layers=false"
        )
    for draft, source in zip(draft_layers, list(target_layers)[-len(draft_layers) :], strict=True):
        theirs = dict(source.named_modules())
        for name, module in draft.named_modules():
            if not list(module.parameters(recurse=False)):
                continue
            own_name = draft.target_names.get(name, name)
            if own_name is None or (own_name not in theirs and name.endswith(("q_norm", "k_norm"))):
                continue  # nothing of the target does the same, as in one without per-head norms: ours stay at 1
            module.weight.copy_(_weight_of(name, module, theirs.get(own_name)))


def _weight_of(name: str, module: nn.Module, source: nn.Module | None) -> torch.Tensor:
    """What ``source`` multiplies by. A norm is asked for it with ones, since some families store the weight less 1."""
    value = getattr(source, "weight", None)
    if value is not None and not isinstance(module, nn.Linear):
        value = source(torch.ones_like(value))
    if value is not None and value.dim() == 2 and module.weight.shape == (value.shape[0], 2 * value.shape[1]):
        of_embedding = torch.empty_like(value).normal_(std=PASS_THROUGH_NOISE)  # it stands before the state
        value = torch.cat([of_embedding, value], dim=1)
    if value is None or value.shape != module.weight.shape:
        shape = "no such tensor" if value is None else list(value.shape)
        raise ValueError(
            f"trainer.warm_start.layers: a draft layer has {name}.weight {list(module.weight.shape)}, the target's layers "
            f"have {shape}; give the draft layers the target's sizes, or trainer.warm_start.layers=false for a target "
            "that is built otherwise"
        )
    return value


def _pass_last_state(projection: nn.Linear) -> None:
    """[D, M*D] := noise, plus the identity on its last D inputs: the deepest tapped layer, or MTP's last hidden state."""
    weight = projection.weight
    hidden_size = weight.shape[0]
    nn.init.normal_(weight, std=PASS_THROUGH_NOISE)
    weight[:, -hidden_size:] += torch.eye(hidden_size, dtype=weight.dtype, device=weight.device)


def principal_codes(embedding: torch.Tensor, rank: int) -> torch.Tensor:
    """Codes [V, R] of token embeddings [V, D] in their R principal directions, scaled to a root mean square of 1.

    Directions beyond D, should R exceed it, are 0.
    """
    centred = embedding - embedding.mean(0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(-1)[:, :rank]  # largest first
    codes = nn.functional.pad(centred @ directions, (0, max(0, rank - embedding.shape[1])))
    return codes / codes.square().mean().sqrt()
