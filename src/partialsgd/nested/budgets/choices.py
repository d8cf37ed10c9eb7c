"""The sizes that a budget can choose: hidden units of a group, ranks of a layer, and what each one is worth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from partialsgd._util.snapshots import Buffers, Modes, RandomState
from partialsgd.nested.layers.linear_maps import LinearMap
from partialsgd.nested.planning.build import low_rank_layers, width_groups
from partialsgd.nested.planning.groups import UnitGroup, UnitSlice, by_unit, unit_slices
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.specs import LowRank, Width

LossBatch: TypeAlias = Callable[[], Tensor]
Measure: TypeAlias = Literal["gradient", "activation", "norm"]


@final
@dataclass(frozen=True)
class UnitChoice:
    """The units of one group. A level that keeps n of them has the first n of `order`."""

    group: UnitGroup
    slices: tuple[UnitSlice, ...]
    order: tuple[int, ...]
    worth: tuple[float, ...]
    """The worth of each unit of `order`: an estimate of how much the loss grows without it."""

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def full(self) -> int:
        return self.group.units

    @property
    def largest(self) -> int:
        return self.group.units

    def shrink(self, model: nn.Module, size: int) -> None:
        """Set all weights of the other units to zero, which is what a level of that size computes."""
        dropped = torch.tensor(self.order[size:], dtype=torch.long)
        for part in self.slices:
            parameter = model.get_parameter(part.parameter)
            view = by_unit(parameter, part, self.full)
            view[:, dropped.to(parameter.device)] = 0.0


@final
@dataclass(frozen=True)
class RankChoice:
    """The ranks of one layer: a level that keeps n has the n largest singular values."""

    name: str
    linear: LinearMap
    worth: tuple[float, ...]
    factors: tuple[Tensor, Tensor]
    """V and U with W = VU, columns and rows in the order of the singular values."""

    @property
    def full(self) -> int:
        return self.linear.full_rank

    @property
    def largest(self) -> int:
        """The largest rank that costs no more than the layer itself."""
        outputs, inputs = self.factors[0].shape[0], self.factors[1].shape[1]
        return max(1, outputs * inputs // (outputs + inputs))

    def shrink(self, model: nn.Module, size: int) -> None:
        weight = model.get_submodule(self.name).get_parameter("weight")
        v, u = self.factors
        values = (v[:, :size] @ u[:size]).view(self.linear.outputs, self.linear.inputs, *self.linear.kernel)
        weight.copy_(self.linear.stored(values).to(weight))


Choice: TypeAlias = UnitChoice | RankChoice


def gates(group: UnitGroup, slices: Sequence[UnitSlice]) -> list[UnitSlice]:
    """Return the weights that take the units; where no layer does, all that belong to them.

    A unit that nobody takes is gone, and gradient × weight, summed over them, is the derivative of the loss by a
    factor in front of the unit. Summed over the weights that make it, it would be zero in front of a normalisation.
    """
    return list(group.taken or slices)


def find_choices(
    plan: NestPlan, specs: Sequence[Width | LowRank], batches: Sequence[LossBatch], skipped: Collection[str] = ()
) -> dict[Measure, list[Choice]]:
    """Return what the specs may make smaller, with worths by each measure, from one gradient for each batch.

    "norm", the safe choice, comes first: the squared norm of the unit's weights. "gradient" is the squared derivative
    of the loss by a factor in front of a unit. It says little of a network whose loss is nearly zero, where
    "activation" is better: the squared contribution of the unit to what takes it.
    """
    groups = [group for spec in specs if isinstance(spec, Width) for group in width_groups(plan, spec)]
    groups = [group for group in groups if group.name not in skipped]
    layers = [name for spec in specs if isinstance(spec, LowRank) for name in low_rank_layers(plan, spec)]
    slices = {group.name: tuple(unit_slices(plan, group)) for group in groups}
    with input_energies(plan.model, [name for group in groups for name in group.consumers]) as energies:
        by_gradient, squares = _gradient_sums(plan.model, [(g, slices[g.name]) for g in groups], layers, batches)
    worths: dict[Measure, dict[str, Tensor]] = {
        "norm": {g.name: _energy(plan.model, g, slices[g.name], {}) for g in groups},
        "gradient": by_gradient,
        "activation": {g.name: _energy(plan.model, g, gates(g, slices[g.name]), energies) for g in groups},
    }
    found: dict[Measure, list[Choice]] = {}
    for measure, by_group in worths.items():
        found[measure] = [_unit_choice(group, slices[group.name], by_group[group.name]) for group in groups]
        if groups or measure == "norm":
            found[measure] += [_rank_choice(plan, name, squares[name]) for name in layers]
    return {measure: choices for measure, choices in found.items() if choices}


def measure_again(
    model: nn.Module, choices: Sequence[Choice], sizes: Mapping[str, int], batches: Sequence[LossBatch]
) -> list[Choice]:
    """Return the choices with worths by gradient in the level of these sizes; units that it lacks stay last."""
    groups = [(choice.group, choice.slices) for choice in choices if isinstance(choice, UnitChoice)]
    layers = [choice.name for choice in choices if isinstance(choice, RankChoice)]
    with shrunk(model, choices, sizes):
        by_gradient, squares = _gradient_sums(model, groups, layers, batches)
    measured: list[Choice] = []
    for choice in choices:
        if isinstance(choice, RankChoice):
            measured.append(replace(choice, worth=_rank_worths(choice.linear, choice.factors, squares[choice.name])))
            continue
        worth, order = by_gradient[choice.name].tolist(), list(choice.order)
        if choice.group.can_be_ordered:
            order[: sizes[choice.name]] = sorted(order[: sizes[choice.name]], key=lambda unit: -worth[unit])
        measured.append(replace(choice, order=tuple(order), worth=tuple(worth[unit] for unit in order)))
    return measured


@contextmanager
def input_energies(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Collect Σ x² of the inputs of layers, by input channel, while they run inside the block."""
    energies: dict[str, Tensor] = {}

    def hook(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0].detach()
        squares = x.double().pow(2).movedim(1 if isinstance(module, nn.Conv2d) else -1, 0).flatten(1).sum(1).cpu()
        energies[name] = energies[name] + squares if name in energies else squares

    handles = [model.get_submodule(name).register_forward_pre_hook(partial(hook, name)) for name in names]
    try:
        yield energies
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode; modes, buffers, gradients and random state are as before after it."""
    snapshots = (Modes(model), Buffers(model), RandomState(model))
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    model.eval()
    try:
        yield
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        for snapshot in snapshots:
            snapshot.restore()


def loss_at(
    model: nn.Module, choices: Sequence[Choice], sizes: Mapping[str, int], batches: Sequence[LossBatch]
) -> float:
    """Return the mean loss of a level, computed by the whole network with zeros; the weights are restored exactly.

    BatchNorm normalises by the statistics of the batch, as it will at the level after `recalibrate` or some training.
    By those of the whole network every level looks bad, and one that gives all inputs the same output looks best.
    """
    with torch.no_grad(), frozen(model), shrunk(model, choices, sizes):
        _use_batch_statistics(model)
        return sum(float(batch()) for batch in batches) / len(batches)


@contextmanager
def shrunk(model: nn.Module, choices: Sequence[Choice], sizes: Mapping[str, int]) -> Iterator[None]:
    """Set the weights to zero that a level of these sizes lacks, inside a `with` block; they are restored exactly."""
    with torch.no_grad():
        saved = {parameter: parameter.detach().clone() for parameter in _changed(model, choices)}
    try:
        with torch.no_grad():
            for choice in choices:
                choice.shrink(model, sizes[choice.name])
        yield
    finally:
        with torch.no_grad():
            for parameter, values in saved.items():
                parameter.copy_(values)


def _use_batch_statistics(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.train()


def _changed(model: nn.Module, choices: Sequence[Choice]) -> Iterator[nn.Parameter]:
    for choice in choices:
        if isinstance(choice, RankChoice):
            yield model.get_submodule(choice.name).get_parameter("weight")
        else:
            yield from (model.get_parameter(part.parameter) for part in choice.slices)


def _gradient_sums(
    model: nn.Module,
    groups: Sequence[tuple[UnitGroup, Sequence[UnitSlice]]],
    layers: Sequence[str],
    batches: Sequence[LossBatch],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return Σ over batches of the squared derivatives by factors in front of units, and of weights' squared gradients.

    Both are by name: of the group, and of the layer.
    """
    by_unit_of = {group.name: torch.zeros(group.units, dtype=torch.float64, device="cpu") for group, _ in groups}
    squares: dict[str, Tensor] = {}
    for gradient in _gradients(model, batches):
        for group, slices in groups:
            by_unit_of[group.name] += _derivative(model, group, slices, gradient).pow(2)
        for name in layers:
            square = gradient[f"{name}.weight"].double().pow(2).cpu()
            squares[name] = squares[name] + square if name in squares else square
    return by_unit_of, squares


