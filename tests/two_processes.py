"""What each of two processes does in the tests of `wrappers`: real gloo, different data on each rank."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from partialsgd import CriteriaMeter, LowRank, Method, Nested, PartialSGD, Vector, Width, masks, nest
from partialsgd import methods as registry
from partialsgd.meters.criteria import _read_norms
from partialsgd.testing.problems import PROBLEMS
from tests.contracts import METHODS
from tests.functions import backward
from tests.methods.laws import OF_LEVELS
from tests.processes import on_ranks
from tests.switchable import alternating, build

MLP = next(p for p in PROBLEMS if p.name == "mlp")
STEPS = 4


@on_ranks
def methods(rank: int) -> dict[str, Any]:
    """Every method, with and without bucket views; the parameters and masks go into a file."""
    found = {}
    for name in METHODS:
        for views in (False, True):
            model = MLP.model()
            is_structural = METHODS[name].bind(MLP.model()).structural
            ddp = DistributedDataParallel(model, gradient_as_bucket_view=views, find_unused_parameters=is_structural)
            sgd = PartialSGD(ddp, torch.optim.AdamW(model.parameters(), 0.01), METHODS[name])
            masks = [sgd.step(MLP.closure(ddp, 2 * t + rank)).mask for t in range(STEPS)]
            found[f"{name} {views}"] = [p.detach() for p in model.parameters()]
            found[f"{name} {views} mask"] = [torch.as_tensor(m[n]) for m in masks for n in m]
    return found


MEASURED = {
    "dropout": (lambda: MLP.model(), lambda model: registry.dropout(0.6)),
    "sam": (lambda: MLP.model(), lambda model: registry.sam(0.3)),
    "core": (lambda: nest(MLP.model(), Width(0.5)), lambda nested: registry.only("core")),
    "slimmable": (lambda: nest(MLP.model(), LowRank(0.5)), lambda nested: registry.slimmable()),
}
NUMBERS = ("whole", "masked", "shared", "perturbed", "inner", "moved")


@on_ranks
def criteria(rank: int) -> dict[str, Any]:
    """Every criterion on both ranks, with and without bucket views; also over batches of one's own."""
    found = {}
    for name, (build_one, method_of) in MEASURED.items():
        for views in (False, True):
            model = build_one()
            ddp = DistributedDataParallel(model, gradient_as_bucket_view=views, find_unused_parameters=True)
            for own in (False, True):
                meter = CriteriaMeter(1, batches=[rank], loss=lambda t, ddp=ddp: MLP.evaluate(ddp, t)) if own else None
                optimizer = torch.optim.SGD(model.parameters(), 0.0)
                sgd = PartialSGD(ddp, optimizer, method_of(model), meter=meter or CriteriaMeter(1))
                seen = sgd.step(MLP.closure(ddp, rank)).criteria
                found[f"{name} {views} {own}"] = [getattr(seen, number) for number in NUMBERS]
    layer = nn.Linear(2, 1, bias=False)
    own = Vector({"weight": torch.full((1, 2), 1.0 + rank)})  # as if the ranks had not the same gradient
    found["unlike"] = list(_read_norms(masks.everything(layer), own, own, [], dist.group.WORLD)[0]["weight"])
    return found


@on_ranks
def structural(rank: int) -> dict[str, Any]:
    """A method that leaves parameters out: refused without the search for unused ones, exact with it."""
    model = build()
    message = ""
    for structural in (True, False):  # declared by the method, or found out when it happens
        method = alternating(model)
        method = method if structural else Method(branches=method.branches, name="undeclared")
        try:
            sgd = PartialSGD(DistributedDataParallel(model), torch.optim.SGD(model.parameters(), 0.1), method)
            for t in range(2):
                sgd.step(closure(sgd, model, t, rank))
        except ValueError as error:
            message += str(error)
    model = build()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    sgd = PartialSGD(ddp, torch.optim.AdamW(model.parameters(), 0.1), alternating(model))
    untouched = []
    for t in range(STEPS):
        before = model.extension.weight.detach().clone()
        sgd.step(closure(ddp, model, t, rank))
        untouched.append(torch.equal(before, model.extension.weight))
    return {"parameters": [p.detach() for p in model.parameters()], "untouched": untouched, "message": message}


