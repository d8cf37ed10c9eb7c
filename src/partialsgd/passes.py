"""x̃_t ↦ g_t: one forward and backward by the user, with x perturbed for exactly that long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partialsgd.names import Parameters
from partialsgd.perturbations import Perturbation, perturbed


@final
class Pass:
    """`with g:` run forward and backward once. x is x̃ inside, exactly x again outside."""

    def __init__(
        self,
        parameters: Parameters,
        perturbation: Perturbation,
        abort: Callable[[], None],
        *,
        level: str | None,
        last: bool,
        teacher: Callable[[], Any] = lambda: None,
    ) -> None:
        self.level = level
        """The level that runs, or None where a network has no levels."""
        self.last = last
        """Whether the step needs no further gradient after this one."""
        self.outputs: Any = None
        """Put the outputs here to find them in `teacher` at the smaller levels."""
        self.loss: Tensor | float | None = None
        """Put the loss here to have it checked and find it in `Step`; `step(closure)` does."""
        self.ran = False
        self.running = False
        self._parameters = parameters
        self._abort = abort
        self._teacher = teacher
        self._perturbed: AbstractContextManager[None] | None = perturbed(parameters, perturbation)

    @property
    def teacher(self) -> Any:
        """The outputs of the largest level for this batch, detached, where the method distills; else None."""
        return self._teacher()

    def __enter__(self) -> Pass:
        if self.ran or self._perturbed is None:
            raise RuntimeError("this gradient was taken already; take the next one from sgd.gradients()")
        try:
            self._perturbed.__enter__()
            self.running = True
        except BaseException:
            self._abort()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._perturbed, self.running = self._perturbed, None, False
        assert held is not None  # entered above
        try:
            held.__exit__(kind, error, trace)
            if kind is None and all(p.grad is None for p in self._parameters.values()):
                raise RuntimeError(
                    "no parameter received a gradient: call loss.backward() inside the closure or `with` block, "
                    "on a loss that depends on the model's parameters"
                )
        except BaseException:
            self._abort()
            raise
        if kind is not None:
            self._abort()
        self.ran = kind is None

    def for_pupils(self) -> Any:
        """The outputs as smaller levels may use them."""
        if self.outputs is None:
            return None
        return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, self.outputs)
