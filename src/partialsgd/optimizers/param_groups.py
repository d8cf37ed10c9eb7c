"""The one optimizer and param group of each parameter, and the hook that refuses steps of others than `PartialSGD`.

`optimizer.step()` left in a loop that uses `PartialSGD` would move what a mask holds, and t would stay: it is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Any, NamedTuple, final
from weakref import finalize

import torch
from torch import nn
from torch.optim import Optimizer

from partialsgd.parameters import Parameters, values_of

IS_STEPPING: ContextVar[bool] = ContextVar("partialsgd_is_stepping", default=False)
"""True while a `PartialSGD` makes a step."""


@contextmanager
def allow_direct_steps() -> Iterator[None]:
    """Let the user's code step the optimizers inside the block."""
    token = IS_STEPPING.set(True)
    try:
        yield
    finally:
        IS_STEPPING.reset(token)


class GroupOf(NamedTuple):
    """The param group that holds a parameter."""

    optimizer: Optimizer
    number: int

    @property
    def options(self) -> dict[str, Any]:
        """lr, momentum and so on; looked up each time, because `load_state_dict` makes new dicts."""
        return self.optimizer.param_groups[self.number]


@final
class ParamGroups(dict[str, GroupOf]):
    """The param group of each parameter, by name. Groups may be added and parameters unfrozen while training."""

    def __init__(self, parameters: Parameters, optimizers: Sequence[Optimizer]) -> None:
        super().__init__()
        self._parameters = parameters
        self._optimizers = optimizers
        self._listed: list[nn.Parameter] = []
        self._absent: list[nn.Parameter] = []
        self.refresh()

    def refresh(self) -> None:
        """Follow changes of the groups; raise if a trainable parameter is in no optimizer, or if the parameters of the
        model or of an optimizer were replaced."""
        model = self._parameters
        contents = chain.from_iterable(map(values_of, model.filled))  # each step asks: no loop in Python
        has_grown = any(model.empty) or sum(map(len, model.filled)) != len(model.contents)
        if has_grown or not all(map(operator.is_, contents, model.contents)):
            model.require_unchanged()
        listed = [p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]]
        if len(listed) != len(self._listed) or not all(map(operator.is_, listed, self._listed)):
            groups = _groups(self._parameters, self._optimizers)  # may raise, before anything has changed
            self.clear()
            self.update(groups)
            self._listed = listed
            self._absent = [p for name, p in self._parameters.items() if name not in self]
        if any(p.requires_grad for p in self._absent):
            missing = [n for n, p in self._parameters.items() if n not in self and p.requires_grad]
            raise ValueError(
                f"{len(missing)} trainable parameters are in no optimizer, {missing[0]!r} first; "
                "build the optimizer after nest, from model.parameters(), or freeze what should not be trained"
            )


@final
class RefuseDirectStep:
    """A step hook that raises, before anything has moved, unless `PartialSGD.update` makes the step."""

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not IS_STEPPING.get():
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called directly, but a PartialSGD owns this optimizer, and "
                "only sgd.update() or sgd.step(closure) makes its steps: replace optimizer.step() (or "
                "scaler.step(optimizer)) by sgd.update(); under Lightning set self.automatic_optimization = False. "
                "To train without PartialSGD for a while, write `with sgd.direct_steps():`"
            )


def refuse_direct_steps(owner: object, optimizers: Sequence[Optimizer]) -> None:
    """Refuse steps that the owner does not make, for as long as it lives."""
    for optimizer in optimizers:
        if hasattr(optimizer, "_optimizer_step_pre_hooks"):  # a wrapper may not have called Optimizer.__init__
            finalize(owner, optimizer.register_step_pre_hook(RefuseDirectStep()).remove)


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside the wrappers of accelerate and Lightning."""
    packages = {base.__module__.partition(".")[0] for base in type(optimizer).__mro__}
    is_wrapper = bool(packages & {"accelerate", "lightning", "pytorch_lightning"})
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if is_wrapper and isinstance(inner, Optimizer) else optimizer


def step_of(optimizer: Optimizer) -> Callable[[], object]:
    """Return the `step` to call: that of the optimizer, or that of Lightning's wrapper, which counts the steps."""
    # accelerate's wrapper steps only on the last micro-batch it counted; here update() decides that.
    is_accelerates = type(optimizer).__module__.startswith("accelerate")
    step: Callable[[], object] = (unwrapped(optimizer) if is_accelerates else optimizer).step
    return step


def _groups(parameters: Parameters, optimizers: Sequence[Optimizer]) -> dict[str, GroupOf]:
    names = {parameter: name for name, parameter in parameters.items()}
    groups: dict[str, GroupOf] = {}
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise NotImplementedError("SparseAdam needs sparse gradients, which are refused here; use Adam")
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                name = names.get(parameter)
                if name is None:
                    raise ValueError(
                        f"the optimizer holds a parameter of shape {tuple(parameter.shape)} that is not the "
                        "model's; build the optimizer after nest (or any other change of the model)"
                    )
                if name in groups:
                    raise ValueError(f"{name!r} is in two optimizers or groups; each parameter needs exactly one")
                groups[name] = GroupOf(optimizer, number)
    return groups
