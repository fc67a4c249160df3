"""FSDP2: the drafter's weights, gradients and optimizer moments in parts, one on each rank (``trainer=fsdp``).

The drafter is one unit: its weights are gathered at the forward pass and stay so until the backward pass has ended, since the loss
asks it for logits in between. So a rank keeps 1/R of the 16 bytes a parameter that float32 weights, gradients and AdamW take, and
all weights for the time of a step. The frozen target is not sharded. Checkpoints are put together into one file, as without
sharding. The module knows nothing of losses or data.

    strategy = sharded_strategy(devices=8, num_nodes=2)
"""

from __future__ import annotations

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor


def sharded_strategy(devices: int, num_nodes: int = 1) -> ModelParallelStrategy:
    """Lightning's strategy for FSDP2 over all ranks, with checkpoints in one file.

    Args:
        devices: of every machine. num_nodes: machines.

    Raises:
        ValueError: a number of devices that is not known before the processes start.
    """
    if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
        raise ValueError(
            f"trainer=fsdp needs trainer.settings.devices as a number of at least 1 (GPUs of a machine), got {devices!r}"
        )
    return ModelParallelStrategy(
        data_parallel_size=devices * num_nodes, tensor_parallel_size=1, save_distributed_checkpoint=False
    )


def shard(drafter: nn.Module, mesh: DeviceMesh) -> None:
    """Shard ``drafter`` over ``mesh`` in place; a second call changes nothing."""
    if not isinstance(drafter, FSDPModule):
        fully_shard(drafter, mesh=mesh, reshard_after_forward=False)


def own_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds, sharing its memory; an ordinary tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
