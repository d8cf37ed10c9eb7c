"""Channels and units that belong together, found by tracing a model with torch.fx."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from partialsgd._util.snapshots import Modes
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.planning.groups import Producer, UnitGroup
from partialsgd.nested.planning.nest_plan import NestPlan

_FIXED = -1  # the group of the model's inputs and outputs, which must not be narrowed

_KEEP_CHANNELS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Identity, _DropoutNd, nn.Flatten),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample),
)
_KEEP_FUNCTIONS = (
    *(F.relu, torch.relu, F.gelu, F.silu, F.leaky_relu, F.elu, F.tanh, torch.tanh, F.sigmoid, torch.sigmoid),
    *(F.dropout, F.dropout2d, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.interpolate),
)
_KEEP_METHODS = ("relu", "tanh", "sigmoid", "contiguous", "clone", "detach")
# First arguments with which these reduce or join positions only, and not channels.
_OVER_POSITIONS = {"mean": ((2, 3), (-2, -1), (-1, -2), [2, 3], [-2, -1]), "flatten": (1,)}
_SUMS = (operator.add, operator.iadd, torch.add)
_HINT = 'name the hidden layers by patterns: hidden=("*.fc1", "*.fc2")'


def channel_groups(plan: NestPlan) -> list[UnitGroup]:
    """Return the hidden channels and units of a model that torch.fx can trace."""
    modes = Modes(plan.model)
    try:
        groups, groups_in_evaluation = (_traced_groups(plan, plan.model.train(mode)) for mode in (True, False))
    finally:
        modes.restore()
    if groups != groups_in_evaluation:
        raise ValueError(
            f"{plan.caller} cannot narrow {type(plan.model).__name__}, which runs other layers in training mode than "
            f"in evaluation mode; {_HINT}"
        )
    return groups


def _traced_groups(plan: NestPlan, model: nn.Module) -> list[UnitGroup]:
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"{plan.caller} finds no hidden units in {type(model).__name__}: it has no Transformer layer of a known "
            f"structure, and torch.fx cannot trace it ({error}); {_HINT}"
        ) from error
    trace = _ChannelTrace(plan)
    for node in graph.nodes:
        trace.visit(node)
    return trace.groups()


@final
@dataclass
class _ChannelTrace:
    """A union-find over groups of channels: every layer opens a group, and sums join the groups of their terms."""

    plan: NestPlan
    group_of: dict[fx.Node, int] = field(default_factory=dict)
    parent: list[int] = field(default_factory=list)
    producers: dict[int, list[str]] = field(default_factory=dict)
    consumers: dict[int, list[str]] = field(default_factory=dict)
    norms: dict[int, list[str]] = field(default_factory=dict)
    linear_maps: dict[str, LinearMap] = field(default_factory=dict)
    """The linear maps of the layers that were called."""

    def visit(self, node: fx.Node) -> None:
        inputs = [self.root(self.group_of[arg]) for arg in node.all_input_nodes]
        if node.op in ("placeholder", "get_attr"):
            self.group_of[node] = _FIXED
        elif node.op == "output":
            for group in inputs:
                self.join(group, _FIXED)
        elif node.op == "call_module":
            self.group_of[node] = self._visit_module(str(node.target), inputs)
        elif node.op == "call_method" and node.target == "size":
            self.group_of[node] = _FIXED
        elif node.target in _SUMS and inputs:
            self.group_of[node] = inputs[0]
            for other in inputs[1:]:
                self.group_of[node] = self.join(self.group_of[node], other)
        elif _keeps_channels(node):
            self.group_of[node] = inputs[0]
        elif all(group == _FIXED for group in inputs):
            self.group_of[node] = _FIXED
        else:
            raise self._unknown(f"{_name(node.target)} (at {node.name!r})")

    def groups(self) -> list[UnitGroup]:
        roots = dict.fromkeys(self.root(group) for group in self.producers)
        groups = [self._group(root) for root in roots if root != _FIXED]
        if not groups:
            raise ValueError(f"{type(self.plan.model).__name__} has no hidden units that could be fewer")
        return groups

    def root(self, group: int) -> int:
        while group != _FIXED and self.parent[group] != group:
            group = self.parent[group]
        return group

    def join(self, a: int, b: int) -> int:
        a, b = self.root(a), self.root(b)
        if a == _FIXED or b == _FIXED:
            a, b = _FIXED, max(a, b)
        if b != _FIXED:
            self.parent[b] = a
        return a

    def _group(self, root: int) -> UnitGroup:
        makers, takers = self._members(self.producers, root), self._members(self.consumers, root)
        made_by = [self.linear_maps[name] for name in makers]
        units = made_by[0].outputs
        if any(linear.outputs != units for linear in made_by):
            raise self._unknown(f"the sum of the outputs of {', '.join(map(repr, makers))}")
        is_image = all(linear.kind == "conv2d" for linear in made_by)
        for name in takers:
            inputs = self.linear_maps[name].inputs
            # A flattened image has the positions of one channel in a row, a flattened sequence has not.
            if inputs != units and (inputs % units or not is_image):
                raise self._unknown(f"{name!r}, which takes {inputs} inputs of {units} units")
        norms = self._members(self.norms, root)
        for name in norms:
            if self.plan.modules[name].num_features != units:
                raise self._unknown(f"{name!r}, which normalises more than {units} units")
        return UnitGroup(units, tuple(Producer(name) for name in makers), takers, norms)

    def _visit_module(self, name: str, inputs: list[int]) -> int:
        module = self.plan.modules[name]
        linear = linear_map_of(module)
        if isinstance(module, (nn.Linear, nn.Conv2d)) and isinstance(linear, str):
            raise self._unknown(f"{name!r}: {linear}")
        if name in self.linear_maps or any(name in names for names in self.norms.values()):
            raise self._unknown(f"{name!r}, which runs twice")
        if isinstance(linear, LinearMap):
            self.linear_maps[name] = linear
            self.consumers.setdefault(inputs[0], []).append(name)
            group = len(self.parent)
            self.parent.append(group)
            self.producers[group] = [name]
            return group
        if isinstance(module, _BatchNorm):
            self.norms.setdefault(inputs[0], []).append(name)
            return inputs[0]
        mixes_channels = isinstance(module, nn.Flatten) and module.start_dim != 1
        if (isinstance(module, _KEEP_CHANNELS) and not mixes_channels) or all(group == _FIXED for group in inputs):
            return inputs[0] if inputs else _FIXED
        raise self._unknown(f"{name!r}, a {type(module).__name__}")

    def _members(self, table: dict[int, list[str]], root: int) -> tuple[str, ...]:
        return tuple(name for group, names in table.items() if self.root(group) == root for name in names)

    def _unknown(self, what: str) -> ValueError:
        return ValueError(f"{self.plan.caller} cannot tell which hidden units belong together at {what}; {_HINT}")


def _keeps_channels(node: fx.Node) -> bool:
    if node.op == "call_function" and node.target in _KEEP_FUNCTIONS:
        return True
    if node.op == "call_method" and node.target in _KEEP_METHODS:
        return True
    arguments = [*node.args[1:], *node.kwargs.values()]
    return bool(arguments) and arguments[0] in _OVER_POSITIONS.get(_name(node.target), ())


def _name(target: Any) -> str:
    return getattr(target, "__name__", str(target))
