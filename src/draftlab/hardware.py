"""The devices of this machine, what they are called and what they multiply fast. The module knows nothing of models.

>>> has_fast_bfloat16("cpu") in (True, False)
True
"""

from __future__ import annotations

import platform

import torch

BFLOAT16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16")


def find_device(name: str) -> str:
    """The device called ``name``: ``auto`` is CUDA where there is one, else the CPU.

    Raises:
        ValueError: no such device, in PyTorch or on this machine.
    """
    available = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if available else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:<number>, got {name!r}") from None
    if kind == "cuda" and not available:
        raise ValueError(f"device={name} needs a GPU, but PyTorch {torch.__version__} sees none; use auto or cpu")
    return name


def machine(device: str) -> dict[str, str | int]:
    """What a speed on ``device`` (auto, cpu, cuda …) depends on, besides models and sizes."""
    found = torch.device(find_device(device))
    name = torch.cuda.get_device_name(found) if found.type == "cuda" else platform.processor() or platform.machine()
    return {"device": found.type, "machine": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


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