def _gradients(model: nn.Module, batches: Sequence[LossBatch]) -> Iterator[dict[str, Tensor]]:
    named = {name: p for name, p in model.named_parameters(remove_duplicate=False)}
    trained = {name: p for name, p in named.items() if p.requires_grad}
    for number, batch in enumerate(batches):
        with torch.enable_grad(), frozen(model):
            _use_batch_statistics(model)
            loss = batch()
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise ValueError(
                    f"loss_batches[{number}]() must return the loss of the model as a tensor of one number that has a "
                    f"gradient; got {loss!r}"
                )
            values = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        found = dict(zip(trained, values, strict=True))
        yield {name: torch.zeros_like(p) if (g := found.get(name)) is None else g for name, p in named.items()}


def _derivative(
    model: nn.Module, group: UnitGroup, slices: Sequence[UnitSlice], gradient: Mapping[str, Tensor]
) -> Tensor:
    """Return for each unit the derivative of the loss by a factor in front of it."""
    total = torch.zeros(group.units, dtype=torch.float64, device="cpu")
    for part in gates(group, slices):
        product = gradient[part.parameter].double() * model.get_parameter(part.parameter).detach().double()
        total += by_unit(product, part, group.units).transpose(0, 1).flatten(1).sum(1).cpu()
    return total


