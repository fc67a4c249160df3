"""What the machine multiplies fast. The module knows nothing of models.

>>> has_fast_bfloat16("cpu") in (True, False)
True
"""

from __future__ import annotations

import torch

BFLOAT16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16")


def has_fast_bfloat16(device: str | torch.device) -> bool:
    """Whether ``device`` has instructions for bfloat16 products: every CUDA device, and CPUs that name them.

    A CPU without them emulates bfloat16 and is slower than in float32.
    """
    if torch.device(device).type != "cpu":
        return torch.device(device).type == "cuda"
    return any(cpu_capabilities().get(name) for name in BFLOAT16_INSTRUCTIONS)


def cpu_capabilities() -> dict[str, bool]:
    """Instruction sets of this CPU by name; empty where this PyTorch cannot say."""
    return getattr(torch.cpu, "get_capabilities", dict)()
