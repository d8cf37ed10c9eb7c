"""Checks if the processes of a group have the same number."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist


def device_of(group: dist.ProcessGroup) -> torch.device:
    """A device whose tensors the group can send."""
    devices = group._device_types
    return torch.device("cpu") if torch.device("cpu") in devices else devices[0]


def agree(number: int, group: dist.ProcessGroup) -> bool:
    """True if all processes of the group have the same 64-bit number; all of them must call it."""
    return ask(number, group)()


def ask(number: int, group: dist.ProcessGroup) -> Callable[[], bool]:
    """Ask like `agree`, without waiting; the result gives the answer when it is called."""
    tensor = torch.tensor([number], dtype=torch.int64, device=device_of(group))
    gathered = [torch.empty_like(tensor) for _ in range(group.size())]
    work = dist.all_gather(gathered, tensor, group=group, async_op=True)

    def answer() -> bool:
        if work is not None:
            work.wait()
        return all(int(other) == number for other in gathered)

    return answer
