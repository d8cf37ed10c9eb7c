"""BatchNorm in a nested model: one for each level (the paper's choice), or one that all levels share."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from partialsgd._util.snapshots import Buffers, Modes
from partialsgd.nested.example_inputs import Call
from partialsgd.nested.layers.axes import AnyAxis
from partialsgd.nested.layers.base import NestedModule, level_modules
from partialsgd.nested.layers.linear_maps import parameter_like
from partialsgd.nested.switch import FULL, Switch

Norms = Literal["separate", "shared"]
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@final
class SeparateBatchNorm(NestedModule):
    """Each level has its own BatchNorm, with its own affine parameters and statistics."""

    spec_name = "norms"

    def __init__(self, norm: _BatchNorm, axis: AnyAxis, levels: Sequence[str], switch: Switch) -> None:
        super().__init__()
        self.switch, self.axis, self.levels = switch, axis, tuple(levels)
        for level in self.levels:
            self.add_module(level, norm if level == FULL and axis.order is None else _narrowed(norm, axis, level))

    def forward(self, x: Tensor) -> Tensor:
        norm = self._modules[self.switch.level]
        assert norm is not None  # every level that runs this module has one
        y: Tensor = norm(x)
        return y

    def members(self, level: str) -> Iterator[nn.Module]:
        yield self.get_submodule(level)

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        return copy.deepcopy(self.get_submodule(level), memo)

    def describe(self) -> str:
        return f"one for each of {', '.join(self.levels)}"


@final
class SharedBatchNorm(NestedModule):
    """One BatchNorm for all levels; a narrow level uses the first units of its parameters and statistics."""

    spec_name = "norms"

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, norm: _BatchNorm, axis: AnyAxis, switch: Switch) -> None:
        if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            raise ValueError(f"levels of different widths cannot share a {type(norm).__name__}; use norms='separate'")
        if not axis.is_prefix:
            raise ValueError(
                "levels cannot share a BatchNorm after a grouped convolution or a concatenation; use norms='separate'"
            )
        super().__init__()
        self.switch, self.axis = switch, axis
        self.eps, self.momentum = norm.eps, norm.momentum
        self._template = [copy.deepcopy(norm).to("meta")]  # in a list, so that it is not registered as a child
        self.sizes = sorted({axis.units(level) for level in switch.levels})
        for name in _BUFFERS:
            buffer = norm._buffers[name]
            permuted = axis.permuted(buffer, 0) if buffer is not None and buffer.ndim else buffer
            self.register_buffer(name, None if permuted is None else permuted.clone())
        for name, parameter in norm.named_parameters(recurse=False):
            values = axis.permuted(parameter.detach(), 0)
            for i, (low, high) in enumerate(itertools.pairwise([0, *self.sizes])):
                self.register_parameter(f"{name}{i}", parameter_like(parameter, axis.between(values, 0, low, high)))

    def forward(self, x: Tensor) -> Tensor:
        level, factor = self.switch.level, self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            factor = 1.0 / float(self.num_batches_tracked) if factor is None else factor
        mean, var = self._statistics(level)
        uses_batch = self.training or mean is None
        weight, bias = self._joined("weight", level), self._joined("bias", level)
        return F.batch_norm(x, mean, var, weight, bias, uses_batch, factor or 0.0, self.eps)

    def members(self, level: str) -> Iterator[nn.Parameter]:
        count = self._block_count(level)
        yield from (*self.blocks("weight", count), *self.blocks("bias", count))

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        affine = {name: self._joined(name, level) for name in ("weight", "bias")}
        statistics = dict(zip(_BUFFERS, (*self._statistics(level), self.num_batches_tracked), strict=True))
        return _resized(self._template[0], self.axis.units(level), affine | statistics)

    def describe(self) -> str:
        return "one for all levels"

    def _statistics(self, level: str) -> list[Tensor | None]:
        units = self.axis.units(level)
        return [None if values is None else values[:units] for values in (self.running_mean, self.running_var)]

    def _block_count(self, level: str) -> int:
        return self.sizes.index(self.axis.units(level)) + 1

    def _joined(self, name: str, level: str) -> Tensor | None:
        blocks = self.blocks(name, self._block_count(level))
        return self.axis.join(blocks, 0) if blocks else None


def batch_norms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            yield name, module


def warn_if_never_updated(module: nn.Module, level: str) -> None:
    """Warn if a BatchNorm of an extracted level saw no batch there: it has the statistics of another level."""
    norms = ((name, norm.num_batches_tracked) for name, norm in batch_norms(module))
    stale = [name for name, batches in norms if batches is not None and not batches]
    if stale:
        warnings.warn(
            f"the statistics of {len(stale)} BatchNorm layers (the first is {stale[0]!r}) were never updated at level "
            f"{level!r}: train the level, or call nested.recalibrate({level!r}, batches)",
            UserWarning,
            stacklevel=4,
        )


@contextmanager
def never_updated_is_fine() -> Iterator[None]:
    """Silence `warn_if_never_updated` where the statistics are loaded or updated before they are used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the statistics of .* never updated")
        yield


@torch.no_grad()
def recalibrate(model: nn.Module, level: str, batches: Iterable[Call]) -> None:
    """Replace the BatchNorm statistics that the level uses by their average over the batches."""
    norms: list[Any] = [
        module
        for module in level_modules(model, level)
        if isinstance(module, (_BatchNorm, SharedBatchNorm)) and module.num_batches_tracked is not None
    ]
    if not norms:
        raise ValueError(f"no BatchNorm of the level {level!r} has running statistics; there is nothing to recalibrate")
    modes, buffers = Modes(model), Buffers(model)
    momenta = {norm: norm.momentum for norm in norms}
    model.eval()
    count = 0
    try:
        for norm in norms:
            norm.train()
            norm.momentum = None
        for count, (args, kwargs) in enumerate(batches, start=1):
            if count == 1:
                torch._foreach_zero_([norm.num_batches_tracked for norm in norms])
            model(*args, **kwargs)
    except BaseException as error:
        buffers.restore()
        if isinstance(error, TypeError):
            hint = "batches must be inputs of the model; for a loader of pairs give (x for x, _ in loader)"
            raise TypeError(f"{error}: {hint}") from error
        raise
    finally:
        modes.restore()
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    if not count:
        raise ValueError("recalibrate got no batches; the statistics are unchanged")


def _narrowed(norm: _BatchNorm, axis: AnyAxis, level: str) -> nn.Module:
    """Return a BatchNorm for one level with the values of the full one; its statistics count as never updated."""
    units = axis.units(level)

    def first_units(values: Tensor | None) -> Tensor | None:
        if values is None or values.ndim == 0:
            return values
        return axis.between(axis.permuted(values.detach(), 0), 0, 0, units).requires_grad_(values.requires_grad)

    buffers = {name: norm._buffers.get(name) for name in _BUFFERS}
    values = {name: first_units(tensor) for name, tensor in {**norm._parameters, **buffers}.items()}
    if level != FULL and (batches := values["num_batches_tracked"]) is not None:
        values["num_batches_tracked"] = torch.zeros_like(batches)
    return _resized(norm, axis.length(level), values)


def _resized(norm: _BatchNorm, units: int, values: Mapping[str, Tensor | None]) -> nn.Module:
    """Return a BatchNorm with the options of `norm`, of another size and with other values."""
    resized = copy.deepcopy(norm)
    resized.num_features = units
    for name, value in values.items():
        if name in _BUFFERS:
            resized._buffers[name] = None if value is None else value.detach().clone()
        else:
            resized._parameters[name] = None if value is None else parameter_like(value, value)
    return resized
