"""What each process does in the tests of sharded models: real gloo, `fully_shard`, different data on each rank."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from partialsgd import CriteriaMeter, Depth, LowRank, Mask, Method, Nested, PartialSGD, Width, export, nest
from partialsgd import methods as registry
from partialsgd._util import shards
from partialsgd.distributed import load, save, shard
from partialsgd.parameters import Parameters
from tests.contracts import METHODS
from tests.functions import backward
from tests.methods.laws import OF_LEVELS
from tests.processes import on_ranks
from tests.training import by_gradients
from tests.two_processes import FAMILIES, family, method

STEPS = 4
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}


def network() -> nn.Module:
    """A small network whose layers cannot be split evenly between two ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3))


def batch(t: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2 * t + rank)
    return torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator)


def loss(model: nn.Module, t: int, ranks: Sequence[int]) -> Tensor:
    """The mean loss over the batches of these ranks."""
    batches = [batch(t, rank) for rank in ranks]
    return torch.stack([(model(x) - y).square().mean() for x, y in batches]).mean()


def shard_layers(model: nn.Module) -> nn.Module:
    """Each linear layer is a unit, as users of `fully_shard` do it."""
    layers = model.model if isinstance(model, Nested) else model
    assert isinstance(layers, nn.Sequential)
    for layer in layers:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer)
    return fully_shard(model)


def train(
    model: nn.Module, optimizer: str, method: Method, ranks: Sequence[int], steps: int = STEPS, **options: Any
) -> tuple[PartialSGD, list[Any]]:
    sgd = PartialSGD(model, OPTIMIZERS[optimizer](model.parameters()), method, **options)
    done = []
    for t in range(steps):
        done.append(sgd.step(lambda t=t: backward(loss(model, t, ranks))))
    return sgd, done


def whole(model: nn.Module) -> list[Tensor]:
    return [shards.gathered(p).detach().clone() for p in model.parameters()]


def whole_mask(mask: Mask) -> list[Tensor]:
    return [shards.gathered(entry) if isinstance(entry, Tensor) else torch.tensor(entry) for entry in mask.values()]


MAIN = [name for name in METHODS if name in registry.NAMES]
"""Each method in one setting."""
OTHERS = [name for name in METHODS if name not in registry.NAMES]


@on_ranks
def methods(rank: int) -> dict[str, Any]:
    return trained_by(MAIN, rank)


@on_ranks
def other_settings(rank: int) -> dict[str, Any]:
    return trained_by(OTHERS, rank)


def trained_by(names: Sequence[str], rank: int) -> dict[str, Any]:
    """Train by methods that need no levels, under both optimizers: the parameters, and the masks of all steps."""
    found: dict[str, Any] = {}
    for name in names:
        for optimizer in OPTIMIZERS:
            model = shard_layers(network())
            _, steps = train(model, optimizer, METHODS[name], [rank])
            found[f"{name} {optimizer}"] = whole(model)
            found[f"{name} {optimizer} masks"] = [entry for step in steps for entry in whole_mask(step.mask)]
    return found


@on_ranks
def families(rank: int) -> dict[str, Any]:
    """Every method for levels, on nested networks of two kinds, under both optimizers."""
    found: dict[str, Any] = {}
    for kind in FAMILIES:
        for name in OF_LEVELS:
            for optimizer in OPTIMIZERS:
                nested = shard_layers(family(kind))
                train(nested, optimizer, method(name, nested), [rank])
                found[f"{kind} {name} {optimizer}"] = whole(nested)
    return found


MEASURED: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Method]]] = {
    "dropout": (network, lambda model: registry.dropout(0.6)),
    "sam": (network, lambda model: registry.sam(0.3)),
    "core": (lambda: family("width"), lambda nested: registry.only("1/4")),
    "slimmable": (lambda: family("low rank"), lambda nested: registry.slimmable()),
    "guarded": (network, lambda model: registry.guarded(registry.dropout(0.5), by="c_align", bound=1.1, every=1)),
}
NUMBERS = ("whole", "masked", "shared", "perturbed", "inner", "moved", "difference", "left_out", "consecutive_cosine")


def measured(name: str, ranks: Sequence[int], shard: Callable[[nn.Module], nn.Module]) -> list[list[float]]:
    """The criteria of each step and group, without those that a first step does not have."""
    build, method_of = MEASURED[name]
    model = shard(build())
    _, steps = train(model, "SGD", method_of(model), ranks, meter=CriteriaMeter(1, consecutive=True))
    criteria = [c for step in steps for m in step.measurements for c in (m, *m.groups.values())]
    return [[value for n in NUMBERS if (value := getattr(c, n)) is not None] for c in criteria]


