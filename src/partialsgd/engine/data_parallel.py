"""What the engine has to know about data parallel around the model: torch's, or this package's own."""

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
    """Only what is inside is read; None if everything that the pass computes is."""
    trained: Context | None = None
    """The context of the step that trains with this gradient; None if only rules or meters read it."""


class SendsActivePart(Wrapper):
    """Data parallel that is told before each pass which gradients the step needs, and sends no others."""

    process_group: dist.ProcessGroup | None
    """None if what meters compute from averaged gradients is the same everywhere without an exchange."""
    gradient_as_bucket_view: bool
    unsent: Mapping[str, Tensor]
    """What compression has not sent yet, by parameter name; what the step in progress adds is not in it."""

    @property
    def is_unsynced(self) -> bool:
        """True if gradients in `.grad` were accumulated under `no_sync`, and are not averaged yet."""
        raise NotImplementedError

    def sending(self, gradients: GradientsToSend) -> AbstractContextManager[None]:
        """Surrounds forward and backward of one pass. Parameters that the mask leaves out have no gradient after it."""
        raise NotImplementedError

    def check_trained(self, weights: list[float]) -> None:
        """Raise if a step with branches of these weights cannot be sent as asked for."""
        raise NotImplementedError

    def end_step(self, *, moved: bool) -> None:
        """The gradients of the step were applied, or dropped."""
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
