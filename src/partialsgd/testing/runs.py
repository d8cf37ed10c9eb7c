"""Training runs for the laws: a run can be stopped, saved, resumed and compared."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from partialsgd._util.snapshots import generator_states, set_generator_states
from partialsgd.engine.partial_sgd import PartialSGD
from partialsgd.engine.step import Step
from partialsgd.masks import Mask
from partialsgd.meters.criteria import Criteria
from partialsgd.meters.criteria_meter import CriteriaMeter
from partialsgd.method import Branch, Context, GradientPair, GradientRequest, Method
from partialsgd.methods.dropout import dropout
from partialsgd.optimizers.capabilities import per_coordinate
from partialsgd.testing.problems import Problem

MakeOptimizer: TypeAlias = Callable[[Any], Optimizer]
_CPU = torch.device("cpu")


@final
@dataclass
class Run:
    """A training run that can be stopped, saved, resumed and compared with another, to the bit."""

    problem: Problem
    make: MakeOptimizer
    method: Method
    autocast: bool
    meter: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = self.problem.model()
        self.optimizer = self.make(self.model.parameters())
        self.sgd = PartialSGD(self.model, self.optimizer, self.method, meter=self.meter, **self.options)
        torch.manual_seed(17)

    def closure(self, t: int) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self.autocast):
                loss = self.problem.evaluate(self.model, t)
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            return loss

        return run

    def step(self, t: int) -> Step:
        return self.sgd.step(self.closure(t))

    def tensors(self) -> dict[str, Tensor]:
        """Copy every parameter, buffer and optimizer tensor, and the states of the global generators."""
        buffers = {f"model.{name}": buffer.detach().clone() for name, buffer in self.model.named_buffers()}
        return self.trained() | buffers | self._random()

    def trained(self) -> dict[str, Tensor]:
        """Copy every parameter and optimizer tensor."""
        tensors: dict[str, Tensor] = {f"model.{name}": p for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            state = self.optimizer.state.get(p, {}).items()
            tensors |= {f"optimizer.{name}.{key}": value for key, value in state if isinstance(value, Tensor)}
        return {name: value.detach().clone() for name, value in tensors.items()}

    def coordinates(self) -> dict[tuple[str, str], Tensor]:
        """Copy every tensor with one number a coordinate, by parameter and key of its state; the key of x is empty."""
        tensors: dict[tuple[str, str], Tensor] = {}
        for name, p in self.sgd.parameters.items():
            tensors[name, ""] = p
            tensors |= {(name, k): v for k, v in per_coordinate(self.optimizer.state.get(p, {}), p).items()}
        return {key: value.detach().clone() for key, value in tensors.items()}

    def scalars(self) -> dict[str, dict[str, float]]:
        """Read the optimizer's numbers that belong to a whole tensor, such as its step."""
        states = {name: (p, self.optimizer.state.get(p, {})) for name, p in self.sgd.parameters.items()}
        return {
            name: {
                key: float(value)
                for key, value in state.items()
                if isinstance(value, (int, float))
                or (isinstance(value, Tensor) and value.numel() == 1 and value.shape != p.shape)
            }
            for name, (p, state) in states.items()
        }

    def remembered(self) -> dict[str, str]:
        """Read the memory of the method and of the meters, with tensors and floats written out in full."""
        memories = {"method": self.sgd.memory, **self.sgd.measured}.items()
        values = {f"{who} {key}": value for who, memory in memories for key, value in memory.items()}
        return {key: repr(v.tolist() if isinstance(v, Tensor) else v) for key, v in values.items()}

    def save(self) -> dict[str, Any]:
        """Return the state after it went through a file without a pickle."""
        file = io.BytesIO()
        parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "sgd": self.sgd}
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"random": self._random()}, file)
        file.seek(0)
        loaded: dict[str, Any] = torch.load(file, weights_only=True)
        return loaded

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sgd.load_state_dict(state["sgd"])
        random = {self._device if name == "device rng" else _CPU: rng for name, rng in state["random"].items()}
        set_generator_states(random)

    def _random(self) -> dict[str, Tensor]:
        states = generator_states(self.model)
        return {"rng" if device == _CPU else "device rng": state for device, state in states.items()}

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def assert_same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different, f"not the same to the bit: {', '.join(different)}"


_EVERY_STEP = CriteriaMeter(every=1, consecutive=True, alerts=None)
_PROBED = CriteriaMeter(every=1, probe=dropout(0.5), alerts=None)


@final
class AlwaysMeasuring:
    """A meter of the trained branch and of a probe at every step, which draws from the global generator as well."""

    def requests(self, context: Context, trained: Branch) -> Sequence[GradientRequest]:
        torch.rand(2)
        return [*_PROBED.requests(context, trained), *_EVERY_STEP.requests(context, trained)]

    def measure(self, pair: GradientPair) -> Criteria | None:
        torch.rand(3)
        return _EVERY_STEP.measure(pair)


def failing_after(closure: Callable[[], Tensor], passes: int) -> Callable[[], Tensor]:
    """Return a closure that raises in its pass number `passes`, counted from 0."""
    left = passes

    def run() -> Tensor:
        nonlocal left
        loss = closure()
        if left == 0:
            raise ZeroDivisionError("inside the closure")
        left -= 1
        return loss

    return run


def outside_of(mask: Mask, name: str, like: Tensor) -> Tensor:
    entry = mask[name]
    return ~entry if isinstance(entry, Tensor) else torch.full_like(like, not entry, dtype=torch.bool)
