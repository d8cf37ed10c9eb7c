"""The mean of a loss over batches, with gradients and Hessian-vector products that leave the model unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from partialsgd._util.randomness import key
from partialsgd._util.snapshots import Buffers, Modes, RandomState
from partialsgd.parameters import parameters_of, require_strided

Loss: TypeAlias = Callable[[Any], Tensor]

_NO_SECOND_DERIVATIVE = ("derivative", "double backward", "donated buffers", "differentiate twice")


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restore generators, buffers, training modes and `.grad` on exit, so that gradients can be computed inside."""
    noise, modes, buffers = RandomState(model), Modes(model), Buffers(model)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    torch.clear_autocast_cache()  # a weight may have changed since it was cast
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.clear_autocast_cache()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        buffers.restore()
        modes.restore()
        noise.restore()


@final
class Objective:
    """The loss over a list of batches. Batch k sees the same dropout noise and the same buffers every time.

    Parameters with `requires_grad=False` are constants, and a tied parameter counts once. The batches stay in memory.
    """

    def __init__(self, model: nn.Module, loss: Loss, batches: Iterable[Any], *, seed: int = 0) -> None:
        self.model, self.all_parameters = model, parameters_of(model)
        self.parameters = {name: p for name, p in self.all_parameters.items() if p.requires_grad}
        if not self.parameters:
            raise ValueError("the model has no parameter with requires_grad=True: there is no gradient to measure")
        with undisturbed(model):  # a DataLoader draws its order from the global generator
            self.batches = list(batches)
        if not self.batches:
            raise ValueError("batches is empty; give a list of some batches, each as loss(batch) takes it")
        self._loss, self._seed = loss, seed

    def __len__(self) -> int:
        return len(self.batches)

    def gradient(self, k: int) -> tuple[float, dict[str, Tensor]]:
        """Return f_k and ∇f_k, with zeros for parameters that the loss does not use."""
        with undisturbed(self.model):
            loss = self._evaluate(k)
            return float(loss.detach()), self._filled(self._differentiate(k, loss))

    def product(self, k: int, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ∇²f_k v. Attention uses the math kernel, because torch's fused kernels have no second derivative."""
        with undisturbed(self.model), _second_derivatives(), sdpa_kernel(SDPBackend.MATH):
            first = self._differentiate(k, self._evaluate(k), create_graph=True)
            curved = {name: g for name, g in first.items() if g is not None and g.requires_grad}
            _refuse_once_differentiable(curved.values())
            parameters, v = list(self.parameters.values()), [vector[name] for name in curved]
            second = torch.autograd.grad(list(curved.values()), parameters, v, allow_unused=True)
        return self._filled(dict(zip(self.parameters, second, strict=True)))

    def _evaluate(self, k: int) -> Tensor:
        _seed(self.model, key(self._seed, "batch", k))
        loss = self._loss(self.batches[k])
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss(batch) must return a tensor to differentiate, got {type(loss).__name__}")
        if loss.numel() != 1:
            raise ValueError(f"loss(batch) must return one number, got the shape {tuple(loss.shape)}; take its mean")
        if not math.isfinite(value := float(loss.detach())):
            raise ValueError(f"the loss of batch {k} is {value}; constants can be measured where it is finite")
        if not loss.requires_grad:
            raise ValueError("the loss has no gradient: loss(batch) must run this model, without no_grad or detach")
        return loss.reshape(())

    def _differentiate(self, k: int, loss: Tensor, *, create_graph: bool = False) -> dict[str, Tensor | None]:
        parameters = list(self.parameters.values())
        try:
            gradients = torch.autograd.grad(loss, parameters, create_graph=create_graph, allow_unused=True)
        except RuntimeError as error:
            if "a second time" in str(error):
                raise RuntimeError("loss(batch) has called backward itself; let it return the loss only") from error
            raise
        if all(gradient is None for gradient in gradients):
            raise ValueError(f"the loss of batch {k} depends on no parameter of the model: loss(batch) must run it")
        return dict(zip(self.parameters, gradients, strict=True))

    def _filled(self, tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        for name, tensor in tensors.items():
            if tensor is not None:
                require_strided(name, tensor)
        return {
            name: torch.zeros_like(p, requires_grad=False) if (t := tensors[name]) is None else t.detach()
            for name, p in self.parameters.items()
        }


@contextmanager
def _second_derivatives() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error) for words in _NO_SECOND_DERIVATIVE):
            raise
        raise NotImplementedError(
            f"L needs second derivatives, and a part of the model has none: {error}. Let loss(batch) call the model "
            "as it is before torch.compile, without fused kernels (attention: SDPBackend.MATH), or give smoothness=…"
        ) from error


def _refuse_once_differentiable(first: Iterable[Tensor]) -> None:
    """Raise for @once_differentiable: torch puts an error node into the graph where autograd.grad does not see it."""
    waiting = [tensor.grad_fn for tensor in first]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if node.name() == "torch::autograd::Error":
            raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")
        new = {after for after, _ in node.next_functions} - seen
        seen |= new
        waiting.extend(new)


def inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Return ⟨a, b⟩, summed in double precision."""
    return sum(float((a[name].double() * b[name].double()).sum()) for name in a)


def _seed(model: nn.Module, seed: int) -> None:
    """Seed only the generators that `RandomState` restores: torch.manual_seed would seed every GPU."""
    torch.default_generator.manual_seed(seed)
    for device in {p.device for p in model.parameters() if p.device.type == "cuda"}:
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
