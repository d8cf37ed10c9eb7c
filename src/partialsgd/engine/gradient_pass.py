"""x̃_t ↦ g_t: one forward and backward by the user, with x perturbed for exactly that long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation, perturbed


def _nobody() -> None:
    return None


class _Several:
    """Outputs of more than one micro-batch: a teacher that nobody should ask."""


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
        within: AbstractContextManager[object] | None = None,
        teacher: Callable[[], Any] = _nobody,
    ) -> None:
        self.level = level
        """The level that the branch trains, or None where a network has no levels. A pass at x_t runs the whole one."""
        self.last = last
        """Whether the step needs no further gradient after this one."""
        self._outputs: Any = None
        self._given = 0
        self.loss: Tensor | float | None = None
        """Put the loss here to have it checked and find it in `Step`; `step(closure)` does."""
        self.ran = False
        self.running = False
        self._parameters = parameters
        self._abort = abort
        self._teacher = teacher
        self._perturbed: AbstractContextManager[None] | None = perturbed(parameters, perturbation, within)

    @property
    def teacher(self) -> Any:
        """The outputs of the largest level for this batch, detached, where the method distills; else None."""
        found = self._teacher()
        if isinstance(found, _Several):
            raise RuntimeError(
                "the largest level has put outputs into g.outputs several times, one for each micro-batch, and which "
                "of them teaches this one is not known: distill with one batch in the closure"
            )
        return found

    @property
    def outputs(self) -> Any:
        """Put the outputs here, once, to find them in `teacher` at the smaller levels."""
        return self._outputs

    @outputs.setter
    def outputs(self, outputs: Any) -> None:
        self._outputs = outputs
        self._given += 1

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
        self._teacher = _nobody  # it leads back to the step, which would then live until memory is collected
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
        if self._given > 1:
            return _Several()
        if self.outputs is None:
            return None
        return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, self.outputs)
