"""What a device can do beyond plain PyTorch. On a GPU, chosen in conf/trainer: FlexAttention, and torch.compile of the layers.

    trainer.attention   sdpa: masked attention over groups of blocks, everywhere      flex: FlexAttention, CUDA
    trainer.compile     true: both halves of every draft layer through torch.compile, CUDA

On a CPU, always: float32 products by oneDNN (:mod:`draftlab.target.products`), which halves their time on most. Results are
the same but for rounding, and so are the names of weights. The module knows nothing of blocks or losses.

    accelerate(drafter, attention="flex", compiled=True, device="cuda:0")
"""

from __future__ import annotations

import torch

from draftlab.drafters.attention import FlexBlockAttention
from draftlab.target.products import learning_products

ATTENTIONS = {"sdpa": None, "flex": FlexBlockAttention}  # None: what drafters do by themselves

GRAPHS_PER_FUNCTION = 32


def accelerate(drafter, attention: str, compiled: bool, device: str) -> None:
    """Let ``drafter`` train on ``device`` with what is asked for, and with what its products can gain there.

    Raises:
        ValueError: an unknown attention, or a choice that cannot train on the device.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f"trainer.attention must be one of {', '.join(ATTENTIONS)}, got {attention!r}")
    on_cuda = torch.device(device).type == "cuda"
    if attention == "flex" and not on_cuda:
        raise ValueError(
            f"trainer.attention=flex trains on CUDA only (no backward pass elsewhere), but this run is on {device}; "
            "use trainer.attention=sdpa"
        )
    if compiled and not on_cuda:
        raise ValueError(f"trainer.compile=true is for CUDA, but this run is on {device}; use trainer.compile=false")
    drafter.attention = ATTENTIONS[attention]
    if not on_cuda:
        learning_products(drafter)
    if compiled:
        compile_layers(drafter)


def compile_layers(drafter, **options) -> None:
    """Compile what every draft layer does before and after attention; ``options`` are torch.compile's.

    Attention stays outside: its pattern is another one at every step. Sizes are dynamic, since the number of blocks is. One
    function serves all layers, so PyTorch's limit of graphs a function, past which it silently runs uncompiled, is raised: the
    first layer and the rest, training and validation, one block and many each have their own.
    """
    from torch import _dynamo as dynamo  # slow to import, and for CUDA only

    dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, GRAPHS_PER_FUNCTION)
    for layer in drafter.layers:
        layer.before = torch.compile(layer.before, dynamic=True, **options)
        layer.after = torch.compile(layer.after, dynamic=True, **options)
