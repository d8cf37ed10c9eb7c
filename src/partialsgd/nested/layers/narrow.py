"""W[:m, :n]x + b[:m]: a layer with a narrower layer inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from partialsgd.nested.layers.axes import AnyAxis
from partialsgd.nested.layers.base import NestedLayer, Share
from partialsgd.nested.layers.blocks import is_packed, pack_rows, packed_rows, sum_over_columns
from partialsgd.nested.layers.linear_maps import LinearMap, parameter_like
from partialsgd.nested.switch import Switch

if TYPE_CHECKING:
    from typing import Self  # not in Python 3.10


@final
class NarrowLayer(NestedLayer):
    """The weight is stored in rectangles: the smallest level's, then the rows and columns that each larger level adds.

    They are joined, by a copy, only where both rows and columns are cut. Where only rows are, the blocks lie behind
    each other in memory; where only columns are, their products are added up.
    With `pads=True` (query and key) the outputs keep their width and are zero where the level has no unit.
    """

    spec_name = "Width"

    _memory: Tensor | None = None
    """The memory in which the blocks of rows lie behind each other, so that joining them copies nothing."""

    def __init__(
        self,
        layer: nn.Module,
        linear: LinearMap,
        rows: AnyAxis,
        columns: AnyAxis,
        switch: Switch,
        *,
        pads: bool = False,
    ) -> None:
        sizes = {level: (rows.units(level), columns.units(level)) for level in switch.levels}
        steps = sorted(set(sizes.values()))
        super().__init__(switch, {level: steps.index(size) + 1 for level, size in sizes.items()})
        self.linear, self.rows, self.columns, self.pads = linear, rows, columns, pads
        self.adds_columns = linear.kind != "conv2d" and not rows.sizes and columns.is_prefix
        weight, bias = layer.get_parameter("weight"), layer._parameters["bias"]
        values = columns.permuted(rows.permuted(linear.weight_of(layer), 0), 1)
        old_rows = old_columns = 0
        for i, (m, n) in enumerate(steps):
            if n > old_columns and old_rows:
                block = columns.between(rows.between(values, 0, 0, old_rows), 1, old_columns, n)
                self.register_parameter(f"columns{i}", parameter_like(weight, block))
            if m > old_rows:
                block = columns.between(rows.between(values, 0, old_rows, m), 1, 0, n)
                self.register_parameter(f"rows{i}", parameter_like(weight, block))
                if bias is not None:
                    block = rows.between(rows.permuted(bias.detach(), 0), 0, old_rows, m)
                    self.register_parameter(f"bias{i}", parameter_like(bias, block))
            old_rows, old_columns = m, n
        self._pack()

    def forward(self, x: Tensor) -> Tensor:
        return self.run_in_shares(x) if self._modules else self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        level = self.switch.level
        count, bias = self.block_counts[level], self.bias_at(level)
        if self.adds_columns and count > 1:
            y = sum_over_columns(x, self.blocks("rows", count) + self.blocks("columns", count), bias)
        else:
            y = self.linear.apply(x, self._joined(level), bias)
        return self.rows.pad(y, level) if self.pads else y

    @property
    def bias(self) -> Tensor | None:
        return self.bias_at(self.switch.level)

    def bias_at(self, level: str) -> Tensor | None:
        blocks = self.blocks("bias", self.block_counts[level])
        return self.rows.join(blocks, 0) if len(blocks) > 1 else next(iter(blocks), None)

    def weight_at(self, level: str) -> Tensor:
        return self.linear.stored(self._joined(level))

    def sizes_at(self, level: str) -> tuple[int, int]:
        return self.linear.outputs if self.pads else self.rows.length(level), self.columns.length(level)

    def members(self, level: str) -> Iterator[nn.Parameter]:
        for name in ("rows", "columns", "bias"):
            yield from self.blocks(name, self.block_counts[level])

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        layer = self.linear.build(self._joined(level), self.bias_at(level))
        if not self.pads or self.rows.units(level) == self.rows.full:
            return layer
        return _padded(layer, self.rows, self.rows.units(level))

    def describe(self) -> str:
        heads = f" in each of {self.rows.groups} heads" if self.pads else ""
        sizes = [
            f"{', '.join(map(str, sorted(set(axis.sizes.values()))))} of {axis.full} {name}{heads}"
            for name, axis in (("units", self.rows), ("inputs", self.columns))
            if axis.sizes
        ]
        return f"{'; '.join(sizes)} ({self.linear.inputs} → {self.linear.outputs})"

    def _joined(self, level: str) -> Tensor:
        count = self.block_counts[level]
        rows = self.blocks("rows", count)
        if count == 1:
            return rows[0]
        columns = self.blocks("columns", count)
        if not columns:
            packed = packed_rows(self._memory, rows)
            return self.rows.join(rows, 0) if packed is None else packed
        if len(rows) == 1:
            return self.columns.join([*rows, *columns], 1)
        joined: Tensor = rows[0]
        for i in range(1, count):
            for axis, dim, name in ((self.columns, 1, f"columns{i}"), (self.rows, 0, f"rows{i}")):
                block = getattr(self, name, None)
                if block is not None:
                    joined = axis.join([joined, block], dim)
        return joined

    def split_into_shares(self) -> list[Share]:
        self._memory = None  # each share is gathered by itself
        return super().split_into_shares()

    def _pack(self) -> None:
        """Lay blocks of rows behind each other, so that `_joined` need not copy them."""
        blocks = self.blocks("rows", max(self.block_counts.values()))
        is_cut_in_rows_only = not self.columns.sizes and self.rows.is_prefix
        if is_cut_in_rows_only and len(blocks) > 1 and not is_packed(self._memory, blocks):
            self._memory = pack_rows(blocks)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # untyped
        self._pack()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._pack()  # with assign=True the blocks are other tensors than before

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_memory": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # untyped
        self._pack()


def _padded(layer: nn.Module, axis: AnyAxis, units: int) -> nn.Module:
    """Return the layer followed by zeros in the places of the missing units, built of torch's modules."""
    if axis.tail == 0:
        pad = nn.ConstantPad1d((0, axis.full - units), 0.0)
        return nn.Sequential(layer, nn.Unflatten(-1, (axis.groups, units)), pad, nn.Flatten(-2))
    graph = fx.Graph()
    y = graph.call_module("layer", (graph.placeholder("x"),))
    body = graph.call_function(torch.narrow, (y, -1, 0, axis.groups * units))
    tail = graph.call_function(torch.narrow, (y, -1, axis.groups * units, axis.tail))
    grouped = graph.call_method("unflatten", (body, -1, (axis.groups, units)))
    padded = graph.call_function(F.pad, (grouped, (0, axis.full - units)))
    graph.output(graph.call_function(torch.cat, ([graph.call_method("flatten", (padded, -2)), tail], -1)))
    return fx.GraphModule({"layer": layer}, graph)