@on_ranks
def meters(rank: int) -> dict[str, Any]:
    return {name: measured(name, [rank], shard_layers) for name in MEASURED}


OPTIONS: dict[str, tuple[Method, dict[str, Any]]] = {
    "clipped": (registry.random_mask(0.5), {"clip_norm": 0.2}),
    "clipped rarely": (registry.plain(), {"clip_norm": 2.0}),
    "decay": (registry.random_mask(0.5), {"outside": "decay"}),
    "reset": (registry.block_coordinate(every=2), {"outside": "reset"}),
}


@on_ranks
def options(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (chosen, arguments) in OPTIONS.items():
        model = shard_layers(network())
        train(model, "AdamW", chosen, [rank], **arguments)
        found[name] = whole(model)
    return found


@on_ranks
def stale(rank: int) -> dict[str, Any]:
    """Whole parameters that `fully_shard` still holds, from before x has changed, must not be used."""
    model = shard_layers(network())
    sgd = PartialSGD(model, OPTIMIZERS["SGD"](model.parameters()), registry.dynamic_pruning(0.5, every=1))
    x, outputs = batch(0, 0)[0], {}

    @torch.no_grad()
    def run() -> Tensor:
        return model(x).clone()

    outputs["before"] = run()
    with sgd.perturbed():
        outputs["perturbed"] = run()
    outputs["after"] = run()
    pruned = sgd.extract()
    outputs["extracted"] = pruned(x).detach()
    for g in sgd.gradients():
        with g:
            backward(loss(model, 0, [rank]))
    run()  # between the gradient and the update
    sgd.update()
    outputs["updated"] = run()
    return {
        **outputs,
        "parameters": whole(model),
        "kind": type(pruned[0]).__name__,
        "weight": pruned[0].weight.detach(),
    }


@on_ranks
def failing(rank: int) -> dict[str, Any]:
    """Passes that raise in forward, after it, and in backward of a SAM step; then training goes on."""
    model = shard_layers(network())
    sgd = PartialSGD(model, OPTIMIZERS["AdamW"](model.parameters()), registry.sam(0.3))
    found: dict[str, Any] = {"start": whole(model)}

    def fail(gradient: Tensor) -> None:
        raise ZeroDivisionError

    for number, place in enumerate(("forward", "loss", "backward", "second pass")):
        calls: list[int] = []

        def closure(place: str = place, calls: list[int] = calls) -> Tensor:
            calls.append(1)
            x, _ = batch(0, rank)
            if place == "forward":
                hook = model[2].register_forward_pre_hook(lambda *inputs: fail(x))
                try:
                    model(x)
                finally:
                    hook.remove()
            y = model(x)
            if place == "loss" or (place == "second pass" and len(calls) == 2):
                fail(y)
            if place == "backward":
                y.register_hook(fail)
            return backward(y.square().mean())

        try:
            sgd.step(closure)
        except ZeroDivisionError:
            found[f"raised {number}"] = True
        found[f"after {number}"] = whole(model)
    for t in range(2):
        sgd.step(lambda t=t: backward(loss(model, t, [rank])))
    found["t"] = sgd.t
    found["end"] = whole(model)
    return found


@on_ranks
def skipping(rank: int) -> dict[str, Any]:
    """A NaN that reaches the part of one rank only: all must skip the step, or they part ways."""
    model = shard_layers(network())
    sgd = PartialSGD(model, OPTIMIZERS["SGD"](model.parameters()), registry.random_mask(0.5), nonfinite="skip")
    skipped = []
    for t in range(3):

        def closure(t: int = t) -> Tensor:
            value = backward(loss(model, t, [rank]))
            gradient = model[4].weight.grad
            if t == 1 and gradient is not None and rank == 1:
                shards.local(gradient).fill_(torch.nan)
            return value

        skipped.append(sgd.step(closure).skipped)
    return {"skipped": skipped, "parameters": whole(model)}


@on_ranks
def extracted(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in FAMILIES:
        nested = shard_layers(family(kind))
        train(nested, "SGD", method("alternating", nested), [rank], steps=2)
        for level in nested.levels:
            plain = nested.extract(level, example=batch(0, 0)[0])
            found[f"{kind} {level}"] = [p.detach() for p in plain.parameters()]
            found[f"{kind} {level} output"] = plain(batch(0, 0)[0]).detach()
    return found


@on_ranks
def micro_batches(rank: int) -> dict[str, Any]:
    """`with g:` entered twice, in steps of two passes."""
    model = shard_layers(network())
    sgd = PartialSGD(model, OPTIMIZERS["AdamW"](model.parameters()), registry.sam(0.3))
    for t in range(2):
        by_gradients(sgd, *(lambda t=t, part=part: backward(loss(model, 10 * t + part, [rank])) for part in (0, 1)))
    return {"parameters": whole(model)}


class Gathered(TorchDispatchMode):
    """Counts the numbers that all-gathers inside bring together."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith("c10d") and "allgather" in str(func):
            outputs = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            self.numbers += sum(leaf.numel() for leaf in tree_leaves(outputs))
        return func(*args, **(kwargs or {}))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.up(self.norm(x)).tanh_())
        y += x  # in place, which must not lose what `fully_shard` hangs on the outputs of a unit
        return y


class Stacked(nn.Module):
    """Residual blocks in a list, and layers around it; all rows can be split evenly between two ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(Residual() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)[:, None]
        for block in self.blocks:
            x = block(x)
        return self.last(x)[:, 0, :3]


NESTED: dict[str, Any] = {
    "low rank": LowRank((1 / 4, 1 / 2), where=("up", "down")),
    "width": Width((1 / 4, 1 / 2), hidden=("up", "down")),
    "depth": Depth("blocks", keep=(1, 2)),
    "low rank and depth": [LowRank(1 / 4, where=("up", "down")), Depth("blocks", keep=2)],
}


def stacked(kind: str) -> Nested:
    torch.manual_seed(0)
    return nest(Stacked(), NESTED[kind], seed=1)


@on_ranks
def units(rank: int) -> dict[str, Any]:
    """What passes of each level gather, and training by `shard`."""
    found: dict[str, Any] = {}
    for kind in NESTED:
        nested = shard(stacked(kind), reshard_after_forward=False)
        for level in nested.levels:
            for part in ("forward", "step"):
                nested.zero_grad()
                with nested.at(level), Gathered() as gathered:
                    outputs = nested(batch(0, rank)[0])
                    if part == "step":
                        backward(outputs.square().mean())
                shards.reset(nested)
                found[f"{kind} {level} {part}"] = gathered.numbers
        found[f"{kind} keys"] = list(nested.state_dict())
        found[f"{kind} names"] = list(Parameters(nested))
        for name in ("alternating", "sandwich"):
            nested = shard(stacked(kind))
            sgd, _ = train(nested, "AdamW", method(name, nested), [rank])
            found[f"{kind} {name}"] = {n: shards.gathered(p).detach() for n, p in sgd.parameters.items()}
        core = nested.extract(nested.levels[0], example=batch(0, 0)[0])
        found[f"{kind} extracted"] = list(core.state_dict().values())
    return found


def refusals(rank: int) -> list[str]:
    """What `shard` refuses, each with the model as it was."""
    messages = []
    for build in (lambda: fully_shard(network()), lambda: nn.Sequential(Scalar(), nn.Linear(2, 2)), lambda: None):
        model = build()
        before = None if model is None else [type(m) for m in model.modules()]
        try:
            shard(model)
        except (TypeError, ValueError) as error:
            messages.append(str(error))
        assert model is None or before == [type(m) for m in model.modules()]
    try:
        shard(stacked("depth"), blocks=["nothing"])
    except ValueError as error:
        messages.append(str(error))
    return messages


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


@on_ranks
def refused(rank: int) -> dict[str, Any]:
    return {"messages": refusals(rank)}


@on_ranks
def not_exact(rank: int) -> dict[str, Any]:
    """What is refused on sharded models: the messages, and the parameters before and after."""
    model = fully_shard(
        network(), shard_placement_fn=lambda p: Shard(1) if p.ndim > 1 and p.shape[1] % 2 == 0 else None
    )
    before, messages = whole(model), []
    for chosen in (registry.random_mask(0.5), registry.top_k(0.1)):
        sgd = PartialSGD(model, OPTIMIZERS["SGD"](model.parameters()), chosen)
        try:
            sgd.step(lambda: backward(loss(model, 0, [rank])))
        except NotImplementedError as error:
            messages.append(str(error))
    try:
        PartialSGD(model, OPTIMIZERS["SGD"](model.parameters()), scaler=torch.amp.GradScaler("cpu"))
    except NotImplementedError as error:
        messages.append(str(error))
    untouched = all(torch.equal(a, b) for a, b in zip(before, whole(model), strict=True))
    train(model, "SGD", registry.sam(0.3), [rank])
    return {"messages": messages, "untouched": untouched, "sam": whole(model)}


SAVED: dict[str, tuple[str, Callable[[], nn.Module], Callable[[nn.Module], Method]]] = {
    "compressed": ("SGD", network, lambda model: registry.compressed_gradient(0.3)),
    "core only": ("AdamW", lambda: stacked("low rank"), lambda nested: registry.only("1/4")),
    "alternating": ("AdamW", lambda: stacked("width"), lambda nested: registry.alternating()),
}
"""Runs with a memory, with optimizer state of some parameters only, and with levels."""


def continued(case: str, folder: str, rank: int, ranks: int, steps: range, saved: str | None, to: str | None) -> Any:
    """Some steps after the checkpoint `saved`, and then another checkpoint."""
    optimizer, build, method_of = SAVED[case]
    model = build()
    if ranks > 1:
        model = shard(model)
    meter = CriteriaMeter(2, consecutive=True)
    sgd = PartialSGD(model, OPTIMIZERS[optimizer](model.parameters()), method_of(model), meter=meter)
    if saved is not None:
        extra = load(f"{folder}/{case} {saved}", sgd)
        assert extra["epoch"] == steps.start and torch.equal(extra["note"], torch.arange(3))
    assert sgd.t == steps.start
    own = [0, 1] if ranks == 1 else [rank * 2 // ranks]
    for t in steps:
        sgd.step(lambda t=t: backward(loss(model, t, own)))
    if to is not None:
        save(f"{folder}/{case} {to}", sgd, extra={"epoch": steps.stop, "note": torch.arange(3)})
    states = {n for n, p in sgd.parameters.items() if sgd.optimizers[0].state.get(p)}
    return {"parameters": {n: shards.gathered(p).detach() for n, p in sgd.parameters.items()}, "states": sorted(states)}


def continue_all(folder: str, ranks: int, steps: range, saved: str | None, to: str | None) -> Callable[..., None]:
    return partial(_continue, common=folder, steps=steps, saved=saved, to=to)


def _continue(rank: int, folder: str, ranks: int, *, common: str, steps: range, saved: Any, to: Any) -> None:
    def work(rank: int) -> dict[str, Any]:
        return {case: continued(case, common, rank, ranks, steps, saved, to) for case in SAVED}

    on_ranks(work)(rank, folder, ranks)


@on_ranks
def stateful(rank: int) -> dict[str, Any]:
    """`PartialSGD` in `torch.distributed.checkpoint` itself, and checkpoints that are refused."""
    with shared_folder() as path:
        model = shard_layers(network())
        sgd, _ = train(model, "SGD", registry.compressed_gradient(0.3), [rank], steps=2)
        dcp.save({"sgd": sgd}, checkpoint_id=f"{path}/own")
        save(f"{path}/ours", sgd)
        remembered = {name: shards.gathered(m) for name, m in sgd.memory.items() if isinstance(m, Tensor)}
        sgd.step(lambda: backward(loss(model, 2, [rank])))
        dcp.load({"sgd": sgd}, checkpoint_id=f"{path}/own")  # it remembers under the same names
        again = {name: shards.gathered(m) for name, m in sgd.memory.items() if isinstance(m, Tensor)}
        found: dict[str, Any] = {"t": sgd.t, "before": remembered, "after": again, "messages": []}
        others = {
            "fresh": (network, registry.compressed_gradient(0.3), "own"),
            "other method": (network, registry.compressed_gradient(0.2), "ours"),
            "other model": (lambda: family("width").model, registry.compressed_gradient(0.3), "ours"),
        }
        for build, chosen, name in others.values():
            model = shard_layers(build())
            other = PartialSGD(model, OPTIMIZERS["SGD"](model.parameters()), chosen)
            before = whole(model)
            try:
                if name == "own":
                    dcp.load({"sgd": other}, checkpoint_id=f"{path}/{name}")
                else:
                    load(f"{path}/{name}", other)
            except Exception as error:
                found["messages"].append(str(error))
            is_same = all(torch.equal(a, b) for a, b in zip(before, whole(model), strict=True))
            assert is_same and other.t == 0 and not other.memory, "a refused checkpoint has changed something"
    return found


@contextmanager
def shared_folder() -> Iterator[str]:
    """A folder that all ranks see, deleted at the end."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(names)
    try:
        yield names[0]
        dist.barrier()
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(names[0])


@on_ranks
def masks_and_files(rank: int) -> dict[str, Any]:
    """A mask given as ordinary tensors by a rule of one's own, and an export that only sees parts."""
    model = shard_layers(network())
    chosen = Method(mask=lambda c: Mask(c.parameters, {n: every_second(p) for n, p in c.parameters.items()}))
    _, steps = train(model, "AdamW", chosen, [rank])
    nested = shard(stacked("width"))
    with shared_folder() as path:
        try:
            export.save(nested, f"{path}/saved")
        except ValueError as error:
            message = str(error)
        is_there = Path(f"{path}/saved").exists()
    count = steps[0].mask.count()
    return {"parameters": whole(model), "count": count, "message": message, "is_there": is_there}


def every_second(p: Tensor) -> Tensor:
    return (torch.arange(p.numel()) % 2 == 0).view(p.shape)
