"""What each process does in the tests of `data_parallel`: real gloo, different data on each rank."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import partialsgd as ps
from partialsgd import methods as registry
from partialsgd.distributed import data_parallel
from partialsgd.testing.problems import PROBLEMS
from tests.functions import backward
from tests.methods.laws import METHODS, OF_LEVELS
from tests.processes import on_ranks
from tests.two_processes import CONTROLLED, MEASURED, NUMBERS, method

MLP = next(p for p in PROBLEMS if p.name == "mlp")
STEPS = 3


def ddp(model: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(model, find_unused_parameters=True)


def bits(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def elements_reduced(run: Callable[[], object]) -> int:
    """The numbers that were really all-reduced meanwhile, as torch's profiler saw them."""
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        run()
    calls = [event.shapes() for event in profile.kineto_results.events() if event.name() == "gloo:all_reduce"]
    return sum(math.prod(shape) for shapes in calls for shape in shapes)


COPIED = ("plain", "sam", "dropout", "block_coordinate")
"""The methods that are also tried without bucket views."""


@on_ranks
def methods(rank: int) -> dict[str, Any]:
    """Every method on ours and on plain DDP, and how many numbers each of ours has sent beside its masks."""
    results: dict[str, Any] = {}
    for name in METHODS:
        is_structural = METHODS[name].bind(MLP.model()).structural
        for how in ("ddp", "views", "copies") if name in COPIED else ("ddp", "views"):
            model = MLP.model()
            wrapped: nn.Module = (
                DistributedDataParallel(model, find_unused_parameters=is_structural)
                if how == "ddp"
                else data_parallel(model, gradient_as_bucket_view=how == "views")
            )
            sgd = ps.PartialSGD(wrapped, torch.optim.AdamW(model.parameters(), 0.01), METHODS[name])
            steps: list[ps.Step] = []

            def train(sgd=sgd, wrapped=wrapped, steps=steps) -> None:
                steps += [sgd.step(MLP.closure(wrapped, 2 * t + rank)) for t in range(STEPS)]

            if how == "views":
                results[f"{name} sent"] = elements_reduced(train)
                results[f"{name} inside"] = [step.mask.count() for step in steps]
                results[f"{name} passes"] = [len(step.passes) for step in steps]
            else:
                train()
            results[f"{name} {how}"] = bits(model)
    return results


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        y: Tensor = self.head(x)
        return y


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))


def another(old: nn.Module) -> nn.Module:
    return nn.Linear(old.in_features, old.out_features)


FAMILIES: dict[str, Callable[[], ps.Nested]] = {
    "low rank beside": lambda: ps.nest(layers(), ps.LowRank(0.5, full="own")),
    "low rank": lambda: ps.nest(layers(), ps.LowRank((0.1, 0.3)), seed=1),
    "width": lambda: ps.nest(layers(), ps.Width((0.25, 0.5)), seed=1),
    "depth": lambda: ps.nest(Residual(), ps.Depth("blocks", keep=1)),
    "layer sum": lambda: ps.nest(layers(), ps.LayerSum(("0", "2"), another)),
    "output sum": lambda: ps.nest(ps.OutputSum(core=layers(), extension=nn.Linear(6, 3))),
}


def family(kind: str) -> ps.Nested:
    torch.manual_seed(0)
    return FAMILIES[kind]()


def inputs(t: int, rank: int) -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(4 * t + rank))


def closure(model: nn.Module, t: int, rank: int) -> Callable[[], Tensor]:
    return lambda: backward(model(inputs(t, rank)).square().mean())


