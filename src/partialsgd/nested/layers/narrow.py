"""W[:m, :n]x + b[:m]: a layer with a narrower layer inside it (the paper's small width)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from partialsgd.nested.layers.axes import Axis
from partialsgd.nested.layers.base import NestedLayer
from partialsgd.nested.layers.kinds import Form, like, weight_of
from partialsgd.nested.switch import Switch


@final
class NarrowLayer(NestedLayer):
    """The weight lies in rectangles: the smallest level's, then for each larger one its new rows and columns.

    `pads`: what the level does not compute is zero in the outputs, which keep their width (query and key).
    """

    by = "Width"

    rows0: nn.Parameter

    def __init__(
        self, layer: nn.Module, form: Form, rows: Axis, columns: Axis, switch: Switch, *, pads: bool = False
    ) -> None:
        sizes = {level: (rows.units(level), columns.units(level)) for level in switch.levels}
        steps = sorted(set(sizes.values()))
        super().__init__(switch, {level: steps.index(size) + 1 for level, size in sizes.items()})
        self.form, self.rows, self.columns, self.pads = form, rows, columns, pads
        weight, bias = layer.get_parameter("weight"), layer._parameters["bias"]
        self.has_bias = bias is not None
        values = columns.ordered(rows.ordered(weight_of(layer, form), 0), 1)
        old_rows = old_columns = 0
        for i, (m, n) in enumerate(steps):
            if n > old_columns and old_rows:
                part = rows.between(values, 0, 0, old_rows)
                self.register_parameter(f"columns{i}", like(weight, columns.between(part, 1, old_columns, n)))
            if m > old_rows:
                part = rows.between(values, 0, old_rows, m)
                self.register_parameter(f"rows{i}", like(weight, columns.between(part, 1, 0, n)))
                if bias is not None:
                    share = rows.between(rows.ordered(bias.detach(), 0), 0, old_rows, m)
                    self.register_parameter(f"bias{i}", like(bias, share))
            old_rows, old_columns = m, n

    def forward(self, x: Tensor) -> Tensor:
        level = self.switch.level
        bias = self.bias
        if self._is_cut_by_columns(level) and not self.form.has_many_places(x):
            y = self._sum_over_columns(x, level, bias)
        else:
            y = self.form.apply(x, self._joined(level), bias)
        return self.rows.pad(y, self.rows.units(level)) if self.pads else y

    @property
    def bias(self) -> Tensor | None:
        return self.bias_at(self.switch.level)

    def bias_at(self, level: str) -> Tensor | None:
        if not self.has_bias:
            return None
        return self.rows.join(self._blocks("bias", self.counts[level]), 0)

    def weight_at(self, level: str) -> Tensor:
        return self.form.as_stored(self._joined(level))

    def sizes_at(self, level: str) -> tuple[int, int]:
        m = self.form.outputs if self.pads else self.rows.length(self.rows.units(level))
        return m, self.columns.length(self.columns.units(level))

    def parts(self, level: str) -> Iterator[nn.Parameter]:
        for name in ("rows", "columns", "bias"):
            yield from self._blocks(name, self.counts[level])

    def plain(self, level: str, memo: dict[int, Any]) -> nn.Module:
        weight, bias = self._joined(level), self.bias_at(level)
        if not self.pads or self.rows.units(level) == self.rows.full:
            return self.form.plain(weight, bias)
        return _padded(self.form.plain(weight, bias), self.rows, self.rows.units(level))

    def describe(self) -> str:
        parts = [("units", self.rows), ("inputs", self.columns)]
        said = [
            f"{', '.join(str(size) for size in sorted(set(axis.sizes.values())))} of {axis.full} {what}"
            + (f" in each of {axis.groups} heads" if self.pads else "")
            for what, axis in parts
            if axis.sizes
        ]
        return f"{'; '.join(said)} ({self.form.inputs} → {self.form.outputs})"

    def _joined(self, level: str) -> Tensor:
        count = self.counts[level]
        if count == 1:
            return self.rows0
        rows, columns = self._blocks("rows", count), self._blocks("columns", count)
        if not columns:
            return self.rows.join(rows, 0)
        if len(rows) == 1:
            return self.columns.join([*rows, *columns], 1)
        joined: Tensor = self.rows0
        for i in range(1, count):
            for axis, dim, name in ((self.columns, 1, f"columns{i}"), (self.rows, 0, f"rows{i}")):
                part = self._parameters.get(name)
                if part is not None:
                    joined = axis.join([joined, part], dim)
        return joined

    def _blocks(self, name: str, count: int) -> list[nn.Parameter]:
        found = [self._parameters.get(f"{name}{i}") for i in range(count)]
        return [block for block in found if block is not None]

    def _is_cut_by_columns(self, level: str) -> bool:
        return self.form.kind != "conv2d" and self.counts[level] > 1 and not self.rows.sizes

    def _sum_over_columns(self, x: Tensor, level: str, bias: Tensor | None) -> Tensor:
        """Σ W_i x_i over the rectangles: for few places cheaper than joining them, which copies number by number."""
        parts = [self.rows0, *self._blocks("columns", self.counts[level])]
        inputs = torch.split(x.reshape(-1, x.shape[-1]), [part.shape[1] for part in parts], 1)
        y = F.linear(inputs[0], parts[0], bias)
        for part, share in zip(parts[1:], inputs[1:], strict=True):
            y = torch.addmm(y, share, part.t())
        return y.view(*x.shape[:-1], y.shape[-1])


def _padded(layer: nn.Module, axis: Axis, units: int) -> nn.Module:
    """The layer, then zeros in the places of the missing units, of modules of torch alone."""
    if axis.tail == 0:
        pad = nn.ConstantPad1d((0, axis.full - units), 0.0)
        return nn.Sequential(layer, nn.Unflatten(-1, (axis.groups, units)), pad, nn.Flatten(-2))
    graph = fx.Graph()
    y = graph.call_module("layer", (graph.placeholder("x"),))
    body = graph.call_function(torch.narrow, (y, -1, 0, axis.groups * units))
    tail = graph.call_function(torch.narrow, (y, -1, axis.groups * units, axis.tail))
    body = graph.call_function(
        F.pad, (graph.call_method("unflatten", (body, -1, (axis.groups, units))), (0, axis.full - units))
    )
    graph.output(graph.call_function(torch.cat, ([graph.call_method("flatten", (body, -2)), tail], -1)))
    return fx.GraphModule({"layer": layer}, graph)
