"""A forward pass without a graph before the first stage that moves, so that backward ends there.

Outputs of the stages before it carry no gradient, and nothing of them is kept for backward. Hooks do it, which are put
on the model when the method is bound. The first pass is not cut: it shows whether the stages are in order, and which
of them the loss depends on.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partialsgd.parameters import Parameters

Hook = TypeVar("Hook")
_log = logging.getLogger("partialsgd")


@final
class GraphCut:
    """The state that the hooks of one model share: the stage at which the graph of the current pass begins."""

    def __init__(self, stages: Sequence[Sequence[str]]) -> None:
        self.stage_of = {name: k for k, names in enumerate(stages) for name in names}
        self._first = 0
        self._grad_modes: list[bool] = []
        self._is_inspecting = False
        self._names: dict[Tensor, str] = {}
        self._last_used: int | None = None
        self._with_graph: set[int] = set()
        self._without_graph: set[int] = set()

    @property
    def is_inspected(self) -> bool:
        """True after the first pass, which is not cut."""
        return self._last_used is not None

    def cut_before(self, parameters: Parameters, first: int) -> AbstractContextManager[None]:
        """Run the pass inside without a graph before stage `first`, or before the last one that the loss needs."""
        assert self._last_used is not None
        trained = [self.stage_of[name] for name, p in parameters.items() if p.requires_grad]
        first = min([first, self._last_used, max(trained, default=0)])  # a loss needs some graph
        return self._cutting(first) if first > 0 else nullcontext()

    @contextmanager
    def _cutting(self, first: int) -> Iterator[None]:
        grad_mode, self._first = torch.is_grad_enabled(), first
        try:
            yield
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            hint = f"in this pass the loss depends on nothing after stage {first}, where the graph was cut"
            raise RuntimeError(f"{error}: {hint}; where parts of the network are left out, write cut=False") from error
        finally:
            self._first = 0
            self._grad_modes.clear()
            torch.set_grad_enabled(grad_mode)

    @contextmanager
    def inspect(self, parameters: Parameters) -> Iterator[None]:
        """Check in the whole pass inside that the model can be cut."""
        self._is_inspecting, self._names = True, {p: name for name, p in parameters.items()}
        self._with_graph, self._without_graph = set(), set()
        try:
            yield
            used = {self.stage_of[name] for name, p in parameters.items() if p.grad is not None}
            if used & (self._without_graph - self._with_graph):
                raise ValueError(
                    "reentrant activation checkpointing gives no gradient to a block whose input has none, as after a "
                    "cut; checkpoint with use_reentrant=False, or write cut=False"
                )
            self._last_used = max(used, default=None)
            if unused := set(self.stage_of.values()) - used:
                first = [next(name for name, k in self.stage_of.items() if k == stage) for stage in sorted(unused)]
                _log.warning("the loss does not depend on the stages of %s, where nothing will move", ", ".join(first))
        finally:
            self._is_inspecting = False

    def enter(self, k: int, inputs: Any) -> None:
        """Turn the graph off, unless the inputs need a gradient for something that is not of this network."""
        if self._is_inspecting and not torch.compiler.is_compiling():
            self._check_order(k, inputs)
        if k < self._first:
            self._grad_modes.append(torch.is_grad_enabled())
            is_needed = not torch.compiler.is_compiling() and any(leaf not in self._names for leaf in _leaves(inputs))
            torch.set_grad_enabled(self._grad_modes[-1] and is_needed)

    def leave(self, k: int) -> None:
        if k < self._first and self._grad_modes:
            torch.set_grad_enabled(self._grad_modes.pop())

    def _check_order(self, k: int, inputs: Any) -> None:
        """Raise if a later stage feeds this one: the cut would lose a gradient."""
        if not torch.is_grad_enabled():
            self._without_graph.add(k)
            return
        if torch._C._current_graph_task_id() == -1:  # forward; in backward it is computed again
            self._with_graph.add(k)
        for leaf in _leaves(inputs):
            name = self._names.get(leaf)
            if name is not None and self.stage_of[name] > k:
                raise ValueError(
                    f"the stages are not in the order of the forward pass: {name!r} of stage {self.stage_of[name]} "
                    f"feeds stage {k}; name them in order with stages=, or write cut=False"
                )


@final
class StageHook:
    """The hook before and after a module of stage k; after it, also if the module raised."""

    def __init__(self, cut: GraphCut, k: int, owner: str) -> None:
        self.cut = cut
        self.k = k
        self.owner = owner

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, *output: Any) -> None:
        if output:
            self.cut.leave(self.k)
        else:
            self.cut.enter(self.k, [args, kwargs])

    def register(self, module: nn.Module) -> None:
        module.register_forward_pre_hook(self, with_kwargs=True)
        # Prepended: the hooks of two methods on one module are left in the opposite order.
        module.register_forward_hook(self, prepend=True, with_kwargs=True, always_call=True)


def _leaves(inputs: Any) -> Iterator[Tensor]:
    """Yield the parameters that the graph of these tensors begins with."""
    tensors = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]
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


def new_owner() -> str:
    """Return a token for the hooks of one method on one model."""
    return secrets.token_hex(8)


def hooks_of(parameters: Parameters, kind: type[Hook], owner: str) -> list[tuple[nn.Module, Hook]]:
    """Return each module with its hook of this kind and owner."""

    def find() -> list[tuple[nn.Module, Hook]]:
        hooks = [(module, hook) for module in parameters.model.modules() for hook in module._forward_hooks.values()]
        own = [(m, hook) for m, hook in hooks if isinstance(hook, kind) and getattr(hook, "owner", None) == owner]
        if not own:
            raise ValueError("the hooks of the method are gone from the model; build PartialSGD anew")
        return own

    return parameters.once((kind, owner), find)