@on_ranks
def families(rank: int) -> dict[str, Any]:
    """Every method for levels, on nested models of every kind."""
    results: dict[str, Any] = {}
    for kind in FAMILIES:
        for name in OF_LEVELS:
            for how in ("ddp", "ours"):
                nested = family(kind)
                is_ours = how == "ours"
                wrapped = data_parallel(nested) if is_ours else ddp(nested)
                sgd = ps.PartialSGD(wrapped, torch.optim.AdamW(nested.parameters(), 0.01), method(name, nested))
                steps: list[ps.Step] = []

                def train(sgd=sgd, wrapped=wrapped, steps=steps) -> None:
                    steps += [sgd.step(closure(wrapped, t, rank)) for t in range(STEPS)]

                if is_ours:
                    results[f"{kind} {name} sent"] = elements_reduced(train)
                    results[f"{kind} {name} levels"] = [level for step in steps for level in step.passes]
                else:
                    train()
                results[f"{kind} {name} {how}"] = bits(nested)
    return results


LEVELS: dict[str, Callable[[], ps.Method]] = {
    "several branches": lambda: registry.slimmable(),
    "one level a step": lambda: registry.alternating(),
}
MASKED: dict[str, Callable[[], ps.Method]] = {
    "freezing": lambda: METHODS["freezing"],
    "layerwise": lambda: METHODS["layerwise"],
    "block_coordinate": lambda: registry.block_coordinate(),
    "dropout": lambda: registry.dropout(0.6),
    "random_mask": lambda: registry.random_mask(0.5),
    "sam": lambda: registry.sam(0.1),
}


@on_ranks
def as_one_process(rank: int) -> dict[str, Any]:
    """Levels and masks, to be compared with one process."""
    results: dict[str, Any] = {}
    for kind in FAMILIES:
        for name, make in LEVELS.items():
            nested = family(kind)
            wrapped = data_parallel(nested)
            sgd = ps.PartialSGD(wrapped, torch.optim.AdamW(nested.parameters(), 0.01), make())
            for t in range(STEPS):
                sgd.step(closure(wrapped, t, rank))
            results[f"{kind}, {name}"] = bits(nested)
    for name, make in MASKED.items():
        model = MLP.model()
        wrapped = data_parallel(model)
        sgd = ps.PartialSGD(wrapped, torch.optim.AdamW(model.parameters(), 0.01), make())
        for t in range(STEPS):
            sgd.step(MLP.closure(wrapped, dist.get_world_size() * t + rank))
        results[name] = bits(model)
    return results


@on_ranks
def accumulation(rank: int) -> dict[str, Any]:
    """Two micro-batches a step, the first without communication: in one closure, and by `with g:` twice."""
    results: dict[str, Any] = {}
    for how in ("closure", "loop"):
        for kind in ("low rank", "width"):
            for views in (False, True):
                nested = family(kind)
                wrapped = data_parallel(nested, gradient_as_bucket_view=views)
                sgd = ps.PartialSGD(wrapped, torch.optim.AdamW(nested.parameters(), 0.01), registry.alternating())
                inside = []

                def train(how=how, wrapped=wrapped, sgd=sgd, inside=inside) -> None:
                    step = _closure_step if how == "closure" else _loop_step
                    inside += [step(sgd, wrapped, t, rank).mask.count() for t in range(STEPS)]

                results[f"{how} {kind} {views} sent"] = elements_reduced(train)
                results[f"{how} {kind} {views} inside"] = sum(inside)
                results[f"{how} {kind} {views}"] = bits(nested)
    return results


def _closure_step(sgd: ps.PartialSGD, wrapped: nn.Module, t: int, rank: int) -> ps.Step:
    def both() -> Tensor:
        with wrapped.no_sync():
            first = closure(wrapped, t, rank)()
        return first + closure(wrapped, t, rank + dist.get_world_size())()

    return sgd.step(both)


def _loop_step(sgd: ps.PartialSGD, wrapped: nn.Module, t: int, rank: int) -> ps.Step:
    for g in sgd.gradients():
        with wrapped.no_sync(), g:
            g.loss = closure(wrapped, t, rank)()
        with g:
            g.loss = closure(wrapped, t, rank + dist.get_world_size())()
    return sgd.update()


