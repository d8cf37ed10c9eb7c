"""f: the user's closure, which runs forward and backward and returns the loss."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from types import FunctionType
from typing import Any, TypeAlias

from torch import Tensor

from partialsgd.engine.gradient_pass import Pass

Closure: TypeAlias = Callable[[], Tensor | float] | Callable[[Pass], Tensor | float]

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def with_pass(closure: Closure) -> Callable[[Pass], Any]:
    """A closure that takes an argument is given the pass it runs in; one that takes none is called as it is."""
    run: Any = closure
    if not callable(run):
        raise TypeError(f"step() takes a closure that runs forward and backward, got {closure!r}")
    wanted = _required(run)
    if wanted > 1:
        raise TypeError(f"the closure takes {wanted} arguments; it may take one, the pass it runs in, or none")
    return run if wanted else lambda _: run()


def _required(run: Any) -> int:
    """How many arguments must be given; a plain function is asked directly, because every step asks."""
    if isinstance(run, FunctionType):
        return run.__code__.co_argcount - len(run.__defaults__ or ())
    parameters = signature(run).parameters.values()
    return sum(p.kind in _POSITIONAL and p.default is p.empty for p in parameters)


def require_loss(loss: Tensor | float | None) -> Tensor | float:
    if loss is None:
        raise TypeError("the closure returned no loss: end it with `return loss`")
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise TypeError(f"the closure returned a tensor of shape {tuple(loss.shape)}; return the loss, one number")
    return loss.detach() if isinstance(loss, Tensor) else loss