def _energy(model: nn.Module, group: UnitGroup, parts: Sequence[UnitSlice], energies: Mapping[str, Tensor]) -> Tensor:
    """Return for each unit the squares of its weights, each times the energy of the input that it is multiplied by."""
    total = torch.zeros(group.units, dtype=torch.float64, device="cpu")
    for part in parts:
        squares = model.get_parameter(part.parameter).detach().double().pow(2).cpu()
        energy = energies.get(part.parameter.rpartition(".")[0])
        if energy is not None:
            squares = (squares.movedim(part.dim, -1) * energy).movedim(-1, part.dim)
        total += by_unit(squares, part, group.units).transpose(0, 1).flatten(1).sum(1)
    return total


def _unit_choice(group: UnitGroup, slices: tuple[UnitSlice, ...], worth: Tensor) -> UnitChoice:
    order = torch.arange(group.units, device="cpu")
    if group.can_be_ordered:
        order = torch.argsort(worth, descending=True, stable=True)
    return UnitChoice(group, slices, tuple(order.tolist()), tuple(worth[order].tolist()))


def _rank_choice(plan: NestPlan, name: str, squares: Tensor) -> RankChoice:
    """Return the ranks of a layer; a rank is worth the increase of the loss to second order, by squared gradients."""
    linear = plan.linear_map(name)
    weight = linear.weight_of(plan.modules[name]).detach().double().cpu().flatten(1)
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    factors = (left * values, right)
    return RankChoice(name, linear, _rank_worths(linear, factors, squares), factors)


def _rank_worths(linear: LinearMap, factors: tuple[Tensor, Tensor], squares: Tensor) -> tuple[float, ...]:
    fisher = linear.stored(squares).flatten(1)
    worth = torch.einsum("ok,oi,ki->k", factors[0].pow(2), fisher, factors[1].pow(2))
    return tuple(worth.tolist())
