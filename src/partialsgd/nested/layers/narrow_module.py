"""A module of any kind with narrower parameters inside it: experts, other convolutions, subclasses of Linear."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from partialsgd.nested.layers.axes import AnyAxis
from partialsgd.nested.layers.base import NestedModule
from partialsgd.nested.layers.linear_maps import parameter_like
from partialsgd.nested.switch import Switch

Axes = Mapping[int, AnyAxis]
"""The dimensions of a parameter that are cut."""


@final
class NarrowModule(NestedModule):
    """The module's own forward runs with the parameters of the level, which are joined from blocks."""

    spec_name = "Width"

    def __init__(self, module: nn.Module, axes: Mapping[str, Axes], switch: Switch) -> None:
        super().__init__()
        self.switch, self.axes = switch, dict(axes)
        self.growth: dict[str, list[tuple[int, int]]] = {}
        """For each parameter and each of its blocks but the first: the step and the dimension that it makes longer."""
        self.steps = {leaf: _steps(own, switch.levels) for leaf, own in axes.items()}
        for leaf, parameter in module.named_parameters(recurse=False):
            if leaf not in axes:
                self.register_parameter(leaf, parameter)
                continue
            blocks = _blocks(parameter.detach(), axes[leaf], self.steps[leaf])
            self.growth[leaf] = [(step, dim) for step, dim, _ in blocks[1:]]
            for i, (_, _, values) in enumerate(blocks):
                self.register_parameter(f"{leaf}{i}", parameter_like(parameter, values))
        self._templates = {level: self._template(module, level) for level in switch.levels}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        template = self._templates[self.switch.level]
        if template.training != self.training:
            template.train(self.training)
        return torch.func.functional_call(template, self._tensors(self.switch.level), args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            own = self.__dict__
            if "_templates" not in own:
                raise
            if name in own["axes"]:
                return self.joined(name, self.switch.level)
            return getattr(own["_templates"][self.switch.level], name)

    def joined(self, leaf: str, level: str) -> Tensor:
        """Return a parameter as the level has it."""
        blocks = self.blocks(leaf, self._block_count(leaf, level))
        whole: Tensor = blocks[0]
        for (_, dim), block in zip(self.growth[leaf], blocks[1:], strict=False):
            whole = self.axes[leaf][dim].join([whole, block], dim)
        return whole

    def members(self, level: str) -> Iterator[nn.Parameter]:
        for leaf in self.axes:
            yield from self.blocks(leaf, self._block_count(leaf, level))
        blocks = {f"{leaf}{i}" for leaf, growth in self.growth.items() for i in range(len(growth) + 1)}
        yield from (p for name, p in self._parameters.items() if p is not None and name not in blocks)

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        plain = copy.deepcopy(self._templates[level])
        for leaf, values in self._tensors(level).items():
            plain.register_parameter(leaf, parameter_like(values, values))
        return plain

    def describe(self) -> str:
        kind = type(next(iter(self._templates.values()))).__name__
        cuts = [
            f"{', '.join(str(axis.length(level)) for level in self.switch.levels)} in dimension {dim} of {leaf}"
            for leaf, own in self.axes.items()
            for dim, axis in own.items()
        ]
        return f"{'; '.join(cuts)} ({kind})"

    def _block_count(self, leaf: str, level: str) -> int:
        step = self.steps[leaf].index(_sizes(self.axes[leaf], level))
        return 1 + sum(own <= step for own, _ in self.growth[leaf])

    def _tensors(self, level: str) -> dict[str, Tensor]:
        leaves = self._templates[level]._parameters
        own = {leaf: self._parameters.get(leaf) for leaf in leaves if leaf not in self.axes}
        return {leaf: self.joined(leaf, level) for leaf in self.axes} | {k: p for k, p in own.items() if p is not None}

    def _template(self, module: nn.Module, level: str) -> nn.Module:
        """Return a copy of the module whose parameters have the sizes of the level and no values."""
        memo: dict[int, Any] = {}
        for leaf, parameter in module.named_parameters(recurse=False):
            shape = list(parameter.shape)
            for dim, axis in self.axes.get(leaf, {}).items():
                shape[dim] = axis.length(level)
            empty = torch.empty(shape, dtype=parameter.dtype, device="meta")
            memo[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
        template = copy.deepcopy(module, memo)
        _set_sizes(template, module)
        return template


def _sizes(axes: Axes, level: str) -> tuple[int, ...]:
    return tuple(axis.units(level) for axis in axes.values())


def _steps(axes: Axes, levels: tuple[str, ...]) -> list[tuple[int, ...]]:
    return sorted({_sizes(axes, level) for level in levels})


def _blocks(values: Tensor, axes: Axes, steps: list[tuple[int, ...]]) -> list[tuple[int, int, Tensor]]:
    """Return the first step's part, and what each later step adds along each dimension."""
    for dim, axis in axes.items():
        values = axis.permuted(values, dim)
    blocks, old = [], [0] * len(axes)
    for step, sizes in enumerate(steps):
        for i, (dim, new) in enumerate(zip(axes, sizes, strict=True)):
            if step and new == old[i]:
                continue
            low = [old[k] if step and k == i else 0 for k in range(len(axes))]
            high = [sizes[k] if k <= i or not step else old[k] for k in range(len(axes))]
            part = values
            for (own, axis), start, end in zip(axes.items(), low, high, strict=True):
                part = axis.between(part, own, start, end)
            blocks.append((step, dim, part))
            if not step:
                break
        old = list(sizes)
    return blocks


def _set_sizes(template: nn.Module, module: nn.Module) -> None:
    """Set the attributes in which modules of torch keep the sizes of their parameters."""
    if isinstance(template, nn.Linear):
        template.out_features, template.in_features = template.weight.shape
    elif isinstance(template, _ConvNd) and isinstance(module, _ConvNd):
        if module.groups > 1 and module.groups == module.in_channels:  # depth-wise: a group for each channel
            template.groups = template.weight.shape[0] * module.groups // module.out_channels
        first, second = template.weight.shape[0], template.weight.shape[1] * template.groups
        outputs, inputs = (second, first) if module.transposed else (first, second)
        template.out_channels, template.in_channels = outputs, inputs
    elif isinstance(template, _InstanceNorm):
        template.num_features = template.weight.numel()
    elif isinstance(template, nn.PReLU):
        template.num_parameters = template.weight.numel()
