"""Numbers as they are: weights are made and taken out in their own precision, whatever is switched on outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


@contextmanager
def exact(model: nn.Module) -> Iterator[None]:
    """No autocast, no inference mode, and parameters that are made know whether they are trained."""
    kinds = {parameter.device.type for parameter in model.parameters()} - {"meta"}
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
