"""A training run to hold laws against: it can be stopped, copied and looked into."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch.optim import Optimizer

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


@final
@dataclass
class Run:
    """A training run that can be stopped, copied and looked into."""

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
            with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                loss = self.problem.evaluate(self.model, t)
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            return loss

        return run

    def step(self, t: int) -> Step:
        return self.sgd.step(self.closure(t))

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter, buffer and optimizer tensor, and the global generator."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, p in self.model.named_parameters():
            for key, value in self.optimizer.state.get(p, {}).items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{name}.{key}"] = value
        return {name: value.detach().clone() for name, value in found.items()} | {"rng": torch.get_rng_state()}

    def save(self) -> dict[str, Any]:
        """Through a file, without a pickle."""
        file = io.BytesIO()
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sgd": self.sgd.state_dict(),
            "rng": torch.get_rng_state(),
        }
        torch.save(state, file)
        file.seek(0)
        loaded: dict[str, Any] = torch.load(file, weights_only=True)
        return loaded

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sgd.load_state_dict(state["sgd"])
        torch.set_rng_state(state["rng"])


def assert_same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different, f"not the same to the bit: {', '.join(different)}"


_EVERY_STEP = CriteriaMeter(every=1, consecutive=True, alerts=None)
_PROBED = CriteriaMeter(every=1, probe=dropout(0.5), alerts=None)


@final
class AlwaysMeasuring:
    """The criteria of what is trained and of a probe, at every step, by a meter that is careless with the generator:
    it is the driver that keeps law 4."""

    def requests(self, context: Context, trained: Branch) -> Sequence[GradientRequest]:
        torch.rand(2)
        return [*_PROBED.requests(context, trained), *_EVERY_STEP.requests(context, trained)]

    def measure(self, sight: GradientPair) -> Criteria | None:
        torch.rand(3)
        return _EVERY_STEP.measure(sight)


def failing_after(closure: Callable[[], Tensor], passes: int) -> Callable[[], Tensor]:
    left = passes

    def run() -> Tensor:
        nonlocal left
        loss = closure()
        if left == 0:
            raise ZeroDivisionError("inside the closure")
        left -= 1
        return loss

    return run


def measured_of(run: Run) -> dict[str, str]:
    """What the meters remember; tensors and floats as they are written out in full."""
    found = {f"{who} {key}": value for who, memory in run.sgd.measured.items() for key, value in memory.items()}
    return {key: repr(v.tolist() if isinstance(v, Tensor) else v) for key, v in found.items()}


def parameters_of(run: Run) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}


def optimizer_tensors_of(run: Run) -> dict[str, Tensor]:
    return {name: value for name, value in run.tensors().items() if name.startswith("optimizer.")}


def coordinates_of(run: Run) -> dict[tuple[str, str], Tensor]:
    found: dict[tuple[str, str], Tensor] = {}
    for name, p in run.sgd.parameters.items():
        found[name, ""] = p.detach().clone()
        for key, value in per_coordinate(run.optimizer.state.get(p, {}), p).items():
            found[name, key] = value.detach().clone()
    return found


def scalars_of(run: Run) -> dict[str, dict[str, float]]:
    return {
        name: {
            k: float(v)
            for k, v in run.optimizer.state.get(p, {}).items()
            if isinstance(v, (int, float)) or (isinstance(v, Tensor) and v.numel() == 1 and v.shape != p.shape)
        }
        for name, p in run.sgd.parameters.items()
    }


def outside_of(mask: Mask, name: str, like: Tensor) -> Tensor:
    entry = mask[name]
    return ~entry if isinstance(entry, Tensor) else torch.full_like(like, not entry, dtype=torch.bool)