@on_ranks
def scaled(rank: int) -> dict[str, Any]:
    """A GradScaler, with an overflow on one rank at step 1, inside the mask or outside of it."""
    results: dict[str, Any] = {}
    for name in ("plain", "block_coordinate", "dropout"):
        model = MLP.model()
        wrapped = data_parallel(model)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
        sgd = ps.PartialSGD(wrapped, optimizer, getattr(registry, name)(), scaler=scaler)
        skipped = []
        for t in range(6):
            factor = math.inf if rank == 1 and t == 1 else 1.0

            def scaled_closure(t=t, factor=factor, wrapped=wrapped, scaler=scaler) -> Tensor:
                loss = MLP.evaluate(wrapped, dist.get_world_size() * t + rank)
                scaler.scale(loss * factor).backward()
                return loss.detach()

            skipped.append(sgd.step(scaled_closure).skipped)
        results[f"{name} skipped"], results[name] = skipped, bits(model)
        results[f"{name} scale"] = scaler.get_scale()
    return results


@on_ranks
def measured(rank: int) -> dict[str, Any]:
    """Meters and methods that decide by what they measure, each rank on data of its own."""
    results: dict[str, Any] = {}
    for name, (build_one, method_of) in MEASURED.items():
        for own in (False, True):
            model = build_one()
            wrapped = data_parallel(model)
            meter = ps.CriteriaMeter(1)
            if own:
                meter = ps.CriteriaMeter(1, batches=[rank], loss=lambda t, wrapped=wrapped: MLP.evaluate(wrapped, t))
            sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 0.0), method_of(model), meter=meter)
            criteria = sgd.step(MLP.closure(wrapped, rank)).criteria
            results[f"{name} {own}"] = [getattr(criteria, number) for number in NUMBERS]
    for name in CONTROLLED:
        runs = []
        for how in ("ddp", "ours"):
            nested = family("width")
            is_ours = how == "ours"
            wrapped = data_parallel(nested) if is_ours else ddp(nested)
            sgd = ps.PartialSGD(wrapped, torch.optim.SGD(nested.parameters(), 0.05), CONTROLLED[name](nested))
            steps = [sgd.step(closure(wrapped, t, rank)) for t in range(12)]
            runs.append((bits(nested), [(step.level, step.lr) for step in steps]))
        results[f"{name} decisions"] = [decisions for _, decisions in runs]
        results[f"{name} ddp"], results[f"{name} ours"] = (parameters for parameters, _ in runs)
    return results


