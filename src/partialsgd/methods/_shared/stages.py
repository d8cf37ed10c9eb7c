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
from partialsgd.methods._shared.cuts import Entry, Exit, Knife
from partialsgd.methods._shared.hooks import hooks_of, new_owner
from partialsgd.parameters import Parameters, matches

Stages: TypeAlias = str | Sequence[str | Sequence[str]]

_log = logging.getLogger("partialsgd")


@final
class Chain:
    """The names of each stage's parameters, and the hooks that cut the graph."""

    def __init__(self, model: nn.Module, stages: Stages | None, *, cut: bool, who: str) -> None:
        parameters = Parameters(model)
        named, is_chain = _named(parameters, stages)
        self.stages = _with_the_rest(parameters, named)
        self.is_cut = cut and is_chain and len(self.stages) > 1
        self._who = who
        self._owner = new_owner()
        if self.is_cut:
            knife = Knife(self.stages)
            for module, k in _modules(parameters, knife.of):
                module.register_forward_pre_hook(Entry(knife, k), with_kwargs=True)
                # Two chains on one module must be left in the opposite order.
                exit_ = Exit(knife, k, self._owner)
                module.register_forward_hook(exit_, prepend=True, with_kwargs=True, always_call=True)
            _log.info("%s: %d stages; backward stops at the first that moves", who, len(self.stages))
        elif cut:
            _log.warning(
                "%s: %s is not known to be a chain of modules, so its mask is exact and backward saves what autograd "
                "finds by itself; name the stages in the order of the forward pass with stages=, or write cut=False",
                who,
                type(parameters.model).__name__,
            )

    def __len__(self) -> int:
        return len(self.stages)

    def __repr__(self) -> str:
        return str([names[0] for names in self.stages])

    def mask(self, context: Context, moving: Iterable[int]) -> Mask:
        """p = these stages."""
        inside = {name for k in moving for name in self.stages[k]}
        return masks.from_tensors(context.parameters, {name: name in inside for name in context.parameters})

    def cut(self, context: Context) -> AbstractContextManager[None]:
        """The pass that is run inside makes no graph before the first stage that moves."""
        if not self.is_cut:
            return nullcontext()
        knife = hooks_of(context.parameters, Exit, self._owner, self._who)[0][1].knife
        if not knife.has_looked:  # for that no mask is needed
            return knife.looking(context.parameters)
        mask = context.mask
        moving = (k for k, names in enumerate(self.stages) if any(mask[name] is not False for name in names))
        return knife.cutting(context.parameters, next(moving, 0))


def _named(parameters: Parameters, stages: Stages | None) -> tuple[list[list[str]], bool]:
    """The parameters of each stage that was named, or that the model's structure names; and whether it is a chain."""
    if stages is None or isinstance(stages, str):
        container = _container(parameters.model, stages)
        chosen = container is not None
        children = list((parameters.model if container is None else container).children())
        found: list[list[str]] = []
        for child in children:  # a tied weight belongs to the first
            taken = {name for names in found for name in names}
            found.append([name for name in _inside(parameters, child) if name not in taken])
        return [names for names in found if names], chosen
    found = [list(parameters.match([stage] if isinstance(stage, str) else stage)) for stage in stages]
    stage_of: dict[str, int] = {}
    for k, names in enumerate(found):
        for name in names:
            if stage_of.setdefault(name, k) != k:
                raise ValueError(f"{name!r} is in two stages, {stages[stage_of[name]]!r} and {stages[k]!r}")
    position = {name: n for n, name in enumerate(parameters)}
    spans = [(min(position[n] for n in names), max(position[n] for n in names)) for names in found]
    return found, all(a[1] < b[0] for a, b in pairwise(sorted(spans)))  # not within each other; in any order


def _container(model: nn.Module, pattern: str | None) -> nn.Module | None:
    """The list of blocks: the model itself, the one that is named, or the only one there is."""
    kinds = (nn.Sequential, nn.ModuleList)
    if pattern is None and isinstance(model, kinds):
        return model
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, kinds) and sum(any(True for _ in child.parameters()) for child in module.children()) > 1
    ]
    if pattern is not None:
        lists = [(name, module) for name, module in lists if matches(name, pattern)]
    outer = [module for name, module in lists if not any(name.startswith(f"{other}.") for other, _ in lists)]
    if pattern is not None and len(outer) != 1:
        raise ValueError(f"stages={pattern!r} names {len(outer)} lists of modules; name one, or each stage in a list")
    return outer[0] if len(outer) == 1 else None


def _inside(parameters: Parameters, module: nn.Module) -> list[str]:
    wanted = set(module.parameters())
    return [name for name, p in parameters.items() if p in wanted]


def _with_the_rest(parameters: Parameters, named: list[list[str]]) -> tuple[tuple[str, ...], ...]:
    """The stages as they were named; what is registered before, between and after them makes stages of its own."""
    owner = {name: k for k, names in enumerate(named) for name in names}
    runs = [(k, tuple(names)) for k, names in groupby(parameters, lambda name: owner.get(name))]
    before: dict[int | None, list[tuple[str, ...]]] = {}
    for place, (k, names) in enumerate(runs):
        if k is None:
            following = next((later for later, _ in runs[place + 1 :] if later is not None), None)
            before.setdefault(following, []).append(names)
    stages = [stage for k, names in enumerate(named) for stage in (*before.get(k, ()), tuple(names))]
    stages += before.get(None, ())
    # One with nothing to train is no stage of its own: it goes with the next, or with the last.
    stages = _merged(stages, [any(parameters[name].requires_grad for name in names) for names in stages])
    if len(stages) < 2:
        found = f"{type(parameters.model).__name__} has {len(stages)} stages with something to train"
        raise ValueError(f"{found}, and two are needed; name them in the order of the forward pass")
    return tuple(stages)


def _merged(stages: Sequence[tuple[str, ...]], trains: Sequence[bool]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    waiting: tuple[str, ...] = ()
    for names, train in zip(stages, trains, strict=True):
        waiting += names
        if train:
            found.append(waiting)
            waiting = ()
    return [*found[:-1], found[-1] + waiting] if found else [waiting]


def _modules(parameters: Parameters, of: dict[str, int]) -> Iterator[tuple[nn.Module, int]]:
    """The outermost modules that lie in one stage; one that borrows a tied weight from elsewhere lies in none."""
    names = {p: name for name, p in parameters.items()}

    def stage(module: nn.Module, p: nn.Parameter) -> int | None:
        return of[names[p]] if parameters.owner(names[p]) is module else None

    def visit(module: nn.Module) -> Iterator[tuple[nn.Module, int | None]]:
        inside = {stage(part, p) for part in module.modules() for p in part.parameters(recurse=False)}
        if len(inside) == 1 and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            yield module, inside.pop()
        else:
            for child in module.children():
                yield from visit(child)

    seen: set[nn.Module] = set()
    for module, k in visit(parameters.model):
        if module not in seen and k is not None:
            seen.add(module)
            yield module, k
