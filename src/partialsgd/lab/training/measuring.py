"""What is measured beside a training: the criteria of its method, or of another one, as the settings say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.training.batch_plan import Hand
from partialsgd.lab.training.methods import method_of
from partialsgd.lab.training.settings import Settings
from partialsgd.lab.training.task import Task
from partialsgd.nested import Nested
from partialsgd.parameters import parameters_of

LAYERS = "layers"
"""The group of `measure_layers`, by which a figure asks for it."""


def meter_of(
    settings: Settings,
    network: Nested,
    hand: Callable[[int], Hand] | None = None,
    loss: Callable[[Hand], Tensor] | None = None,
) -> ps.CriteriaMeter | None:
    """The meter that the settings ask for, with the batches of a step and their loss where it takes several steps'.

    What they ask of a network that has no such thing is refused.
    """
    if settings.measure_every is None:
        return None
    options: dict[str, Any] = {}
    if settings.measure_layers:
        with _said_of("measure_layers"):
            parameters_of(network).match(settings.measure_layers)
        options["groups"] = {LAYERS: settings.measure_layers}
    if settings.measure_batches > 1 and hand is not None:
        options |= {"batches": _following(hand, settings.measure_batches), "loss": loss}
    with _said_of("probe"):
        probe = None if settings.probe is None else method_of(settings.probe).bind(network)
    return ps.CriteriaMeter(settings.measure_every, probe, **options)


def mean_loss(task: Task, model: nn.Module, hand: Hand) -> Tensor:
    """The loss of a step's batches, without the family as its own teacher: the criteria are about one function."""
    g = cast(GradientPass, _Untaught())
    return torch.stack([task.loss(model, batch, g) * hand.share for batch in hand.batches]).sum()


@final
@dataclass
class _Untaught:
    """What a loss reads and writes of a pass."""

    teacher: None = None
    outputs: Any = None


def _following(hand: Callable[[int], Hand], count: int) -> Callable[[int], Sequence[Hand]]:
    """The batches of step t and of those after it: a function of t, so that a resumed run measures on the same."""
    return lambda t: [hand(t + k) for k in range(count)]


@contextmanager
def _said_of(name: str) -> Iterator[None]:
    """What is wrong with a setting names it."""
    try:
        yield
    except (ValueError, KeyError) as error:
        raise ValueError(f"{name}: {error.args[0]}") from error
