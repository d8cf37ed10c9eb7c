"""The criteria meter that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.training.batch_plan import StepBatches
from partialsgd.lab.training.method_text import parse_method
from partialsgd.lab.training.settings import Settings
from partialsgd.lab.training.task import Task
from partialsgd.nested import Nested
from partialsgd.parameters import parameters_of

LAYERS = "layers"
"""The name of the `measure_layers` group in the metrics."""


def make_meter(
    settings: Settings,
    network: Nested,
    batches_at: Callable[[int], StepBatches] | None = None,
    loss: Callable[[StepBatches], Tensor] | None = None,
) -> ps.CriteriaMeter | None:
    """Make the meter, or return None if nothing is measured. Patterns and probes that do not fit are refused.

    `batches_at` and `loss` are used when a measurement covers the batches of several steps.
    """
    if settings.measure_every is None:
        return None
    options: dict[str, Any] = {}
    if settings.measure_layers:
        with _error_names("measure_layers"):
            parameters_of(network).match(settings.measure_layers)
        options["groups"] = {LAYERS: settings.measure_layers}
    if settings.measure_batches > 1 and batches_at is not None:
        count = settings.measure_batches  # a function of t, so that a resumed run measures on the same batches
        options |= {"batches": lambda t: [batches_at(t + k) for k in range(count)], "loss": loss}
    with _error_names("probe"):
        probe = None if settings.probe is None else parse_method(settings.probe).bind(network)
    return ps.CriteriaMeter(settings.measure_every, probe, **options)


def mean_loss(task: Task, model: nn.Module, step: StepBatches) -> Tensor:
    """The loss of a step's batches without distillation: the criteria compare gradients of one function."""
    g = cast(GradientPass, SimpleNamespace(teacher=None, outputs=None))
    return torch.stack([task.loss(model, batch, g) * step.loss_scale for batch in step.batches]).sum()


@contextmanager
def _error_names(setting: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError) as error:
        raise ValueError(f"{setting}: {error.args[0]}") from error
