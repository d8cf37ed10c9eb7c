"""Gradients by parameter name (g): moved out of `.grad`, masked, added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from partialsgd._util import shards
from partialsgd.masks import Mask
from partialsgd.parameters import Parameters, require_strided

_SMALL = 1 << 15
_PIECE = 1 << 17
_ALIGNMENT = 64  # bytes; of torch's own allocations on a CPU
_DOT = 1 << 14  # with more, some processors' dot products lose the seventh digit


@final
class Vector(dict[str, Tensor]):
    """A gradient by parameter name, read-only. A parameter that took no part in the pass has no entry."""

    _norm: float | None = None

    def norm(self) -> float:
        """‖g‖ over all parameters; computed once."""
        if self._norm is None:
            self._norm = _norm(list(self.values())) if self else 0.0
        return self._norm


def current(parameters: Parameters) -> Vector:
    """The gradients that are in `.grad` now; a sparse one raises."""
    gradients = Vector({name: p.grad for name, p in parameters.items() if p.grad is not None})
    if any(gradient.layout is not torch.strided for gradient in gradients.values()):
        for name, gradient in gradients.items():
            require_strided(name, gradient)
    return gradients


def take(parameters: Parameters, *, clone: bool) -> Vector:
    """Move the gradients out of `.grad`; `clone` where `.grad` is a view that the next backward overwrites."""
    gradients = current(parameters)
    put(parameters, {})
    return Vector({name: g.clone() for name, g in gradients.items()}) if clone else gradients


def put(parameters: Parameters, gradient: Mapping[str, Tensor]) -> None:
    """Set every `.grad`, to None where the gradient has no entry."""
    for name, parameter in parameters.items():
        parameter.grad = gradient.get(name)


@torch.no_grad()
def inner(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ in double precision, left on the device. It is summed in pieces: single precision is enough for a piece,
    and on a CPU five times as fast. Of sharded tensors give the parts, and add the results up: see `add_up`."""
    if a.dtype in (torch.float16, torch.bfloat16):
        a, b = a.float(), b.float()  # a product in half precision would lose most of its digits
    if a.device.type != "cpu":
        return (a * b).sum(dtype=torch.float64)
    a, b = _aligned(a), _aligned(b)
    return torch.stack([torch.dot(x, y) for x, y in _pieces(a, b, _DOT)]).sum(dtype=torch.float64)


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it that begins where the allocator would begin it.

    The last digits of a dot product depend on the address. Gradients that are views of data-parallel buckets lie at
    other addresses in the first steps of a process, so a resumed run would measure other numbers.
    """
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def total(squares: Sequence[Tensor], of: Iterable[Tensor] = ()) -> float | Tensor:
    """The sum of numbers that may lie on several devices, left on the first one's. `of` has the tensors that they were
    computed from: where these are sharded, the sum is over all ranks."""
    if not squares:
        return 0.0
    numbers = torch.stack([s.to(squares[0].device) for s in squares])
    return add_up(numbers, list(of)).sum()


def add_up(numbers: Tensor, of: Sequence[Tensor]) -> Tensor:
    """Add the k-th number, or row of numbers, over the ranks that share the k-th tensor; see `shards.add_up`."""
    return shards.add_up(numbers, of) if any(map(shards.is_sharded, of)) else numbers


@torch.no_grad()
def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """‖a − b‖² in double precision, left on the device; on a CPU without a copy of the whole difference."""
    if a.device.type != "cpu":
        return inner(difference := a.float() - b.float(), difference)
    return torch.stack([inner(d := x - y, d) for x, y in _pieces(a, b, _PIECE)]).sum()


def _pieces(a: Tensor, b: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(a.reshape(-1), size), torch.split(b.reshape(-1), size), strict=True)


@torch.no_grad()
def masked_products(mask: Mask, names: Iterable[str], at_x: Vector, at_perturbed: Vector) -> list[dict[str, Tensor]]:
    """Return, for each parameter, ‖G‖² and the squared norms and the inner product of p ⊙ G and p ⊙ G̃.

    A row leaves out what is zero. The numbers are double-precision scalars, left on the device. Of sharded parameters
    they are the sums over this rank's parts: see `add_up`.
    """
    if mask.parameters.is_sharded:
        at_x, at_perturbed = Vector(shards.local_values(at_x)), Vector(shards.local_values(at_perturbed))
    return [_products(mask, name, at_x.get(name), at_perturbed.get(name)) for name in names]


def _products(mask: Mask, name: str, g: Tensor | None, h: Tensor | None) -> dict[str, Tensor]:
    if g is None:
        return {}
    entry, products = mask.entries[name], {"whole": inner(g, g)}
    if entry is False:
        return products
    if isinstance(entry, Tensor):
        return products | _partly_masked_products(mask, name, g, h)
    products["masked"] = products["whole"]
    if h is g:
        return products | _products_of_equal(products["masked"])
    if h is not None:
        products |= {"perturbed": inner(h, h), "inner": inner(g, h), "difference": squared_distance(h, g)}
    return products


def _partly_masked_products(mask: Mask, name: str, g: Tensor, h: Tensor | None) -> dict[str, Tensor]:
    scratch, selection = mask.parameters.scratch, mask.selection(name)
    inside = scratch.borrow(g)  # one buffer for p ⊙ G, p ⊙ G̃ and their difference
    selection.keep_inside(inside.copy_(g))
    products = {"masked": inner(inside, inside)}
    if h is g:
        products |= _products_of_equal(products["masked"])
    elif h is not None:
        products["inner"] = inner(inside, h)
        selection.keep_inside(inside.copy_(h))
        products["perturbed"] = inner(inside, inside)
        selection.keep_inside(torch.sub(h, g, out=inside))
        products["difference"] = inner(inside, inside)
    scratch.give_back(inside)
    return products


def _products_of_equal(square: Tensor) -> dict[str, Tensor]:
    return {"perturbed": square, "inner": square, "difference": torch.zeros_like(square)}


@torch.no_grad()
def add(total: dict[str, Tensor], gradient: Mapping[str, Tensor], weight: float) -> None:
    """total ← total + weight · gradient, reusing the gradient's own memory for new entries."""
    if weight != 1 and gradient:
        torch._foreach_mul_(shards.locals_of(gradient.values()), weight)
    old = [name for name in gradient if name in total]
    if old:
        torch._foreach_add_(*(shards.locals_of(vector[name] for name in old) for vector in (total, gradient)))
    total.update({name: g for name, g in gradient.items() if name not in total})


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """‖g‖ as `torch.nn.utils.get_total_norm` computes it; of sharded gradients over all ranks."""
    if any(map(shards.is_sharded, gradients)):
        return torch.as_tensor(total([inner(g, g) for g in shards.locals_of(gradients)], gradients)).sqrt()
    return torch.nn.utils.get_total_norm(gradients)


@torch.no_grad()
def clip(parameters: Parameters, max_norm: float, norm: Tensor) -> None:
    """Scale the gradients in `.grad`, whose norm is `norm`, down to `max_norm` if they are longer."""
    if parameters.is_sharded:
        factor = float((max_norm / (norm + 1e-6)).clamp(max=1.0))
        torch._foreach_mul_(shards.locals_of(current(parameters).values()), factor)
    else:
        torch.nn.utils.clip_grads_with_norm_(parameters.values(), max_norm, norm)


def _norm(gradients: Sequence[Tensor]) -> float:
    """‖g‖. A norm over a whole tensor runs on one thread of a CPU, norms of its rows on all."""
    if any(map(shards.is_sharded, gradients)):
        return float(total_norm(gradients))
    if any(g.device.type != "cpu" for g in gradients):
        return float(torch.nn.utils.get_total_norm(gradients))
    rows = [torch.linalg.vector_norm(g, dim=-1) if g.numel() >= _SMALL and g.ndim > 1 else g for g in gradients]
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(r).double() for r in rows])))
