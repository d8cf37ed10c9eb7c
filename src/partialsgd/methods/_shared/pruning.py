"""Pruning by magnitude: which weights are the largest, and the choice kept in memory until the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from partialsgd import masks, perturbations
from partialsgd._util import shards
from partialsgd._util.bitwise_select import over_rows
from partialsgd.masks import Mask
from partialsgd.method import Context
from partialsgd.methods._shared.settings import require_one_of
from partialsgd.methods._shared.sharded_top_k import largest_sharded
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation

Scope = Literal["global", "layer"]
Unit = Literal["weights", "rows"]
_PREFIX = "magnitudes."


@final
@dataclass(frozen=True)
class Pruning:
    """Selects the smallest weights, or rows by their norms, over all tensors together or with "layer" in each.

    Only parameters with two or more dimensions are pruned, by default all that are trainable.
    """

    scope: Scope = "global"
    unit: Unit = "weights"
    where: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_one_of("scope", self.scope, Scope)
        require_one_of("unit", self.unit, Unit)

    def keep(self, parameters: Parameters, sparsity: float) -> dict[str, Tensor]:
        """Return boolean tensors by name, False at round(sparsity · n) of n weights or rows; at least one stays."""
        if sparsity == 0:
            return {}
        scores = {name: parameters[name].detach() for name in self._prunable(parameters)}
        if self.unit == "rows":
            scores = {name: shards.elementwise(_row_norms, x) for name, x in scores.items()}
        chosen: dict[str, Tensor] = {}
        for group in [scores] if self.scope == "global" else [{name: score} for name, score in scores.items()]:
            n = sum(score.numel() for score in group.values())
            chosen |= largest(group, max(1, n - round(sparsity * n)))  # a layer without weights would end the network
        if self.unit == "weights":
            return chosen
        return {name: _over_rows(rows, parameters[name]) for name, rows in chosen.items()}

    def _prunable(self, parameters: Parameters) -> list[str]:
        trainable = [name for name, p in parameters.items() if p.requires_grad]
        names = trainable if self.where is None else parameters.match(self.where)
        if not (matrices := [name for name in names if parameters[name].ndim >= 2]):
            which = "no trainable parameter" if self.where is None else f"none that {self.where!r} covers"
            raise ValueError(f"only parameters with two or more dimensions are pruned, and {which} has two")
        return matrices


def _row_norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return norms


def _over_rows(rows: Tensor, parameter: Tensor) -> Tensor:
    part = shards.local(parameter)
    return shards.from_part(parameter, over_rows(shards.local(rows), part.shape).contiguous())


def largest(scores: Mapping[str, Tensor], k: int) -> dict[str, Tensor]:
    """Return True at the k largest magnitudes of all tensors together; of equal ones the first are taken.

    Hence a smaller k always gives a part of what a larger one gives.
    """
    if any(map(shards.is_sharded, scores.values())):
        return largest_sharded(scores, k)
    device = next(iter(scores.values())).device if scores else None
    magnitude = torch.cat([x.detach().abs().reshape(-1).to(device) for x in scores.values()] or [torch.zeros(0)])
    if not 0 < k < len(magnitude):
        inside = torch.full_like(magnitude, k > 0, dtype=torch.bool)
    else:
        threshold = magnitude.topk(k, sorted=False).values.amin()
        inside = ~(magnitude < threshold)  # a NaN stays inside, where it is noticed
        surplus = inside.count_nonzero() - k
        if surplus.device.type != "cpu" or surplus > 0:  # elsewhere than on a CPU, to ask would be to wait
            is_equal = magnitude == threshold
            later = is_equal.count_nonzero() - is_equal.cumsum(0)  # the number of equals that come after each
            inside &= ~is_equal | (later >= surplus)
    parts = torch.split(inside, [x.numel() for x in scores.values()])
    return {name: part.view(x.shape) for (name, x), part in zip(scores.items(), parts, strict=True)}


def chosen_at(context: Context, t: int, choose: Callable[[], Mapping[str, Tensor]], *, level: int = 1) -> Mask:
    """Return the choice of step `t`, which is made when it is first asked for and kept in memory until another is.

    Where `choose` counts the levels that keep a weight, the mask is that of the weights that `level` of them keep.
    """
    if context.memory.get(f"{_PREFIX}since") != t:
        choice = choose()
        forget_choice(context)
        context.memory.update({f"{_PREFIX}of.{name}": tensor for name, tensor in choice.items()})
        context.memory[f"{_PREFIX}since"] = t
    stored = {name: context.memory.get(f"{_PREFIX}of.{name}") for name in context.parameters}
    chosen = {name: tensor for name, tensor in stored.items() if isinstance(tensor, Tensor)}
    cache, key = context.parameters.cache, (_PREFIX, level)
    if key not in cache or list(map(id, cache[key][0].values())) != list(map(id, chosen.values())):
        # Whether a tensor is kept whole is asked once for each choice: on an accelerator the host waits for it.
        entries = {name: m if m.dtype is torch.bool else m >= level for name, m in chosen.items()}
        cache[key] = chosen, masks.from_tensors(context.parameters, entries, rest=True).simplified().assume_mixed()
    mask: Mask = cache[key][1]
    return mask


def forget_choice(context: Context) -> None:
    for key in [key for key in context.memory if key.startswith(_PREFIX)]:
        del context.memory[key]


def drop(mask: Mask) -> Perturbation:
    """δx = −(1 − m) ⊙ x, for an m that is not the mask of the step, so that the step does not free its memory."""
    dropping = perturbations.drop_outside(mask)

    def move(parameters: Parameters) -> None:
        dropping.move(parameters)
        mask.release()

    return perturbations.function(dropping.touches, move)


def require_sparsity(sparsity: float) -> None:
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must be in [0, 1), got {sparsity}; 0 is plain training")
