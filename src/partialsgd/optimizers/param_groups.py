"""Which optimizer holds which parameter: each trainable parameter in exactly one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import nn
from torch.optim import Optimizer

from partialsgd.parameters import Parameters


class Place(NamedTuple):
    optimizer: Optimizer
    number: int

    @property
    def group(self) -> dict[str, Any]:
        return self.optimizer.param_groups[self.number]  # looked up: load_state_dict makes new ones


@final
class Places(Mapping[str, Place]):
    """Place by name. Groups may be added and parameters unfrozen during training; `refresh` follows."""

    def __init__(self, parameters: Parameters, optimizers: Sequence[Optimizer]) -> None:
        self._parameters = parameters
        self._optimizers = optimizers
        self._sizes: list[int] = []
        self._places: dict[str, Place] = {}
        self._absent: list[nn.Parameter] = []
        self.refresh()

    def __getitem__(self, name: str) -> Place:
        return self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def refresh(self) -> None:
        """Look again if a group has changed; raise if a trainable parameter is in no optimizer."""
        sizes = [len(group["params"]) for optimizer in self._optimizers for group in optimizer.param_groups]
        if sizes != self._sizes:
            self._places = _places(self._parameters, self._optimizers)
            self._sizes = sizes
            self._absent = [p for name, p in self._parameters.items() if name not in self._places]
        if any(p.requires_grad for p in self._absent):
            missing = [n for n, p in self._parameters.items() if n not in self._places and p.requires_grad]
            raise ValueError(
                f"{len(missing)} trainable parameters are in no optimizer, {missing[0]!r} first; "
                "build the optimizer after nest, from model.parameters(), or freeze what should not be trained"
            )


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside the wrappers of accelerate and Lightning."""
    packages = {base.__module__.partition(".")[0] for base in type(optimizer).__mro__}
    is_wrapper = bool(packages & {"accelerate", "lightning", "pytorch_lightning"})
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if is_wrapper and isinstance(inner, Optimizer) else optimizer


def step(optimizer: Optimizer) -> None:
    """`optimizer.step()`; for a wrapper of Lightning its own, which counts the steps."""
    # accelerate's wrapper steps only on the last micro-batch it counted; here update() decides that.
    is_accelerates = type(optimizer).__module__.startswith("accelerate")
    (unwrapped(optimizer) if is_accelerates else optimizer).step()


def _places(parameters: Parameters, optimizers: Sequence[Optimizer]) -> dict[str, Place]:
    names = {parameter: name for name, parameter in parameters.items()}
    places: dict[str, Place] = {}
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
                if name in places:
                    raise ValueError(f"{name!r} is in two optimizers or groups; each parameter needs exactly one")
                places[name] = Place(optimizer, number)
    return places
