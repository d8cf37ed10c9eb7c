"""The time of a level, from a table that is measured once for each shape of layer that becomes smaller."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from partialsgd.nested.budgets.choices import Choice, RankChoice, frozen
from partialsgd.nested.budgets.costs import Cost, Length, Product, Sizes, Term, cut_lengths
from partialsgd.nested.example_inputs import Call
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of

_POINTS = 8
_BLOCK = 16  # kernels compute so many channels at once, so that 52 take as long as 64
_ROUNDS = 9

Key: TypeAlias = tuple[Any, ...]


@final
@dataclass(frozen=True)
class Table:
    """Seconds at the points of a grid, which grow with both sizes; between the points they are interpolated."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def at(self, rows: float, columns: float) -> float:
        i, u = _position(self.rows, rows)
        j, v = _position(self.columns, columns)
        corners = [self.seconds[a][b] for a in (i, min(i + 1, len(self.rows) - 1)) for b in _next(j, self.columns)]
        return (1 - u) * ((1 - v) * corners[0] + v * corners[1]) + u * ((1 - v) * corners[2] + v * corners[3])

    def times(self, factor: float) -> Table:
        return replace(self, seconds=tuple(tuple(factor * each for each in row) for row in self.seconds))


@final
@dataclass(frozen=True)
class LayerTime:
    """The time of one layer as a function of its outputs (or its rank) and its inputs."""

    table: Table
    rows: Length | None
    columns: Length | None

    @property
    def names(self) -> tuple[str, ...]:
        lengths = [length for length in (self.rows, self.columns) if length is not None]
        return tuple(name for length in lengths for name, _ in length.entries)

    def value(self, sizes: Sizes) -> float:
        return self.table.at(
            _length(self.rows, sizes, self.table.rows), _length(self.columns, sizes, self.table.columns)
        )


def latency_cost(model: nn.Module, choices: Sequence[Choice], call: Call, known: dict[Key, float]) -> Cost:
    """Return the seconds of a forward pass in evaluation mode on the machine and the number of threads of now.

    `known` has the seconds of shapes that were measured before, and gets those of the others.
    What the model does beside these layers is taken to be proportional to the numbers that its modules put out.
    """
    calls, elements = _recorded(model, call)
    lengths = _lengths(model, choices)
    ranks = {choice.name: choice for choice in choices if isinstance(choice, RankChoice)}
    jobs: dict[Key, Callable[[], object]] = {}
    plans = {}
    for name in [*lengths, *ranks]:
        linear = linear_map_of(model.get_submodule(name))
        if name in calls and isinstance(linear, LinearMap):
            plans[name] = _Plan(linear, calls[name][0], ranks.get(name), *lengths.get(name, (None, None)))
            jobs |= plans[name].jobs(model.get_submodule(name))
    args, kwargs = call
    new = {key: run for key, run in jobs.items() if key not in known}
    seconds = _measured(model, {**new, ("model",): partial(model, *args, **kwargs)})
    known |= {key: seconds[key] for key in new}
    seconds = {**known, **seconds}
    full_sizes = {choice.name: choice.full for choice in choices}
    layers = {n: LayerTime(plan.table(seconds), plan.rows_length, plan.columns_length) for n, plan in plans.items()}
    at_full = 0.0
    for name, plan in plans.items():
        whole = layers[name].value(full_sizes) if plan.rank is None else seconds[plan.dense_key]
        at_full += whole * len(calls[name])
    # Alone, layers may take longer than inside the network, where they find their inputs in the cache.
    factor = min(1.0, seconds[("model",)] / at_full) if at_full > 0 else 1.0
    at_full *= factor
    terms: list[Term] = []
    for name, layer in layers.items():
        terms += [replace(layer, table=layer.table.times(factor))] * len(calls[name])
    rest = max(0.0, seconds[("model",)] - at_full)
    for name, plan in plans.items():
        if plan.rank is None and plan.rows_length is not None:
            positions = sum(math.prod(shape) / plan.linear.inputs for shape in calls[name])
            product = Product(rest / max(1, elements) * positions, (plan.rows_length,))
            terms.append(product)
            at_full += product.value(full_sizes)
    allowed = {choice.name: grid_of(choice.largest) for choice in choices}
    return Cost(seconds[("model",)], tuple(terms), at_full, allowed)


