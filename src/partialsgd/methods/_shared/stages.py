"""A network as stages in the order of its forward pass, so that backward can stop where nothing moves any more."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby, pairwise
from typing import TypeAlias, final

from torch import nn

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.method import Context
from partialsgd.methods._shared.graph_cut import GraphCut, StageHook, hooks_of, new_owner
from partialsgd.parameters import Parameters, matches

StageNames: TypeAlias = str | Sequence[str | Sequence[str]]

_log = logging.getLogger("partialsgd")


@final
class Stages:
    """The names of each stage's parameters, and the hooks that cut the graph if the stages are known to be a chain."""

    def __init__(self, model: nn.Module, named: StageNames | None, *, cut: bool, method: str) -> None:
        parameters = Parameters(model)
        parts, is_chain = _from_structure(parameters, named) if _is_one(named) else _from_patterns(parameters, named)
        self.names = _with_the_rest(parameters, parts)
        self.is_cut = cut and is_chain
        self._owner = new_owner()
        if self.is_cut:
            graph_cut = GraphCut(self.names)
            for module, k in _modules(parameters, graph_cut.stage_of):
                StageHook(graph_cut, k, self._owner).register(module)
            _log.info("%s: %d stages; backward stops at the first that moves", method, len(self.names))
        elif cut:
            _log.warning(
                "%s: %s is not known to be a chain of modules, so its mask is exact and backward saves what autograd "
                "finds by itself; name the stages in the order of the forward pass with stages=, or write cut=False",
                method,
                type(parameters.model).__name__,
            )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return str([names[0] for names in self.names])

    def mask(self, context: Context, moving: Iterable[int]) -> Mask:
        """p = these stages."""
        inside = {name for k in moving for name in self.names[k]}
        return masks.from_tensors(context.parameters, {name: name in inside for name in context.parameters})

    def cut(self, context: Context) -> AbstractContextManager[None]:
        """Run the pass inside without a graph before the first stage that moves."""
        if not self.is_cut:
            return nullcontext()
        graph_cut = hooks_of(context.parameters, StageHook, self._owner)[0][1].cut
        if not graph_cut.is_inspected:  # for that no mask is needed
            return graph_cut.inspect(context.parameters)
        mask = context.mask
        moving = (k for k, names in enumerate(self.names) if any(mask[name] is not False for name in names))
        return graph_cut.cut_before(context.parameters, next(moving, 0))


Parts: TypeAlias = list[list[str]]


def _is_one(named: StageNames | None) -> bool:
    return named is None or isinstance(named, str)


def _from_structure(parameters: Parameters, named: StageNames | None) -> tuple[Parts, bool]:
    """Split by the children of the list of blocks, or of the model if there is none, which then is no chain."""
    container = _container(parameters.model, named if isinstance(named, str) else None)
    parts: Parts = []
    taken: set[nn.Parameter] = set()
    for child in (parameters.model if container is None else container).children():
        own = set(child.parameters()) - taken  # a tied weight belongs to the first
        taken |= own
        parts.append([name for name, p in parameters.items() if p in own])
    return [names for names in parts if names], container is not None


def _from_patterns(parameters: Parameters, named: StageNames | None) -> tuple[Parts, bool]:
    """Split by patterns; they are a chain if their parameters do not lie within each other."""
    patterns = list(named or ())
    parts = [list(parameters.match([pattern] if isinstance(pattern, str) else pattern)) for pattern in patterns]
    stage_of: dict[str, int] = {}
    for k, names in enumerate(parts):
        for name in names:
            if stage_of.setdefault(name, k) != k:
                raise ValueError(f"{name!r} is in two stages, {patterns[stage_of[name]]!r} and {patterns[k]!r}")
    position = {name: n for n, name in enumerate(parameters)}
    spans = sorted((min(position[n] for n in names), max(position[n] for n in names)) for names in parts)
    return parts, all(a[1] < b[0] for a, b in pairwise(spans))


def _container(model: nn.Module, pattern: str | None) -> nn.Module | None:
    """Find the list of blocks: the model itself, the one that the pattern names, or the only one there is."""
    kinds = (nn.Sequential, nn.ModuleList)
    if pattern is None and isinstance(model, kinds):
        return model
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, kinds) and sum(any(True for _ in child.parameters()) for child in module.children()) > 1
        if pattern is None or matches(name, pattern)
    ]
    outer = [module for name, module in lists if not any(name.startswith(f"{other}.") for other, _ in lists)]
    if pattern is not None and len(outer) != 1:
        raise ValueError(f"stages={pattern!r} names {len(outer)} lists of modules; name one, or each stage in a list")
    return outer[0] if len(outer) == 1 else None


def _with_the_rest(parameters: Parameters, parts: Parts) -> tuple[tuple[str, ...], ...]:
    """Add the parameters that are registered before, between and after the parts as stages of their own."""
    part_of = {name: k for k, names in enumerate(parts) for name in names}
    runs = [(k, tuple(names)) for k, names in groupby(parameters, lambda name: part_of.get(name))]
    before: dict[int | None, list[tuple[str, ...]]] = {}
    for place, (k, names) in enumerate(runs):
        if k is None:
            following = next((later for later, _ in runs[place + 1 :] if later is not None), None)
            before.setdefault(following, []).append(names)
    all_stages = [stage for k, names in enumerate(parts) for stage in (*before.get(k, ()), tuple(names))]
    # A stage with nothing to train goes with the next one, or with the last.
    stages: list[tuple[str, ...]] = []
    frozen: tuple[str, ...] = ()
    for names in (*all_stages, *before.get(None, ())):
        frozen += names
        if any(parameters[name].requires_grad for name in names):
            stages.append(frozen)
            frozen = ()
    if len(stages) < 2:
        problem = f"{type(parameters.model).__name__} has {len(stages)} stages with something to train"
        raise ValueError(f"{problem}, and two are needed; name them in the order of the forward pass")
    return (*stages[:-1], stages[-1] + frozen)


def _modules(parameters: Parameters, stage_of: dict[str, int]) -> Iterator[tuple[nn.Module, int]]:
    """Yield the outermost modules that lie in one stage; one that borrows a tied weight from elsewhere lies in none."""
    names = {p: name for name, p in parameters.items()}

    def stage(module: nn.Module, p: nn.Parameter) -> int | None:
        return stage_of[names[p]] if parameters.owner(names[p]) is module else None

    def visit(module: nn.Module) -> Iterator[tuple[nn.Module, int | None]]:
        inside = {stage(part, p) for part in module.modules() for p in part.parameters(recurse=False)}
        if len(inside) == 1 and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            yield module, inside.pop()
        else:
            for child in module.children():
                yield from visit(child)

    yield from {module: k for module, k in visit(parameters.model) if k is not None}.items()
