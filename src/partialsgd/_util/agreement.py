"""Checks if the processes of a group have the same number."""

from __future__ import annotations

import torch
import torch.distributed as dist


def device_of(group: dist.ProcessGroup) -> torch.device:
    """A device whose tensors the group can send."""
    devices = group._device_types
    return torch.device("cpu") if torch.device("cpu") in devices else devices[0]


def agree(number: int, group: dist.ProcessGroup) -> bool:
    """True if all processes of the group have the same 64-bit number; all of them must call it."""
    tensor = torch.tensor([number], dtype=torch.int64, device=device_of(group))
    gathered = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(gathered, tensor, group=group)
    return all(int(other) == number for other in gathered)
