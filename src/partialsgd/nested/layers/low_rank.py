"""(VU + W)x + b: a layer with a layer of low rank inside it (equation LFC), or beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from partialsgd._util import randomness
from partialsgd.nested.layers.base import NestedLayer
from partialsgd.nested.layers.linear_maps import LinearMap, parameter_like
from partialsgd.nested.switch import Switch

Init = Literal["svd", "matched", "zero"]
FullWeight = Literal["sum", "own"]
"""The weight of the full level: W + VU, or W alone."""
_WITHOUT_VALUES = {
    *(getattr(Tensor, name).__get__ for name in ("dtype", "shape", "device", "layout", "ndim", "is_cuda")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point),
}


@final
class LowRankLayer(NestedLayer):
    """The full level multiplies by VU + W, a level of rank k by the first k columns of V and rows of U.

    The bias is shared. U and V are stored in blocks, one for the ranks that each level adds. With `full="own"` the full
    level multiplies by `own_weight` alone, which starts as the weight of the layer. It is not called W, so that the
    state of a sum W + VU does not fit it.
    """

    spec_name = "LowRank"

    U0: nn.Parameter
    V0: nn.Parameter
    W: nn.Parameter
    own_weight: nn.Parameter
    bias: nn.Parameter | None
    has_own_weight = False
    """True if the full level multiplies by a weight of its own."""

    def __init__(
        self,
        layer: nn.Module,
        linear: LinearMap,
        ranks: Mapping[str, int],
        switch: Switch,
        *,
        init: Init,
        full: FullWeight,
        key: int,
    ) -> None:
        bounds = [0, *sorted(set(ranks.values()))]
        counts = {level: bounds.index(rank) for level, rank in ranks.items()}
        super().__init__(switch, {level: counts.get(level, len(bounds) - 1) for level in switch.levels})
        self.linear, self.bounds, self.low_rank_levels = linear, bounds, frozenset(ranks)
        self.has_own_weight = full == "own"
        weight = layer.get_parameter("weight")
        u, v, w = _initial_factors(linear.weight_of(layer), bounds, init, key)
        for i, (low, high) in enumerate(itertools.pairwise(bounds)):
            self.register_parameter(f"U{i}", parameter_like(weight, u[low:high]))
            self.register_parameter(f"V{i}", parameter_like(weight, v[:, low:high]))
        if self.has_own_weight:
            self.register_parameter("own_weight", parameter_like(weight, linear.weight_of(layer).clone()))
        else:
            self.register_parameter("W", parameter_like(weight, w))
        self.register_parameter("bias", layer._parameters["bias"])

    def forward(self, x: Tensor) -> Tensor:
        return self.run_in_shares(x) if self._modules else self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        level, linear = self.switch.level, self.linear
        is_low_rank = level in self.low_rank_levels
        # W + VU costs k · in · out, two products k · (in + out) at each position
        if not is_low_rank and (self.has_own_weight or linear.is_worth_merging(x)):
            return linear.apply(x, self._dense(level), self.bias)
        u, v = self._factors(level)
        if is_low_rank:
            return linear.apply_pointwise(linear.apply(x, u, None), v, self.bias)
        return linear.apply(x, self.W, self.bias) + linear.apply_pointwise(linear.apply(x, u, None), v, None)

    @property
    def weight(self) -> Tensor:
        """The matrix of the level; it is computed when more than its shape, dtype or device is used."""
        if torch.compiler.is_compiling():
            return self.weight_at(self.switch.level)
        stored = self._of_full_size()
        return LazyWeight(stored, self.linear.stored(stored).shape, partial(self.weight_at, self.switch.level))

    def weight_at(self, level: str) -> Tensor:
        return self.linear.stored(self._dense(level))

    def sizes_at(self, level: str) -> tuple[int, int]:
        return self.linear.outputs, self.linear.inputs

    def members(self, level: str) -> Iterator[nn.Parameter]:
        is_low_rank = level in self.low_rank_levels
        count = self.block_counts[level] if is_low_rank or not self.has_own_weight else 0
        for u, v in zip(self.blocks("U", count), self.blocks("V", count), strict=True):
            yield from (u, v)
        if not is_low_rank:
            yield self._of_full_size()
        if self.bias is not None:
            yield self.bias

    def extracted_members(self, level: str) -> Iterator[nn.Parameter]:
        """Yield W and the bias at full, where VU is merged into W if the full level uses it."""
        if level in self.low_rank_levels:
            return self.members(level)
        stored = self._of_full_size()
        return iter([stored] if self.bias is None else [stored, self.bias])

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        if level not in self.low_rank_levels:
            return self.linear.build(self._dense(level), self.bias)
        u, v = self._factors(level)
        pair = nn.Sequential(self.linear.build(u, None), self.linear.build_pointwise(v, self.bias))
        # T5 and patch embeddings read the dtype or device of a layer's `weight`, which a Sequential does not have.
        pair.register_buffer("weight", u.new_empty(0).detach(), persistent=False)
        linear = self.linear
        sizes = ("channels", "features")[linear.kind != "conv2d"]
        attributes = {f"in_{sizes}": linear.inputs, f"out_{sizes}": linear.outputs, **linear.attributes}
        # Plain attributes, so that the bias is not registered twice.
        vars(pair).update(attributes, bias=pair[1].bias)
        return pair

    def describe(self) -> str:
        ranks = ", ".join(str(rank) for rank in self.bounds[1:])
        own = ", the full level has a weight of its own" if self.has_own_weight else ""
        return f"rank {ranks} of {self.linear.full_rank} ({self.linear.inputs} → {self.linear.outputs}){own}"

    def _factors(self, level: str) -> tuple[Tensor, Tensor]:
        count = self.block_counts[level]
        if count == 1:
            return self.U0, self.V0
        return torch.cat(tuple(self.blocks("U", count))), torch.cat(tuple(self.blocks("V", count)), 1)

    def _dense(self, level: str) -> Tensor:
        """Return the matrix that the level multiplies by: VU, W + VU, or W."""
        is_low_rank = level in self.low_rank_levels
        if self.has_own_weight and not is_low_rank:
            return self.own_weight
        u, v = self._factors(level)
        dense = v @ u.flatten(1) if is_low_rank else torch.addmm(self.W.flatten(1), v, u.flatten(1))
        return dense.view_as(self._of_full_size())

    def _of_full_size(self) -> nn.Parameter:
        """Return the parameter that has the size of the layer's weight."""
        return self.own_weight if self.has_own_weight else self.W


