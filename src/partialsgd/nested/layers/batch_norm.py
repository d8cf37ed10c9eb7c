"""BatchNorm in a family: one for each level (the paper's choice), or one that all share."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from partialsgd._util.snapshots import Buffers, Modes
from partialsgd.nested.layers.axes import Axis
from partialsgd.nested.layers.base import NestedModule, level_modules
from partialsgd.nested.layers.kinds import like
from partialsgd.nested.switch import FULL, Switch

Norms = Literal["separate", "shared"]
_STATISTICS = ("running_mean", "running_var")


@final
class SeparateNorm(NestedModule):
    """Each level has its own BatchNorm: affine parameters and statistics."""

    by = "norms"

    def __init__(self, norm: _BatchNorm, axis: Axis, levels: Sequence[str], switch: Switch) -> None:
        super().__init__()
        self.switch, self.axis, self.levels = switch, axis, tuple(levels)
        for level in self.levels:
            self.add_module(level, norm if level == FULL and axis.order is None else cut(norm, axis, level))

    def forward(self, x: Tensor) -> Tensor:
        norm = self._modules[self.switch.level]
        assert norm is not None  # every level that runs this layer has one
        y: Tensor = norm(x)
        return y

    def parts(self, level: str) -> Iterator[nn.Module]:
        yield self.get_submodule(level)

    def plain(self, level: str, memo: dict[int, Any]) -> nn.Module:
        return copy.deepcopy(self.get_submodule(level), memo)

    @property
    def weight(self) -> Tensor | None:
        return self._now.weight

    @property
    def bias(self) -> Tensor | None:
        return self._now.bias

    @property
    def num_features(self) -> int:
        return self._now.num_features

    @property
    def _now(self) -> _BatchNorm:
        norm = self.get_submodule(self.switch.level)
        assert isinstance(norm, _BatchNorm)  # made of one
        return norm

    def describe(self) -> str:
        return f"one for each of {', '.join(self.levels)}"


@final
class SharedNorm(NestedModule):
    """One BatchNorm; a narrow level uses the first units of its parameters and statistics."""

    by = "norms"

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, norm: _BatchNorm, axis: Axis, switch: Switch) -> None:
        if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            raise ValueError(
                f"levels cannot share a {type(norm).__name__} of which one has fewer units; norms='separate'"
            )
        super().__init__()
        self.switch, self.axis = switch, axis
        self.eps, self.momentum = norm.eps, norm.momentum
        self.shell = [copy.deepcopy(norm).to("meta")]  # in a list, so that it is no module of this one
        self.sizes = sorted({axis.units(level) for level in switch.levels})
        for name in _STATISTICS:
            statistic = norm._buffers.get(name)
            self.register_buffer(name, None if statistic is None else axis.ordered(statistic, 0).clone())
        tracked = norm._buffers.get("num_batches_tracked")
        self.register_buffer("num_batches_tracked", None if tracked is None else tracked.clone())
        for name, parameter in norm.named_parameters(recurse=False):
            values = axis.ordered(parameter.detach(), 0)
            for i, (low, high) in enumerate(itertools.pairwise([0, *self.sizes])):
                self.register_parameter(f"{name}{i}", like(parameter, axis.between(values, 0, low, high)))

    def forward(self, x: Tensor) -> Tensor:
        level, factor = self.switch.level, self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            factor = 1.0 / float(self.num_batches_tracked) if factor is None else factor
        mean, var = self._statistics(level)
        uses_batch = self.training or mean is None
        weight, bias = self._joined("weight", level), self._joined("bias", level)
        return F.batch_norm(x, mean, var, weight, bias, uses_batch, factor or 0.0, self.eps)

    def parts(self, level: str) -> Iterator[nn.Parameter]:
        yield from (*self._blocks("weight", level), *self._blocks("bias", level))

    def plain(self, level: str, memo: dict[int, Any]) -> nn.Module:
        affine = {name: self._joined(name, level) for name in ("weight", "bias")}
        mean, var = self._statistics(level)
        statistics = {"running_mean": mean, "running_var": var, "num_batches_tracked": self.num_batches_tracked}
        return _filled(self.shell[0], self.axis.units(level), affine, statistics)

    @property
    def weight(self) -> Tensor | None:
        return self._joined("weight", self.switch.level)

    @property
    def bias(self) -> Tensor | None:
        return self._joined("bias", self.switch.level)

    @property
    def num_features(self) -> int:
        return self.axis.units(self.switch.level)

    def describe(self) -> str:
        return "one for all levels"

    def _statistics(self, level: str) -> tuple[Tensor | None, Tensor | None]:
        units = self.axis.units(level)
        if self.running_mean is None or self.running_var is None:
            return None, None
        return self.running_mean[:units], self.running_var[:units]

    def _blocks(self, name: str, level: str) -> list[nn.Parameter]:
        count = self.sizes.index(self.axis.units(level)) + 1
        found = [self._parameters.get(f"{name}{i}") for i in range(count)]
        return [block for block in found if block is not None]

    def _joined(self, name: str, level: str) -> Tensor | None:
        blocks = self._blocks(name, level)
        return self.axis.join(blocks, 0) if blocks else None


def cut(norm: _BatchNorm, axis: Axis, level: str) -> nn.Module:
    """The level's own BatchNorm, with the values of the whole one; its statistics count as never updated."""
    units = axis.units(level)

    def share(values: Tensor | None) -> Tensor | None:
        return None if values is None else axis.between(axis.ordered(values.detach(), 0), 0, 0, units)

    affine: dict[str, Tensor | None] = {}
    for name, parameter in norm._parameters.items():
        part = share(parameter)
        affine[name] = None if part is None or parameter is None else nn.Parameter(part, parameter.requires_grad)
    statistics = {name: share(norm._buffers.get(name)) for name in _STATISTICS}
    tracked = norm._buffers.get("num_batches_tracked")
    if level != FULL and tracked is not None:
        tracked = torch.zeros_like(tracked)
    return _filled(norm, units, affine, {**statistics, "num_batches_tracked": tracked})


