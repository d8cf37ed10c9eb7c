"""What each process does in the tests of misuse: what users get wrong with `data_parallel`, on two processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import partialsgd as ps
from partialsgd import methods as registry
from partialsgd.distributed import compress, data_parallel
from tests.distributed.data_parallel_ranks import bits, closure, ddp, family, inputs, layers
from tests.functions import backward
from tests.processes import on_ranks

Scenario = Callable[[int], Any]


def train(wrapped: nn.Module, model: nn.Module, rank: int, steps: int, method: ps.Method | None = None) -> None:
    sgd = ps.PartialSGD(wrapped, torch.optim.AdamW(model.parameters(), 0.01), method or ps.Method())
    for t in range(steps):
        sgd.step(closure(wrapped, t, rank))


def wrapped_too_late(rank: int) -> None:
    nested = family("width")
    sgd = ps.PartialSGD(nested, torch.optim.SGD(nested.parameters(), 0.1), registry.alternating())
    sgd.step(closure(data_parallel(nested), 0, rank))


def added_after_wrapping(rank: int) -> None:
    model = layers()
    wrapped = data_parallel(model)
    model.add_module("5", nn.Linear(3, 3))
    train(wrapped, model, rank, 1)


def replaced_under_torchs_own(rank: int) -> None:
    model = layers()
    wrapped = DistributedDataParallel(model)
    model[4] = nn.Linear(8, 3)
    train(wrapped, model, rank, 1)


def a_part_is_wrapped(rank: int) -> None:
    model = nn.Sequential(data_parallel(nn.Linear(6, 4)), nn.Linear(4, 3))
    train(model, model, rank, 1)


def a_part_is_wrapped_by_torchs_own(rank: int) -> None:
    model = nn.Sequential(DistributedDataParallel(nn.Linear(6, 4)), nn.Linear(4, 3))
    train(model, model, rank, 1)


def a_parameter_takes_no_part_under_torchs_own(rank: int) -> None:
    """The full level of this model does not use U and V, though the method trains everything."""
    nested = ps.nest(layers(), ps.LowRank(0.5, full="own"))
    train(DistributedDataParallel(nested), nested, rank, 1)


def one_memory_for_two_models(rank: int) -> None:
    compression, models = compress(top_k=0.5), (layers(), layers())
    for model in models:
        data_parallel(model, compression=compression)


def backward_outside_of_a_step(rank: int) -> None:
    model = layers()
    wrapped = data_parallel(model)
    train(wrapped, model, rank, 1)
    closure(wrapped, 0, rank)()


REFUSED: dict[Scenario, str] = {
    wrapped_too_late: r"build PartialSGD(data_parallel(model), …)",
    added_after_wrapping: "'5.weight' was added or replaced after the model was wrapped",
    replaced_under_torchs_own: "'4.weight' was added or replaced after the model was wrapped",
    a_part_is_wrapped: "'1.weight' would not be averaged",
    a_part_is_wrapped_by_torchs_own: "'1.weight' would not be averaged",
    a_parameter_takes_no_part_under_torchs_own: "has not averaged the gradients of all others",
    one_memory_for_two_models: "make one for each by compress(…)",
    backward_outside_of_a_step: "run both inside the closure",
}
"""What raises, on all processes alike, and with which words."""


def another_level(rank: int, at: int) -> None:
    """One process runs another level than the others; with `at` after the first round, both were sent before."""
    nested = family("width")
    wrapped = data_parallel(nested)
    sgd = ps.PartialSGD(wrapped, torch.optim.AdamW(nested.parameters(), 0.01), registry.alternating())
    for t in range(at):
        sgd.step(closure(wrapped, t, rank))

    def other() -> Tensor:
        if rank == 0:
            return closure(wrapped, at, rank)()
        with nested.at("1/4"):
            return closure(wrapped, at, rank)()

    sgd.step(other)


def another_level_after_no_sync(rank: int) -> None:
    """The micro-batch that is not sent runs the same level everywhere, and the one that is does not."""
    nested = family("width")
    wrapped = data_parallel(nested)
    sgd = ps.PartialSGD(wrapped, torch.optim.SGD(nested.parameters(), 0.1))

    def both() -> Tensor:
        with nested.at("1/4"):
            with wrapped.no_sync():
                closure(wrapped, 0, rank)()
            if rank == 0:
                return closure(wrapped, 1, rank)()
        return closure(wrapped, 1, rank)()

    sgd.step(both)


def frozen_on_one(rank: int) -> None:
    model = layers()
    wrapped = data_parallel(model)
    sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 0.1))
    for t in range(3):
        model[0].requires_grad_(rank == 0 or t < 2)
        sgd.step(closure(wrapped, t, rank))


def _masked(rank: int, entries: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    method = ps.Method(mask=lambda context: ps.masks.from_tensors(context.parameters, entries, rest=True))
    train(data_parallel(model), model, rank, 1, method)


def _row(number: int) -> Tensor:
    return (torch.arange(6) == number)[:, None].repeat(1, 6)


UNLIKE: dict[str, Scenario] = {
    "a level that nobody has sent yet": lambda rank: another_level(rank, 0),
    "levels that were sent before": lambda rank: another_level(rank, 6),
    "after a micro-batch that is not sent": another_level_after_no_sync,
    "frozen on one": frozen_on_one,
    "other tensors of the same size": lambda rank: _masked(rank, {"0.weight": rank == 0, "2.weight": rank == 1}),
    "as many other elements": lambda rank: _masked(rank, {"0.weight": _row(rank)}),
    "rows in place of elements": lambda rank: _masked(rank, {"0.weight": _row(0) if rank else True}),
    "another compression": lambda rank: train(
        data_parallel(model := layers(), compression=compress(top_k=(0.25, 0.5)[rank])), model, rank, 1
    ),
}
"""Processes that would send different things."""


def _message(scenario: Scenario, rank: int) -> str:
    torch.manual_seed(0)
    try:
        scenario(rank)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "nothing was raised"


@on_ranks
def refused(rank: int) -> dict[str, Any]:
    return {scenario.__name__: _message(scenario, rank) for scenario in REFUSED}


@on_ranks
def unlike(rank: int) -> dict[str, Any]:
    return {name: _message(scenario, rank) for name, scenario in UNLIKE.items()}


def with_norms() -> ps.Nested:
    torch.manual_seed(0)
    layer = [nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Tanh()]
    return ps.nest(nn.Sequential(*layer, nn.Linear(8, 3)), ps.Width(0.5), seed=1)


@on_ranks
def right(rank: int) -> dict[str, Any]:
    """What is unusual, and right: beside plain DDP, or beside the same training without it."""
    results: dict[str, Any] = {}
    for how in ("ddp", "ours", "evaluated"):
        nested = with_norms()
        wrapped = ddp(nested) if how == "ddp" else data_parallel(nested)
        sgd = ps.PartialSGD(wrapped, torch.optim.AdamW(nested.parameters(), 0.01), registry.alternating())
        for t in range(4):
            sgd.step(closure(wrapped, t, rank))
            if how == "evaluated":
                _evaluate(wrapped, rank)
        results[f"norms {how}"] = [value.clone() for value in nested.state_dict().values()]

    torch.manual_seed(rank)  # the first process's values count, those of frozen layers too
    model = layers()
    model[0].requires_grad_(False)
    wrapped = data_parallel(model)
    train(wrapped, model, rank, 2)
    results["frozen"] = bits(model)

    nested = family("width")
    wrapped = data_parallel(nested)
    wrapped.double()
    sgd = ps.PartialSGD(wrapped, torch.optim.AdamW(nested.parameters(), 0.01), registry.alternating())
    for t in range(4):
        sgd.step(lambda t=t, w=wrapped: backward(w(inputs(t, rank).double()).square().mean()))
    results["double"] = bits(nested)
    return results


def _evaluate(wrapped: nn.Module, rank: int) -> None:
    """On all processes, and on the first one alone, where nobody answers; also with a graph, as users forget."""
    wrapped.eval()
    with torch.no_grad():
        wrapped(inputs(50, 0))
    if rank == 0:
        with torch.no_grad():
            wrapped(inputs(51, 0))
        wrapped(inputs(52, 0))
        with wrapped.module.at("core"):
            wrapped(inputs(52, 0))
    wrapped.train()
