"""Data parallel around the model, as the engine sees it: torch's, or this package's own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import final

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from partialsgd.masks import Mask
from partialsgd.method import Context
from partialsgd.parameters import Wrapper


@final
@dataclass(frozen=True)
class GradientsToSend:
    """The gradients of a pass that the processes have to exchange."""

    mask: Mask | None = None
    """The mask of the gradients that are read; None if all gradients of the pass are."""
    trained: Context | None = None
    """The context of the step that trains with this gradient; None if only rules or meters read it."""


class SendsActivePart(Wrapper):
    """Data parallel that is told before each pass which gradients the step needs, and sends no others."""

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

    def check_trained(self, weights: list[float]) -> None:
        """Raise if the gradients of a step whose branches have these weights cannot be sent exactly."""
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


def require_unused_search(model: nn.Module) -> None:
    """Raise unless DDP searches for unused parameters: it would not reduce a pass that leaves parameters out."""
    ddp = ddp_around(model)
    if isinstance(ddp, DistributedDataParallel) and not ddp.find_unused_parameters:
        raise ValueError(
            "this method leaves parameters out of some passes, and DistributedDataParallel would silently not "
            "reduce those gradients; use partialsgd.distributed.data_parallel(model), which also sends less, or "
            "wrap the model with find_unused_parameters=True"
        )