def closure(ddp: nn.Module | PartialSGD, model: nn.Module, t: int, rank: int):
    run = ddp if isinstance(ddp, nn.Module) else model

    def evaluate():
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(2 * t + rank))
        return backward(run(x).square().mean())

    return evaluate


@on_ranks
def skipping(rank: int) -> dict[str, Any]:
    """A NaN on one rank only: both must skip, or they part ways."""
    model = MLP.model()
    ddp = DistributedDataParallel(model)
    sgd = PartialSGD(ddp, torch.optim.SGD(model.parameters(), 0.1), nonfinite="skip")
    skipped = []
    for t in range(STEPS):
        poison = math.nan if rank == 0 and t == 1 else 1.0
        infinite = math.inf if rank == 1 and t == 2 else 1.0

        def evaluate(t=t, poison=poison, infinite=infinite):
            loss = MLP.evaluate(ddp, 2 * t + rank) * poison
            loss.backward()
            return loss.detach() * infinite  # a loss that only one rank sees as infinite; its gradient is fine

        skipped.append(sgd.step(evaluate).skipped)
    return {"skipped": skipped, "parameters": [p.detach() for p in model.parameters()]}


@on_ranks
def families(rank: int) -> dict[str, Any]:
    """Every method for nested networks, on families of two kinds."""
    found = {}
    for kind in FAMILIES:
        for name in OF_LEVELS:
            nested = family(kind)
            ddp = DistributedDataParallel(nested, find_unused_parameters=True)
            sgd = PartialSGD(ddp, torch.optim.AdamW(nested.parameters(), 0.01), method(name, nested))
            for t in range(STEPS):
                sgd.step(closure(ddp, nested, t, rank))
            found[f"{kind} {name}"] = [p.detach() for p in nested.parameters()]
    return found


@on_ranks
def control(rank: int) -> dict[str, Any]:
    """Methods that decide by what they measure, each rank on data of its own: what they decided at each step."""
    found = {}
    for name in CONTROLLED:
        nested = family("width")
        ddp = DistributedDataParallel(nested, find_unused_parameters=True)
        sgd = PartialSGD(ddp, torch.optim.SGD(nested.parameters(), 0.05), CONTROLLED[name](nested))
        steps = [sgd.step(closure(ddp, nested, t, rank)) for t in range(24)]
        found[f"{name} parameters"] = [p.detach() for p in nested.parameters()]
        found[f"{name} decisions"] = [(step.level, step.lr) for step in steps]
        found[f"{name} measured"] = [(m.q, m.cosine) for step in steps for m in step.measurements]
    model = MLP.model()
    subnets = registry.independent_subnets(2, 6, repartition="criterion", bound=1.05, measure_every=2)
    ddp = DistributedDataParallel(model)
    sgd = PartialSGD(ddp, torch.optim.SGD(model.parameters(), 0.1), subnets)
    masks = [sgd.step(MLP.closure(ddp, 2 * t + rank)).mask for t in range(24)]
    found["subnets parameters"] = [p.detach() for p in model.parameters()]
    found["subnets decisions"] = [torch.as_tensor(m[n]) for m in masks for n in m]
    found["subnets round"] = sgd.memory["round"]
    return found


CONTROLLED = {
    "criterion": lambda nested: registry.alternating(order="criterion", every=2),
    "scaled": lambda nested: registry.scaled_by_alpha(registry.alternating(), every=2),
    "guarded": lambda nested: registry.guarded(
        registry.scaled_by_alpha(registry.alternating(), every=3), by="c_align", bound=3.0, every=2
    ),
}
FAMILIES = ("low rank", "width")


def family(kind: str) -> Nested:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    return nest(model, LowRank((0.1, 0.3)) if kind == "low rank" else Width((0.25, 0.5)), seed=1)


def method(name: str, nested: Nested) -> Method:
    """One of the registry's methods for families."""
    made: Method = registry.only(nested.levels[0]) if name == "only" else getattr(registry, name)()
    return made
