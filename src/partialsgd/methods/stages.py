"""A network as stages in the order of its forward pass, so that backward can stop where nothing moves any more.

A stage before the first one that moves runs without a graph: its outputs carry no gradient, nothing of it is kept for
backward, and backward ends at the boundary. Hooks do it; they are there from the beginning and look at the mask.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import groupby, pairwise
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.names import Parameters, matches
from partialsgd.rules import Context

Stages: TypeAlias = str | Sequence[str | Sequence[str]]

_log = logging.getLogger("partialsgd")


@final
class Chain:
    """The names of each stage's parameters, and the hooks that cut the graph."""

    def __init__(self, model: nn.Module, stages: Stages | None, *, cut: bool, who: str) -> None:
        parameters = Parameters(model)
        named, is_chain = _named(parameters, stages)
        self.stages = _with_the_rest(parameters, named)
        self._of = {name: k for k, names in enumerate(self.stages) for name in names}
        self._names: dict[Tensor, str] = {p: name for name, p in parameters.items()}
        self._first = 0
        self._modes: list[bool] = []
        self._checked: set[int] = set()
        self.is_cut = cut and is_chain and len(self.stages) > 1
        if self.is_cut:
            for module, k in _modules(parameters, self._of):
                module.register_forward_pre_hook(self._enter(k), with_kwargs=True)
                # Two chains on one module must be left in the opposite order.
                module.register_forward_hook(self._leave(k), prepend=True, with_kwargs=True, always_call=True)
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
        mask = context.mask
        moving = (k for k, names in enumerate(self.stages) if any(mask[name] is not False for name in names))
        first = next(moving, 0)
        return self._cut_at(first) if self.is_cut and first > 0 else nullcontext()

    @contextmanager
    def _cut_at(self, first: int) -> Iterator[None]:
        grad_mode, self._first = torch.is_grad_enabled(), first
        try:
            yield
        finally:
            self._first = 0
            self._modes.clear()
            torch.set_grad_enabled(grad_mode)

    def _enter(self, k: int) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            is_known = k in self._checked and k >= self._first
            if not is_known and torch.is_grad_enabled() and not torch.compiler.is_compiling():
                self._require_upstream(k, [args, kwargs])
            if k < self._first:
                self._modes.append(torch.is_grad_enabled())
                torch.set_grad_enabled(False)

        return hook

    def _leave(self, k: int) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if k < self._first and self._modes:
                torch.set_grad_enabled(self._modes.pop())

        return hook

    def _require_upstream(self, k: int, given: Any) -> None:
        """Only what comes before a stage may feed it, or the cut would lose a gradient."""
        for parameter in _leaves(given):
            name = self._names.get(parameter)
            if name is not None and self._of[name] > k:
                raise ValueError(
                    f"the stages are not in the order of the forward pass: {name!r} of stage {self._of[name]} feeds "
                    f"stage {k} ({self.stages[k][0]!r} …); name them in order with stages=, or write cut=False"
                )
        if self._first == 0:
            self._checked.add(k)


def _named(parameters: Parameters, stages: Stages | None) -> tuple[list[list[str]], bool]:
    """The parameters of each stage that was named, or that the model's structure names; and whether it is a chain."""
    if stages is None or isinstance(stages, str):
        container = _container(parameters.model, stages)
        chosen = container is not None
        children = list((parameters.model if container is None else container).children())
        found = [_inside(parameters, [child]) for child in children]
        return [names for names in found if names], chosen
    found = [list(parameters.match([stage] if isinstance(stage, str) else stage)) for stage in stages]
    taken: dict[str, int] = {}
    for k, names in enumerate(found):
        for name in names:
            if taken.setdefault(name, k) != k:
                raise ValueError(f"{name!r} is in two stages, {stages[taken[name]]!r} and {stages[k]!r}")
    position = {name: n for n, name in enumerate(parameters)}
    spans = [(min(position[n] for n in names), max(position[n] for n in names)) for names in found]
    return found, all(a[1] < b[0] for a, b in pairwise(spans))


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


def _inside(parameters: Parameters, modules: Iterable[nn.Module]) -> list[str]:
    wanted = {p for module in modules for p in module.parameters()}
    return [name for name, p in parameters.items() if p in wanted]


def _with_the_rest(parameters: Parameters, named: list[list[str]]) -> tuple[tuple[str, ...], ...]:
    """What no stage names, before, between and after them, makes stages of its own."""
    owner = {name: k for k, names in enumerate(named) for name in names}
    stages: list[tuple[str, ...]] = []
    placed: set[int] = set()
    for k, names in groupby(parameters, lambda name: owner.get(name)):
        if k is None:
            stages.append(tuple(names))
        elif k not in placed:
            placed.add(k)
            stages.append(tuple(named[k]))
    if len(stages) < 2:
        raise ValueError(f"{type(parameters.model).__name__} has one stage only; there is nothing to go through")
    return tuple(stages)


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


def _leaves(given: Any) -> Iterator[Tensor]:
    """The parameters that the graph of these tensors begins with."""
    tensors = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
    yield from (t for t in tensors if t.is_leaf and t.requires_grad)
    pending = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        pending += [parent for parent, _ in node.next_functions if parent is not None]