def _initial_factors(weight: Tensor, bounds: list[int], init: Init, key: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, V and W for a weight. Ranks beyond the smallest level's start without effect, unless by SVD."""
    matrix, first, rank = weight.flatten(1), bounds[1], bounds[-1]
    if init == "svd":
        exact = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        left, singular, right = torch.linalg.svd(exact, full_matrices=False)
        root = singular[:rank].sqrt()
        u, v = (root[:, None] * right[:rank]).to(matrix), (left[:, :rank] * root).to(matrix)
    else:
        u_std, v_std = _initial_stds(weight, first, init)
        u = _uniform(rank, matrix.shape[1], u_std, randomness.key(key, "U")).to(matrix)
        v = _uniform(matrix.shape[0], rank, v_std, randomness.key(key, "V")).to(matrix)
        v[:, first:] = 0
    product = (v @ u).view_as(weight)
    return u.view(rank, *weight.shape[1:]), v, torch.zeros_like(weight) if init == "zero" else weight - product


def _initial_stds(weight: Tensor, rank: int, init: Init) -> tuple[float, float]:
    """Return the standard deviations of U and V."""
    if init == "zero":  # as Xavier initialises two layers
        outputs, inputs, positions = weight.shape[0], weight.shape[1], weight[0, 0].numel()
        return math.sqrt(2 / (positions * (inputs + rank))), math.sqrt(2 / (rank + outputs))
    std = (weight.flatten(1).float().pow(2).mean().item() / rank) ** 0.25  # Var(VU) = k Var(V) Var(U) is Var(W₀)
    return std, std


def _uniform(rows: int, columns: int, std: float, key: int) -> Tensor:
    generator = torch.Generator().manual_seed(key)
    return (torch.rand(rows, columns, generator=generator, device="cpu") * 2 - 1) * (math.sqrt(3) * std)


@final
class LazyWeight(Tensor):
    """A weight that is computed when its values are used: T5 reads a dtype at each call, which should cost nothing."""

    compute: Callable[[], Tensor]

    @staticmethod
    def __new__(cls, like: Tensor, shape: Sequence[int], compute: Callable[[], Tensor]) -> LazyWeight:
        lazy: LazyWeight = Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)
        lazy.compute = compute
        return lazy

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function in _WITHOUT_VALUES:
            default = super().__torch_function__
            return default(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # untyped in torch
        args, kwargs = tree_map(_computed, (args, dict(kwargs or {})))
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub says a plain function, its docs a class method
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map(_computed, (args, dict(kwargs or {})))
        return function(*args, **kwargs)


def _computed(value: Any) -> Any:
    if not isinstance(value, LazyWeight):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        compute = value.compute
    return compute()
