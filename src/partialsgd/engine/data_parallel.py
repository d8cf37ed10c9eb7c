"""Data parallel around the model, as the engine sees it: torch's, or this package's own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import final

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from partialsgd._util import randomness, shards
from partialsgd._util.agreement import agree
from partialsgd.masks import Mask
from partialsgd.method import Context
from partialsgd.optimizers.grad_scaler import Scaler
from partialsgd.parameters import Parameters, Wrapper

running_pass: ContextVar[Parameters | None] = ContextVar("running_pass", default=None)
"""The parameters of the pass that runs now: a wrapper notices by it that a `PartialSGD` does not know the wrapper."""


@final
@dataclass(frozen=True)
class GradientsToSend:
    """The gradients of a pass that the processes have to exchange."""

    mask: Mask | None = None
    """The mask of the gradients that are read; None if all gradients of the pass are."""
    trained: Context | None = None
    """The context of the step that trains with this gradient; None if only rules or meters read it."""
    scaler: Scaler | None = None
    """The gradients are multiplied by its scale, which may be another one at the next step."""


class SendsActivePart(Wrapper):
    """Data parallel that is told before each pass which gradients the step needs, and sends no others."""

    names: Parameters
    """The parameters that it was made for."""
    is_driven = False
    """True if a `PartialSGD` trains through it, so that a forward pass outside of a step is an evaluation."""
    process_group: dist.ProcessGroup | None
    """The group over which meters average their numbers; None if they are equal on all processes already."""
    gradient_as_bucket_view: bool
    unsent: Mapping[str, Tensor]
    """The gradients that compression has not sent, by parameter name, as they were before the step in progress."""

    @property
    def is_unsynced(self) -> bool:
        """True if gradients in `.grad` were accumulated under `no_sync`, and are not averaged yet."""
        raise NotImplementedError

    def sending(self, gradients: GradientsToSend) -> AbstractContextManager[None]:
        """Surrounds forward and backward of one pass. Parameters that the mask leaves out have no gradient after it."""
        raise NotImplementedError

    def check_trained(self, weights: list[float], *, is_read: bool) -> None:
        """Raise if the gradients of a step whose branches have these weights cannot be sent exactly. `is_read` is True
        if a rule, a meter or a guard reads the trained gradient."""
        raise NotImplementedError

    def end_step(self, *, moved: bool) -> None:
        """End a step whose gradients were applied (`moved`) or dropped."""
        raise NotImplementedError


def ddp_around(model: nn.Module) -> DistributedDataParallel | SendsActivePart | None:
    """The data parallel wrapper around the user's module, if there is one."""
    while not isinstance(model, DistributedDataParallel | SendsActivePart):
        inner = getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return None
        model = inner
    return model


def claim_ddp(model: nn.Module, parameters: Parameters) -> DistributedDataParallel | SendsActivePart | None:
    """Tell the data parallel wrapper around the user's module, if there is one, that a `PartialSGD` trains through it.

    Raise if some parameters would not be averaged: those that the model got after it was wrapped, or those around a
    wrapper that is inside the model.
    """
    ddp = ddp_around(model)
    if ddp is None:
        inside = [m for m in model.modules() if isinstance(m, DistributedDataParallel | SendsActivePart)]
        averaged = {p for wrapper in inside for p in wrapper.parameters()}
        around = [name for name, p in parameters.items() if p.requires_grad and p not in averaged]
        if inside and (around or any(isinstance(wrapper, SendsActivePart) for wrapper in inside)):
            outside = f", and {around[0]!r} would not be averaged over the processes" if around else ""
            raise ValueError(
                f"only a part of the model is data parallel{outside}; wrap the whole model, once: "
                "PartialSGD(data_parallel(model), …)"
            )
        return None
    wrapped = ddp.names.values() if isinstance(ddp, SendsActivePart) else ddp._module_parameters
    ignored: set[str] = set() if isinstance(ddp, SendsActivePart) else ddp.parameters_to_ignore
    known = set(wrapped)
    for name, parameter in parameters.items():
        if parameter not in known and name not in ignored:
            raise ValueError(
                f"the parameter {name!r} was added or replaced after the model was wrapped, so that its gradient would "
                "not be averaged over the processes; wrap the model when it is complete"
            )
    if isinstance(ddp, SendsActivePart):
        ddp.is_driven = True
    return ddp


@final
class Agreement:
    """Checks that all processes begin with the same t, seed and method: else their masks differ, and nobody notices."""

    def __init__(self, ddp: DistributedDataParallel | SendsActivePart | None, parameters: Parameters) -> None:
        groups = [] if ddp is None or ddp.process_group is None else [ddp.process_group]
        if parameters.is_sharded:
            groups += shards.mesh_groups(parameters.values())
        self._groups = [group for group in groups if group.size() > 1]
        self.is_due = bool(self._groups)
        """True before the first step, and before the first one after a state was loaded."""

    def renew(self) -> None:
        self.is_due = bool(self._groups)

    def check(self, t: int, seed: int, method: str) -> None:
        """Raise on all processes if one has begun with something else; all of them must call it."""
        if all([agree(randomness.key(t, seed, method), group) for group in self._groups]):
            self.is_due = False
            return
        raise RuntimeError(
            f"the processes do not agree: this one is at t = {t} with seed = {seed} and {method}; pass the same seed "
            "and the same method on all of them, and load the same state everywhere"
        )


def require_unused_search(model: nn.Module) -> None:
    """Raise unless DDP searches for unused parameters: it would not reduce a pass that leaves parameters out."""
    ddp = ddp_around(model)
    if isinstance(ddp, DistributedDataParallel) and not ddp.find_unused_parameters:
        raise ValueError(
            "this method leaves parameters out of some passes, and DistributedDataParallel would silently not "
            "reduce those gradients; use partialsgd.distributed.data_parallel(model), which also sends less, or "
            "wrap the model with find_unused_parameters=True"
        )


def require_all_used(ddp: DistributedDataParallel, parameters: Parameters) -> None:
    """Raise if a pass has left a parameter out and DDP does not search for such: it has not averaged the gradients."""
    if ddp.find_unused_parameters or ddp.static_graph:
        return
    for name, parameter in parameters.items():
        if parameter.requires_grad and parameter.grad is None and name not in ddp.parameters_to_ignore:
            raise RuntimeError(
                f"the parameter {name!r} took no part in this pass, so that DistributedDataParallel has not averaged "
                "the gradients of all others; use partialsgd.distributed.data_parallel(model), or wrap the model with "
                "find_unused_parameters=True"
            )
