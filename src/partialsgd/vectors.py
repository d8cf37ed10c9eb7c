"""g: gradients by name; moved out of `.grad`, checked, masked, added."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from partialsgd._util.bitwise_select import rows_of
from partialsgd.masks import Mask
from partialsgd.parameters import Parameters, require_strided

_SMALL = 1 << 15
_PIECE = 1 << 17
_DOT = 1 << 14  # with more, some processors' dot products lose the seventh digit


@final
class Vector(Mapping[str, Tensor]):
    """A gradient by name; a parameter that took no part has no entry. Its norm is computed once."""

    def __init__(self, entries: Mapping[str, Tensor]) -> None:
        self._entries = entries
        self._norm: float | None = None

    def __getitem__(self, name: str) -> Tensor:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def norm(self) -> float:
        """‖g‖, over all parameters."""
        if self._norm is None:
            self._norm = _norm(list(self._entries.values())) if self._entries else 0.0
        return self._norm


def current(parameters: Parameters) -> dict[str, Tensor]:
    """The gradients that lie in `.grad` now."""
    found = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    if any(gradient.layout is not torch.strided for gradient in found.values()):
        for name, gradient in found.items():
            require_strided(name, gradient)
    return found


def take(parameters: Parameters, *, clone: bool) -> Vector:
    """Move the gradients out of `.grad`; `clone` where `.grad` is a view that the next backward overwrites."""
    found = current(parameters)
    clear(parameters.values())
    return Vector({name: g.clone() if clone else g for name, g in found.items()})


def put(parameters: Parameters, gradient: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.grad = gradient.get(name)


def clear(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


@torch.no_grad()
def inner(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ as a number in double precision that waits on the device. Added up in pieces: single precision is enough
    for a piece, and on a CPU five times as fast."""
    if a.dtype in (torch.float16, torch.bfloat16):
        a, b = a.float(), b.float()  # a product in half precision would lose most of its digits
    if a.device.type != "cpu":
        return (a * b).sum(dtype=torch.float64)
    return torch.stack([torch.dot(x, y) for x, y in _pieces(a, b, _DOT)]).sum(dtype=torch.float64)


@torch.no_grad()
def apart(a: Tensor, b: Tensor) -> Tensor:
    """‖a − b‖², in the same way; on a CPU without a copy of the whole."""
    if a.device.type != "cpu":
        return inner(difference := a.float() - b.float(), difference)
    return torch.stack([inner(d := x - y, d) for x, y in _pieces(a, b, _PIECE)]).sum()


def _pieces(a: Tensor, b: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(a.reshape(-1), size), torch.split(b.reshape(-1), size), strict=True)


@torch.no_grad()
def mask_(parameters: Parameters, mask: Mask, *, elements: bool = True) -> None:
    """g ← p ⊙ g in `.grad`; a tensor wholly outside gets None, because a zero gradient is not a mask."""
    for name, entry in mask.items():
        if entry is True:
            continue
        parameter = parameters[name]
        if entry is False:
            parameter.grad = None
        elif elements and parameter.grad is not None:
            require_strided(name, parameter.grad)
            mask.selection(name).keep_inside(parameter.grad)


@torch.no_grad()
def add(total: dict[str, Tensor], gradient: Mapping[str, Tensor], weight: float) -> None:
    """total ← total + weight · gradient, reusing the gradient's own memory for new entries."""
    if weight != 1 and gradient:
        torch._foreach_mul_(list(gradient.values()), weight)
    old = [name for name in gradient if name in total]
    if old:
        torch._foreach_add_([total[name] for name in old], [gradient[name] for name in old])
    total.update({name: g for name, g in gradient.items() if name not in total})


def are_finite(parameters: Parameters, mask: Mask | None = None) -> bool:
    """Whether no gradient in `.grad` holds a NaN or an infinity, in one pass; of a mask of rows those inside count.

    A sum is finite only if all its terms are; a finite gradient whose sum overflows is looked at again.
    """
    rows = {} if mask is None else {name: r for name, m in mask.partial.items() if (r := rows_of(m)) is not None}
    gradients = [p.grad if p.grad is None or name not in rows else p.grad[rows[name]] for name, p in parameters.items()]
    large, groups = parameters.once("sums", lambda: _by_size(parameters.values()))
    sums = [g.sum() for k in large if (g := gradients[k]) is not None]
    for group in groups:
        if alike := [g for k in group if (g := gradients[k]) is not None]:
            sums.append(torch.cat(alike).sum() if len(alike) > 1 else alike[0].sum())
    if all(math.isfinite(s) for s in _to_floats(sums)):
        return True
    return first_nonfinite(current(parameters)) is None


def first_nonfinite(gradients: Mapping[str, Tensor]) -> str | None:
    return next((name for name, g in gradients.items() if not bool(torch.isfinite(g).all())), None)


def _by_size(parameters: Collection[nn.Parameter]) -> tuple[list[int], list[list[int]]]:
    """Large parameters, and small ones in groups that are added up together without waking a second thread."""
    large: list[int] = []
    groups: dict[tuple[object, ...], list[list[int]]] = {}
    sizes = [p.numel() for p in parameters]
    for k, p in enumerate(parameters):
        if sizes[k] >= _SMALL or p.ndim == 0:
            large.append(k)
            continue
        alike = groups.setdefault((p.dtype, p.device, p.shape[1:]), [[]])
        if sum(sizes[other] for other in alike[-1]) + sizes[k] >= _SMALL:
            alike.append([])
        alike[-1].append(k)
    return large, [group for alike in groups.values() for group in alike]


def _norm(gradients: Sequence[Tensor]) -> float:
    """‖g‖. A norm over a whole tensor runs on one thread of a CPU, norms of its rows on all."""
    if any(g.device.type != "cpu" for g in gradients):
        return float(torch.nn.utils.get_total_norm(gradients))
    rows = [torch.linalg.vector_norm(g, dim=-1) if g.numel() >= _SMALL and g.ndim > 1 else g for g in gradients]
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(r).double() for r in rows])))


def _to_floats(sums: Sequence[Tensor]) -> list[float]:
    if len(sums) < 2 or sums[0].device.type == "cpu":
        return [float(s.abs()) for s in sums]
    return [float(x) for x in torch.stack([s.abs().to(torch.float64) for s in sums]).tolist()]
