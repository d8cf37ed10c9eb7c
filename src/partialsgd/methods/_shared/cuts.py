"""The graph of a pass, cut where nothing before it moves.

A stage before the first one that moves runs without a graph: its outputs carry no gradient, nothing of it is kept for
backward, and backward ends at the boundary. Hooks do it, which are there from the beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partialsgd.parameters import Parameters

_log = logging.getLogger("partialsgd")


@final
class Knife:
    """Where the graph of the pass that is run now begins.

    The first pass is not cut: it shows whether the stages are in order, and which of them the loss depends on.
    """

    def __init__(self, stages: Sequence[Sequence[str]]) -> None:
        self.of = {name: k for k, names in enumerate(stages) for name in names}
        self.first = 0
        self.modes: list[bool] = []
        self.is_looking = False
        self._names: dict[Tensor, str] = {}
        self._last_used: int | None = None
        self._with_graph: set[int] = set()
        self._without_graph: set[int] = set()

    @property
    def has_looked(self) -> bool:
        return self._last_used is not None

    def cutting(self, parameters: Parameters, first: int) -> AbstractContextManager[None]:
        assert self._last_used is not None  # the first pass has looked
        trained = [self.of[name] for name, p in parameters.items() if p.requires_grad]
        first = min([first, self._last_used, max(trained, default=0)])  # a loss needs some graph
        return self._cutting(first) if first > 0 else nullcontext()

    @contextmanager
    def _cutting(self, first: int) -> Iterator[None]:
        grad_mode, self.first = torch.is_grad_enabled(), first
        try:
            yield
        except RuntimeError as error:
            if "does not require grad" in str(error):
                hint = f"in this pass the loss depends on nothing after stage {first}, where the graph was cut"
                raise RuntimeError(
                    f"{error}: {hint}; where parts of the network are left out, write cut=False"
                ) from error
            raise
        finally:
            self.first = 0
            self.modes.clear()
            torch.set_grad_enabled(grad_mode)

    @contextmanager
    def looking(self, parameters: Parameters) -> Iterator[None]:
        self.is_looking, self._names = True, {p: name for name, p in parameters.items()}
        self._with_graph, self._without_graph = set(), set()
        try:
            yield
            used = {self.of[name] for name, p in parameters.items() if p.grad is not None}
            if used & (self._without_graph - self._with_graph):
                raise ValueError(
                    "reentrant activation checkpointing gives no gradient to a block whose input has none, as after a "
                    "cut; checkpoint with use_reentrant=False, or write cut=False"
                )
            self._last_used = max(used, default=None)
            if unused := set(self.of.values()) - used:
                first = [next(name for name, k in self.of.items() if k == stage) for stage in sorted(unused)]
                _log.warning("the loss does not depend on the stages of %s, where nothing will move", ", ".join(first))
        finally:
            self.is_looking = False

    def look(self, k: int, given: Any) -> None:
        """Only what comes before a stage may feed it, or the cut would lose a gradient."""
        if not torch.is_grad_enabled():
            self._without_graph.add(k)
            return
        if torch._C._current_graph_task_id() == -1:  # forward; in backward it is computed again
            self._with_graph.add(k)
        for leaf in _leaves(given):
            name = self._names.get(leaf)
            if name is not None and self.of[name] > k:
                raise ValueError(
                    f"the stages are not in the order of the forward pass: {name!r} of stage {self.of[name]} feeds "
                    f"stage {k}; name them in order with stages=, or write cut=False"
                )

    def enter(self, k: int, given: Any) -> None:
        """Without a graph, unless what comes in is wanted for something that is not of this network."""
        if k < self.first:
            self.modes.append(torch.is_grad_enabled())
            is_wanted = not torch.compiler.is_compiling() and any(leaf not in self._names for leaf in _leaves(given))
            torch.set_grad_enabled(self.modes[-1] and is_wanted)

    def leave(self, k: int) -> None:
        if k < self.first and self.modes:
            torch.set_grad_enabled(self.modes.pop())


@final
class Entry:
    """Before a module of stage k runs."""

    def __init__(self, knife: Knife, k: int) -> None:
        self.knife = knife
        self.k = k

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        knife = self.knife
        if knife.is_looking and not torch.compiler.is_compiling():
            knife.look(self.k, [args, kwargs])
        knife.enter(self.k, [args, kwargs])


@final
class Exit:
    """After it, also if it raised."""

    def __init__(self, knife: Knife, k: int, owner: str) -> None:
        self.knife = knife
        self.k = k
        self.owner = owner

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.knife.leave(self.k)


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