@final
@dataclass(frozen=True)
class _Plan:
    """The measurements to make for one layer."""

    linear: LinearMap
    shape: tuple[int, ...]
    rank: RankChoice | None
    rows_length: Length | None
    columns_length: Length | None

    @property
    def row_grid(self) -> tuple[int, ...]:
        if self.rank is not None:
            return grid_of(self.rank.largest)
        return _grid_along(self.rows_length, self.linear.outputs)

    @property
    def column_grid(self) -> tuple[int, ...]:
        return _grid_along(None if self.rank is not None else self.columns_length, self.linear.inputs)

    def key(self, rows: int, columns: int) -> Key:
        options = tuple(sorted((k, str(v)) for k, v in self.linear.options.items()))
        outputs = self.linear.outputs if self.rank is not None else 0
        return (self.linear.kind, self.linear.kernel, options, self.shape, outputs, rows, columns)

    @property
    def dense_key(self) -> Key:
        return (*self.key(self.linear.outputs, self.linear.inputs), "dense")

    def jobs(self, layer: nn.Module) -> dict[Key, Callable[[], object]]:
        """Return a call for each point of the table."""
        like = layer.get_parameter("weight")
        random = partial(torch.randn, dtype=like.dtype, device=like.device)
        dim = 1 if self.linear.kind == "conv2d" else -1
        jobs: dict[Key, Callable[[], object]] = {}
        for columns in self.column_grid:
            shape = list(self.shape)
            shape[dim] = columns
            x = random(*shape)
            for rows in self.row_grid:
                back = None if self.rank is None else random(self.linear.outputs, rows)
                jobs[self.key(rows, columns)] = partial(self._run, x, random(rows, columns, *self.linear.kernel), back)
        if self.rank is not None:
            jobs[self.dense_key] = partial(layer, x)
        return jobs

    def _run(self, x: Tensor, weight: Tensor, back: Tensor | None) -> None:
        y = self.linear.apply(x, weight, None)
        if back is not None:
            self.linear.apply_pointwise(y, back, None)

    def table(self, seconds: Mapping[Key, float]) -> Table:
        rows, columns = self.row_grid, self.column_grid
        grid = [[seconds[self.key(m, n)] for n in columns] for m in rows]
        for i, j in itertools.product(range(len(rows)), range(len(columns))):  # a smaller layer takes no longer
            grid[i][j] = max(grid[a][b] for a, b in ((i, j), (max(0, i - 1), j), (i, max(0, j - 1))))
        return Table(rows, columns, tuple(tuple(row) for row in grid))


def _recorded(model: nn.Module, call: Call) -> tuple[dict[str, list[tuple[int, ...]]], int]:
    """Return the shapes of the inputs of each layer, call by call, and the numbers that all modules put out."""
    calls: dict[str, list[tuple[int, ...]]] = {}
    elements = [0]

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            elements[0] += output.numel()
        if args and isinstance(args[0], Tensor):
            calls.setdefault(name, []).append(tuple(args[0].shape))

    leaves = [(name, module) for name, module in model.named_modules() if not any(module.children())]
    handles = [module.register_forward_hook(partial(hook, name)) for name, module in leaves]
    args, kwargs = call
    try:
        with torch.no_grad(), frozen(model):
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return calls, elements[0]


def _lengths(model: nn.Module, choices: Sequence[Choice]) -> dict[str, tuple[Length | None, Length | None]]:
    """Return for each layer that becomes narrower the choices that its outputs and its inputs depend on."""
    lengths: dict[str, tuple[Length | None, Length | None]] = {}
    for parameter, by_dim in cut_lengths(model, choices).items():
        name, _, leaf = parameter.rpartition(".")
        linear = linear_map_of(model.get_submodule(name))
        if leaf == "weight" and isinstance(linear, LinearMap):
            rows = int(linear.kind == "conv1d_hf")
            lengths[name] = by_dim.get(rows), by_dim.get(1 - rows)
    return lengths


def _measured(model: nn.Module, jobs: Mapping[Key, Callable[[], object]]) -> dict[Key, float]:
    """Return median seconds of each call; they take turns, so that a load on the machine meets all of them alike."""
    seconds: dict[Key, list[float]] = {key: [] for key in jobs}
    devices = {p.device for p in model.parameters() if p.device.type != "cpu"}
    with torch.inference_mode(), frozen(model):
        for turn in range(_ROUNDS + 1):
            for key, run in jobs.items():
                for device in devices:
                    torch.get_device_module(device).synchronize(device)
                start = time.perf_counter()
                run()
                for device in devices:
                    torch.get_device_module(device).synchronize(device)
                if turn > 0:
                    seconds[key].append(time.perf_counter() - start)
    return {key: statistics.median(taken) for key, taken in seconds.items()}


def grid_of(full: int) -> tuple[int, ...]:
    """Return about eight sizes up to the full one; where there are many units, multiples of a kernel's block."""
    step = max(1, full // _POINTS)
    if step > _BLOCK // 2:
        step = _BLOCK * max(1, round(step / _BLOCK))
    return (*range(step, full, step), full)


def _grid_along(length: Length | None, full: int) -> tuple[int, ...]:
    """Return the lengths of a dimension at which the layer is measured: those of the sizes that may be chosen."""
    if length is None:
        return (full,)
    if len(length.entries) > 1:
        return grid_of(full)
    each = length.entries[0][1]
    return tuple(length.rest + each * size for size in grid_of((full - length.rest) // each))


def _length(length: Length | None, sizes: Sizes, grid: Sequence[int]) -> float:
    return grid[-1] if length is None else length.at(sizes)


def _position(grid: Sequence[int], value: float) -> tuple[int, float]:
    """Return the last point that is not above a value, and how far the value is on the way to the next."""
    i = max(0, bisect.bisect_right(grid, value) - 1)
    if i + 1 >= len(grid):
        return len(grid) - 1, 0.0
    return i, max(0.0, (value - grid[i]) / (grid[i + 1] - grid[i]))


def _next(j: int, grid: Sequence[int]) -> tuple[int, int]:
    return j, min(j + 1, len(grid) - 1)
