"""f: the mean of a loss over batches, with its gradients and Hessian-vector products, taken without a trace."""

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
    """Gradients may be taken inside; generators, buffers, modes and `.grad` are afterwards what they were."""
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
    """Batch k draws the same noise (dropout) and finds the same buffers whenever it is asked for.

    Parameters with `requires_grad=False` are constants; a tied parameter is one. The batches are kept in memory.
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
        """f_k and ∇f_k; of a parameter that takes no part, zeros."""
        with undisturbed(self.model):
            loss = self._evaluate(k)
            return float(loss.detach()), self._filled(self._differentiate(k, loss))

    def product(self, k: int, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """∇²f_k v. Attention is computed in plain steps, because torch's fused ones have no second derivative."""
        with undisturbed(self.model), _second_derivatives(), sdpa_kernel(SDPBackend.MATH):
            first = self._differentiate(k, self._evaluate(k), create_graph=True)
            curved = {name: g for name, g in first.items() if g is not None and g.requires_grad}
            _refuse_once_differentiable(curved.values())
            wanted, v = list(self.parameters.values()), [vector[name] for name in curved]
            second = torch.autograd.grad(list(curved.values()), wanted, v, allow_unused=True)
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
        wanted = list(self.parameters.values())
        try:
            found = torch.autograd.grad(loss, wanted, create_graph=create_graph, allow_unused=True)
        except RuntimeError as error:
            if "a second time" in str(error):
                raise RuntimeError("loss(batch) has called backward itself; let it return the loss only") from error
            raise
        if all(gradient is None for gradient in found):
            raise ValueError(f"the loss of batch {k} depends on no parameter of the model: loss(batch) must run it")
        return dict(zip(self.parameters, found, strict=True))

    def _filled(self, found: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        for name, tensor in found.items():
            if tensor is not None:
                require_strided(name, tensor)
        return {
            name: torch.zeros_like(p, requires_grad=False) if (t := found[name]) is None else t.detach()
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
    """torch hangs an error into the graph, but beside the way to the parameters, where autograd.grad misses it."""
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
    """⟨a, b⟩, added up in double precision."""
    return sum(float((a[name].double() * b[name].double()).sum()) for name in a)


def _seed(model: nn.Module, seed: int) -> None:
    """Only the generators that `RandomState` puts back: torch.manual_seed would reach every GPU."""
    torch.default_generator.manual_seed(seed)
    for device in {p.device for p in model.parameters() if p.device.type == "cuda"}:
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