class Two(nn.Module):
    """The second layer is used only if asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor, *, both: bool) -> Tensor:
        y: Tensor = self.first(x) + self.second(x) if both else self.first(x)
        return y


def _message(run: Callable[[], object]) -> str:
    try:
        run()
    except (RuntimeError, ValueError, NotImplementedError, ZeroDivisionError) as error:
        return str(error)
    return "nothing was raised"


@on_ranks
def errors(rank: int) -> dict[str, Any]:
    """What is refused, and that the steps after it are those of a run without it."""
    nested = family("low rank")
    wrapped = data_parallel(nested)
    sgd = ps.PartialSGD(wrapped, torch.optim.AdamW(nested.parameters(), 0.01), registry.alternating())

    def before_backward() -> Tensor:
        wrapped(inputs(0, rank))
        return torch.tensor(1 / 0)

    def within_backward() -> Tensor:
        outputs = nested.model[0](inputs(0, rank))
        outputs.register_hook(lambda gradient: 1 / 0)
        y = wrapped(inputs(0, rank))
        hidden = y.grad_fn
        hidden.register_prehook(lambda gradients: None)
        return backward((y.sum() + outputs.sum()).square())

    def past_the_wrapper() -> Tensor:
        return closure(nested, 0, rank)()

    def never_synced() -> Tensor:
        with wrapped.no_sync():
            return closure(wrapped, 0, rank)()

    messages = {}
    for t in range(STEPS):
        for name, wrong in (("before", before_backward), ("within", within_backward), ("past", past_the_wrapper),
                            ("unsynced", never_synced)):  # fmt: skip
            messages[name] = _message(lambda wrong=wrong: sgd.step(wrong))
            assert sgd.t == t and all(p.grad is None for p in nested.parameters())
        wrapped(inputs(0, rank))  # a forward pass with a graph, and no backward
        sgd.step(closure(wrapped, t, rank))
    twin = family("low rank")
    wrapped_twin = data_parallel(twin)
    other = ps.PartialSGD(wrapped_twin, torch.optim.AdamW(twin.parameters(), 0.01), registry.alternating())
    for t in range(STEPS):
        other.step(closure(wrapped_twin, t, rank))

    torch.manual_seed(0)
    two = data_parallel(model := Two())
    trainer = ps.PartialSGD(two, torch.optim.SGD(model.parameters(), 0.1))
    messages["unused"] = _message(lambda: trainer.step(lambda: backward(two(inputs(0, rank), both=False).sum())))
    trainer.step(lambda: backward(two(inputs(0, rank), both=True).sum()))
    messages["twice"] = _message(lambda: data_parallel(two))
    messages["static"] = _message(lambda: data_parallel(Two(), static_graph=True))

    levels = data_parallel(family("width"))
    with levels.no_sync():
        closure(levels, 0, rank)()

    def smaller_level_last() -> None:
        with levels.module.at("1/4"):
            closure(levels, 0, rank)()

    messages["smaller last"] = _message(smaller_level_last)
    return {"messages": messages, "parameters": bits(nested), "twin": bits(twin), "after": bits(model)}


@on_ranks
def accumulated_unused(rank: int) -> dict[str, Any]:
    """The second layer takes part in the first micro-batch only (pytorch#69031)."""
    torch.manual_seed(0)
    wrapped = data_parallel(model := Two(), find_unused_parameters=True)
    sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 0.1))

    def both() -> Tensor:
        with wrapped.no_sync():
            first = backward(wrapped(inputs(0, rank), both=True).square().sum())
        return first + backward(wrapped(inputs(1, rank), both=False).square().sum())

    sgd.step(both)
    return {"parameters": bits(model)}


def _all_but_first_weight_at_1(context: ps.Context) -> ps.Mask:
    return ps.masks.from_tensors(context.parameters, {"first.weight": context.t != 1}, rest=True)


@on_ranks
def changing_sets(rank: int) -> dict[str, Any]:
    """A layer that is unfrozen; one that a pass leaves out after a pass of another set; small tensors left out."""
    results: dict[str, Any] = {}
    for how in ("ours", "ddp"):
        torch.manual_seed(0)
        model = Two()
        wrapped = data_parallel(model, find_unused_parameters=True) if how == "ours" else ddp(model)
        rule = ps.Method(mask=_all_but_first_weight_at_1)
        sgd = ps.PartialSGD(wrapped, torch.optim.Adam(model.parameters(), 0.1), rule)
        for t, both in enumerate((True, True, False, True)):
            sgd.step(lambda t=t, both=both, w=wrapped: backward(w(inputs(t, rank), both=both).square().sum()))
        results[f"unused {how}"] = bits(model)

    torch.manual_seed(0)
    model = layers()
    model[0].requires_grad_(False)
    wrapped = data_parallel(model)
    sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 0.1))
    for t in range(STEPS):
        model[0].requires_grad_(t > 0)
        sgd.step(closure(wrapped, t, rank))
    results["unfrozen"] = bits(model)

    wrapped = data_parallel(model)
    sgd = ps.PartialSGD(wrapped, torch.optim.SGD(model.parameters(), 0.1), registry.random_mask(0.1))
    steps = [sgd.step(closure(wrapped, t, rank)) for t in range(8)]
    results["left out"] = [sum(entry is False for entry in step.mask.entries.values()) for step in steps]
    results["reducers"] = len(wrapped._reducers._made)
    return results


