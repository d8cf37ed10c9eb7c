"""Where the largest |x| are: what the pruning methods keep, and how they remember it between two choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from partialsgd import perturbations
from partialsgd.masks import Mask
from partialsgd.method import Context
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation

Scope = Literal["global", "layer"]
Unit = Literal["weights", "rows"]
_PREFIX = "magnitudes."


def largest(numbers: Mapping[str, Tensor], k: int) -> dict[str, Tensor]:
    """Where the k largest magnitudes of all tensors together are; of equal ones the first are taken.

    Hence a smaller k always gives a part of what a larger one gives.
    """
    device = next(iter(numbers.values())).device if numbers else None
    magnitude = torch.cat([x.detach().abs().reshape(-1).to(device) for x in numbers.values()] or [torch.zeros(0)])
    parts = torch.split(_top(magnitude, k), [x.numel() for x in numbers.values()])
    return {name: part.view(x.shape) for (name, x), part in zip(numbers.items(), parts, strict=True)}


def kept(
    parameters: Parameters,
    sparsity: float,
    *,
    scope: Scope = "global",
    unit: Unit = "weights",
    where: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Boolean tensors, by name: False at the share `sparsity` with the smallest magnitude, round(sparsity · n) in all.

    n counts weights, or rows, which are compared by their norms and go as a whole; over all tensors together, or
    with `scope="layer"` in each. At least one stays. Only parameters with two or more dimensions are looked at, by
    default all that are trainable.
    """
    if sparsity == 0:
        return {}
    names = _prunable(parameters, where)
    numbers = {name: _norms(parameters[name]) if unit == "rows" else parameters[name] for name in names}
    groups = [numbers] if scope == "global" else [{name: x} for name, x in numbers.items()]
    found: dict[str, Tensor] = {}
    for group in groups:
        n = sum(x.numel() for x in group.values())
        found |= largest(group, max(1, n - round(sparsity * n)))  # a layer without weights would end the network
    return {name: _like(inside, parameters[name]) for name, inside in found.items()}


def remembered(context: Context, since: int, choose: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What was chosen at t = `since`: chosen then, in memory after it, and replaced when `since` is another."""
    if context.memory.get(f"{_PREFIX}since") != since:
        chosen = choose()
        forgotten(context)
        context.memory.update({f"{_PREFIX}of.{name}": tensor for name, tensor in chosen.items()})
        context.memory[f"{_PREFIX}since"] = since
    found = {name: context.memory.get(f"{_PREFIX}of.{name}") for name in context.parameters}
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


def forgotten(context: Context) -> None:
    """Nothing is remembered any more."""
    for key in [key for key in context.memory if key.startswith(_PREFIX)]:
        del context.memory[key]


def drop(mask: Mask) -> Perturbation:
    """δx = −(1 − m) ⊙ x, for an m that is not the mask of the step and so is not released by it."""
    mask = mask.simplified()
    dropping = perturbations.drop_outside(mask)

    def move(parameters: Parameters) -> None:
        dropping.move(parameters)
        mask.release()

    return perturbations.function(dropping.touches, move)


def require_sparsity(sparsity: float) -> None:
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must be in [0, 1), got {sparsity}; 0 is plain training")


def require_scope(scope: str) -> None:
    if scope not in get_args(Scope):
        raise ValueError(f"scope must be one of {', '.join(get_args(Scope))}; got {scope!r}")


def require_unit(unit: str) -> None:
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}; got {unit!r}")


def _top(magnitude: Tensor, k: int) -> Tensor:
    if not 0 < k < len(magnitude):
        return torch.full_like(magnitude, k > 0, dtype=torch.bool)
    threshold = magnitude.topk(k, sorted=False).values.amin()
    inside = ~(magnitude < threshold)  # a NaN stays inside, where it is noticed
    if (surplus := int(inside.count_nonzero()) - k) > 0:
        inside[(magnitude == threshold).nonzero()[-surplus:]] = False
    return inside


def _prunable(parameters: Parameters, where: Sequence[str] | None) -> list[str]:
    names = [n for n, p in parameters.items() if p.requires_grad] if where is None else parameters.match(where)
    if not (matrices := [name for name in names if parameters[name].ndim >= 2]):
        which = "no trainable parameter" if where is None else f"none that {where!r} covers"
        raise ValueError(f"weights are pruned in parameters with two or more dimensions, and {which} has so many")
    return matrices


def _norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x.detach().flatten(1), dim=1)
    return norms


def _like(inside: Tensor, x: Tensor) -> Tensor:
    return inside.view(-1, *[1] * (x.ndim - 1)).expand(x.shape).contiguous() if inside.ndim < x.ndim else inside
