"""`--shard`: the trained network lies in parts over the processes; the task keeps a whole copy of it on the CPU.

Evaluations, exports and checkpoints use the whole copy, so that they are those of any other run, and a run may be
resumed by another number of processes.
"""

from __future__ import annotations

import copy
import os
from typing import Any, final

import torch
from accelerate import Accelerator
from torch import Tensor

import partialsgd as ps
from partialsgd._util import shards
from partialsgd.lab.training import launch
from partialsgd.lab.training.settings import Settings
from partialsgd.lab.training.task import Task
from partialsgd.nested import Nested
from partialsgd.parameters import Parameters


def require_shardable(settings: Settings) -> None:
    """Refuse `--shard` where it cannot work, before a run directory is made."""
    if not settings.shard:
        return
    if launch.processes().num_processes == 1:
        raise ValueError(
            "shard divides the network among several processes, and this is one alone; start them by "
            "torchrun --nproc-per-node 2 -m partialsgd train …, or by accelerate launch"
        )
    if settings.precision != "fp32":
        raise ValueError(f'shard trains with precision "fp32", got {settings.precision!r}')
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        raise ValueError("accelerate is configured to shard the network itself; use that or shard, not both")


@final
class ShardedNetwork:
    """The network in parts. The optimizers of the task are given the parts; `task.network` stays whole."""

    def __init__(self, task: Task, accelerator: Accelerator) -> None:
        self._whole = task.network
        whole = Parameters(self._whole)
        self.network: Nested = ps.distributed.shard(copy.deepcopy(self._whole).to(accelerator.device))
        self._parts = Parameters(self.network)
        names = {parameter: name for name, parameter in whole.items()}
        for optimizer in task.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [self._parts[names[parameter]] for parameter in group["params"]]

    @torch.no_grad()
    def collect(self) -> None:
        """Copy the parts, and this process's buffers, into the whole network. All processes must call it."""
        self._parts.reshard()
        for name, parameter in Parameters(self._whole).items():
            parameter.copy_(shards.gathered(self._parts[name]))
        self._copy_buffers(self.network, self._whole)

    @torch.no_grad()
    def spread(self) -> None:
        """Copy the whole network, which was loaded, into the parts."""
        self._parts.reshard()
        for name, parameter in Parameters(self._whole).items():
            part = self._parts[name]
            shards.local(part).copy_(shards.part_of(parameter.detach(), part))
        self._copy_buffers(self._whole, self.network)

    @staticmethod
    def _copy_buffers(source: Nested, target: Nested) -> None:
        values = dict(source.named_buffers())
        for name, buffer in target.named_buffers():
            buffer.copy_(values[name])


def gathered(state: Any) -> Any:
    """A state with whole tensors in the place of parts. All processes must call it."""
    if isinstance(state, dict):
        return {key: gathered(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(gathered(value) for value in state)
    return shards.gathered(state) if isinstance(state, Tensor) else state


def in_parts(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """A state of an optimizer, saved whole, with the numbers of each coordinate in the layout of its parameter."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {**state, "state": {k: _laid_out(parameters[k], of) for k, of in state["state"].items()}}


def _laid_out(parameter: Tensor, state: dict[str, Any]) -> dict[str, Any]:
    def is_of_coordinates(key: str, value: Any) -> bool:
        return isinstance(value, Tensor) and key != "step" and value.shape == parameter.shape

    return {
        key: shards.sharded_like(parameter, value.to(parameter.device)) if is_of_coordinates(key, value) else value
        for key, value in state.items()
    }