@on_ranks
def unlike(rank: int) -> dict[str, Any]:
    """Processes that begin with different seeds, or of which one has loaded a state."""
    messages = {}
    for how in ("ours", "ddp"):
        for name in ("seed", "state"):
            model = layers()
            wrapped = data_parallel(model) if how == "ours" else DistributedDataParallel(model)
            optimizer, seed = torch.optim.SGD(model.parameters(), 0.1), rank if name == "seed" else 0
            sgd = ps.PartialSGD(wrapped, optimizer, registry.random_mask(0.5), seed=seed)
            if name == "state":
                sgd.step(closure(wrapped, 0, rank))
                if rank == 1:
                    sgd.t = 7
                sgd.load_state_dict(sgd.state_dict())
            before = bits(model)
            messages[f"{how} {name}"] = _message(lambda sgd=sgd, w=wrapped: sgd.step(closure(w, 0, rank)))
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return messages


@on_ranks
def compiled_inside(rank: int) -> dict[str, Any]:
    return _compiled(rank, ("eager", "inside"))


@on_ranks
def compiled_anywhere(rank: int) -> dict[str, Any]:
    return _compiled(rank, ("eager", "outside", "levels"))


def _compiled(rank: int, ways: tuple[str, ...]) -> dict[str, Any]:
    """Compiled before or after wrapping; `aot_eager` traces and differentiates as inductor does."""
    results: dict[str, Any] = {}
    for how in ways:
        torch.compiler.reset()
        nested = family("depth")
        if how == "levels":
            nested.compile(backend="aot_eager")
        model: nn.Module = torch.compile(nested, backend="aot_eager") if how == "inside" else nested
        wrapped: nn.Module = data_parallel(model)
        called = torch.compile(wrapped, backend="aot_eager") if how == "outside" else wrapped
        sgd = ps.PartialSGD(called, torch.optim.AdamW(nested.parameters(), 0.01), registry.alternating())
        inside: list[int] = []

        def train(sgd=sgd, called=called, inside=inside) -> None:
            inside += [sgd.step(closure(called, t, rank)).mask.count() for t in range(STEPS)]

        results[f"{how} sent"] = elements_reduced(train)
        results[f"{how} inside"] = sum(inside)
        results[how] = bits(nested)
    return results


@on_ranks
def used_as_a_model(rank: int) -> dict[str, Any]:
    """Keys, levels and extraction through the wrapper; a resumed run; evaluation by one rank alone."""
    nested = family("width")
    wrapped = data_parallel(nested)
    optimizer = torch.optim.AdamW(nested.parameters(), 0.01)
    sgd = ps.PartialSGD(wrapped, optimizer, registry.alternating())
    for t in range(2):
        sgd.step(closure(wrapped, t, rank))
    saved = {"model": {k: v.clone() for k, v in wrapped.state_dict().items()}, "sgd": sgd.state_dict()}
    saved["optimizer"] = copy.deepcopy(optimizer.state_dict())  # torch's loading takes the tensors as they are
    again = family("width")
    other = data_parallel(again)
    other.load_state_dict(saved["model"])
    second = torch.optim.AdamW(again.parameters(), 0.01)
    second.load_state_dict(saved["optimizer"])
    resumed = ps.PartialSGD(other, second, registry.alternating())
    resumed.load_state_dict(saved["sgd"])
    for t in range(2, STEPS):
        sgd.step(closure(wrapped, t, rank))
        resumed.step(closure(other, t, rank))
    alone = None
    if rank == 0:
        with torch.no_grad():
            alone = wrapped(inputs(0, 0))
    with wrapped.module.at("1/4"), torch.no_grad():
        at_core = wrapped(inputs(0, 0))
    small = wrapped.module.extract("1/4", example=inputs(0, 0))
    return {
        "keys": list(wrapped.state_dict()),
        "nested keys": list(nested.state_dict()),
        "modules": [type(m).__name__ for m in wrapped.modules()],
        "parameters": bits(nested),
        "resumed": bits(again),
        "core": [at_core, small(inputs(0, 0)).detach()],
        "alone": alone is not None,
    }