def _filled(
    norm: _BatchNorm, units: int, affine: Mapping[str, Tensor | None], statistics: Mapping[str, Tensor | None]
) -> nn.Module:
    """A BatchNorm like the given one, of another size and with other numbers."""
    made = copy.deepcopy(norm)
    made.num_features = units
    for name, values in affine.items():
        made._parameters[name] = None if values is None else nn.Parameter(values.detach().clone(), values.requires_grad)
    for name, statistic in statistics.items():
        made._buffers[name] = None if statistic is None else statistic.detach().clone()
    return made


def batch_norms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            yield name, module


def warn_if_never_updated(plain: nn.Module, level: str) -> None:
    """A BatchNorm that saw no batch at this level normalises by another level's statistics."""
    stale = [
        name
        for name, norm in batch_norms(plain)
        if norm.num_batches_tracked is not None and not norm.num_batches_tracked
    ]
    if stale:
        warnings.warn(
            f"the statistics of {len(stale)} BatchNorm layers (the first is {stale[0]!r}) were never updated at level "
            f"{level!r}: train the level, or call nested.recalibrate({level!r}, batches)",
            UserWarning,
            stacklevel=4,
        )


@torch.no_grad()
def recalibrate(model: nn.Module, level: str, run: Callable[[Any], object], batches: Iterable[Any]) -> None:
    """The statistics that the level uses, taken anew: the average over the batches."""
    norms: list[Any] = [
        module
        for module in level_modules(model, level)
        if isinstance(module, (_BatchNorm, SharedNorm)) and module.num_batches_tracked is not None
    ]
    if not norms:
        raise ValueError(f"no BatchNorm of the level {level!r} keeps statistics; there is nothing to take anew")
    modes, before = Modes(model), Buffers(model)
    momenta = {norm: norm.momentum for norm in norms}
    model.eval()
    seen = 0
    try:
        for norm in norms:
            norm.train()
            norm.momentum = None
        for seen, batch in enumerate(batches, start=1):
            if seen == 1:
                torch._foreach_zero_([norm.num_batches_tracked for norm in norms])
            run(batch)
    except BaseException as error:
        before.restore()
        if isinstance(error, TypeError):
            hint = "batches are inputs of the network; of pairs give the first, (x for x, _ in loader)"
            raise TypeError(f"{error}: {hint}") from error
        raise
    finally:
        modes.restore()
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    if not seen:
        raise ValueError("recalibrate got no batches; the statistics are as they were")
