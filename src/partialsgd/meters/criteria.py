"""The paper's Criteria 1 to 3, α and q of one step, and their summary over a run.

All numbers come from the gradient at x (G) and the gradient at x̃ (G̃), before the mask. The gradients are reduced on
their device, parameter by parameter, and the sums are read by the host in one transfer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, final

import torch
import torch.distributed as dist
from torch import Tensor

from partialsgd import theory, vectors
from partialsgd.masks import Entry, Mask, count_moving
from partialsgd.method import GradientPair
from partialsgd.theory import ratio
from partialsgd.vectors import Vector, masked_products

_NORMS = ("whole", "masked", "shared", "perturbed", "inner", "moved", "left_out")
_RATIOS = ("c_norm", "c_sim", "c_align", "cosine", "alpha", "q", "bounded_perturbation", "secant")
_NEEDS_MOVED = ("moved", "bounded_perturbation", "secant")
_SUMS = ("whole", "masked", "perturbed", "inner", "difference")

Number: TypeAlias = float | Tensor
"""A number that the host has, or a tensor of one number on a device."""


class Squared(NamedTuple):
    """The squared criteria, as the paper's figures show them; a negative alignment stays negative."""

    c_norm: float
    c_sim: float
    c_align: float


@final
@dataclass(frozen=True)
class Criteria:
    """The measurement of one step. Every criterion is 1 for a step of plain training."""

    whole: float
    """‖G‖"""
    masked: float
    """‖p ⊙ G‖"""
    shared: float
    """‖p ⊙ G‖ over the coordinates that both passes used."""
    perturbed: float
    """‖p ⊙ G̃‖ over the same coordinates."""
    inner: float
    """⟨p ⊙ G, p ⊙ G̃⟩"""
    moved: float = 0.0
    """‖δx‖; nan for a group of layers, for which it is not computed."""
    difference: float = math.nan
    """‖p ⊙ (G̃ − G)‖; nan if the two gradients come from different batches."""
    left_out: int = 0
    """The number of coordinates inside the mask that one of the two passes did not use."""
    level: str | None = None
    probe: str | None = None
    """The name of the probe, if something else than the trained step was measured."""
    dropout_off: bool = False
    """True if both passes ran without dropout, because x and x̃ cannot draw the same dropout noise."""
    consecutive: float | None = None
    """⟨p ⊙ g, p′ ⊙ g′⟩ of this step's mini-batch gradient and the previous step's, if the meter compares them."""
    consecutive_cosine: float | None = None
    groups: Mapping[str, Criteria] = field(default_factory=dict)
    """The same numbers for each group of layers."""
    alerts: tuple[str, ...] = ()

    @cached_property
    def c_norm(self) -> float:
        """Criterion 1, ‖G‖ / ‖p ⊙ G‖: large if the mask leaves little of the gradient."""
        return ratio(self.whole, self.masked)

    @cached_property
    def c_sim(self) -> float:
        """Criterion 2, ‖p ⊙ G‖ / ‖p ⊙ G̃‖: large if the perturbation makes the gradient shorter."""
        return ratio(self.shared, self.perturbed)

    @cached_property
    def c_align(self) -> float:
        """Criterion 3, one over the cosine between p ⊙ G and p ⊙ G̃; negative if they point in opposite directions."""
        return ratio(self.shared * self.perturbed, self.inner)

    @cached_property
    def cosine(self) -> float:
        """The cosine of the angle between p ⊙ G and p ⊙ G̃."""
        return ratio(self.inner, self.shared * self.perturbed)

    @cached_property
    def alpha(self) -> float:
        """The theorem's step size relative to plain training, in [0, 1]; see `theory.alpha`."""
        return theory.alpha(inner=self.inner, perturbed=self.perturbed)

    @cached_property
    def q(self) -> float:
        """‖G‖ / (α ‖p ⊙ G̃‖), see `theory.q`; ‖G‖ is scaled to the coordinates that both passes used."""
        whole = self.whole if self.shared == 0 else self.c_norm * self.shared
        return theory.q(whole=whole, masked=self.shared, perturbed=self.perturbed, inner=self.inner)

    @cached_property
    def bounded_perturbation(self) -> float:
        """‖δx‖ / max{‖p ⊙ G‖, ‖p ⊙ G̃‖}: Assumption 3 holds at this step if it is below 1/(2L)."""
        return 0.0 if self.moved == 0 else ratio(self.moved, max(self.shared, self.perturbed))

    @cached_property
    def secant(self) -> float:
        """‖p ⊙ (G̃ − G)‖ / ‖δx‖, a lower bound of L; nan if δx = 0."""
        return math.nan if self.moved == 0 else self.difference / self.moved

    @property
    def squared(self) -> Squared:
        """c_norm², c_sim², and the square of c_align with the sign of c_align."""
        return Squared(self.c_norm * self.c_norm, self.c_sim * self.c_sim, self.c_align * abs(self.c_align))

    def numbers(self) -> dict[str, Any]:
        """Return every number by name, as `MetricsLog` writes them; those of the groups are under "groups"."""
        names = [name for name in (*_NORMS, *_RATIOS) if name not in _NEEDS_MOVED or not math.isnan(self.moved)]
        numbers: dict[str, Any] = {"level": self.level, "probe": self.probe} if self.level or self.probe else {}
        numbers |= {name: getattr(self, name) for name in names}
        if self.dropout_off:
            numbers["quiet"] = True  # the key in log files since the first version
        if self.consecutive is not None:
            numbers |= {"consecutive": self.consecutive, "consecutive_cosine": self.consecutive_cosine}
        if self.alerts:
            numbers["alerts"] = list(self.alerts)
        if self.groups:
            numbers["groups"] = {name: group.numbers() for name, group in self.groups.items()}
        return numbers


class SquaredNorms(NamedTuple):
    """The squared norms and inner products of one parameter, or their sums over several parameters."""

    whole: float = 0.0
    masked: float = 0.0
    shared: float = 0.0
    perturbed: float = 0.0
    inner: float = 0.0
    difference: float = 0.0
    """‖p ⊙ (G̃ − G)‖², computed by itself: as a combination of the others it would be mostly rounding error."""
    left_out: int = 0


def criteria_of(pair: GradientPair, group_of: Mapping[str, str] | None = None) -> Criteria:
    """Compute the criteria from a pair of gradients; `group_of` maps parameter names to groups of layers."""
    return read_criteria(pair, group_of, [])[0]


def read_criteria(
    pair: GradientPair, group_of: Mapping[str, str] | None, others: Sequence[Number]
) -> tuple[Criteria, list[float]]:
    """Return the criteria and the other numbers, all of which the host reads in one transfer."""
    norms, (moved, *numbers) = _read_norms(
        pair.context.mask, pair.at_x, pair.at_perturbed, [pair.perturbation_norm, *others], pair.process_group
    )
    groups: dict[str, list[SquaredNorms]] = {}
    for name, squares in norms.items():
        if group_of is not None and name in group_of:
            groups.setdefault(group_of[name], []).append(squares)
    whole = _criteria(norms.values())
    measured = replace(
        whole,
        moved=moved,
        difference=math.nan if pair.request.has_two_samples else whole.difference,
        level=pair.context.level,
        dropout_off=pair.dropout_was_off,
        groups={group: replace(_criteria(squares), moved=math.nan) for group, squares in groups.items()},
    )
    return measured, numbers


def criteria(mask: Mask, at_x: Vector, at_perturbed: Vector) -> Criteria:
    """Compute the criteria from two gradients before the mask."""
    return _criteria(squared_norms(mask, at_x, at_perturbed).values())


def squared_norms(mask: Mask, at_x: Vector, at_perturbed: Vector) -> dict[str, SquaredNorms]:
    """Return the squared norms of each parameter, summed in double precision."""
    return _read_norms(mask, at_x, at_perturbed, [])[0]


@torch.no_grad()
def _read_norms(
    mask: Mask,
    at_x: Vector,
    at_perturbed: Vector,
    others: Sequence[Number],
    process_group: dist.ProcessGroup | None = None,
) -> tuple[dict[str, SquaredNorms], list[float]]:
    """Return the squared norms, averaged over the process group, and the other numbers, in one read.

    Of sharded parameters they are added up over the ranks that share them."""
    entries = {
        name: entry
        for name, entry in mask.entries.items()
        if name in at_x or (name in at_perturbed and entry is not False)
    }
    rows = masked_products(mask, entries, at_x, at_perturbed)
    tensors = [*(number for row in rows for number in row.values()), *(n for n in others if isinstance(n, Tensor))]
    zero = torch.zeros((), dtype=torch.float64, device=tensors[0].device if tensors else "cpu")
    table = torch.stack([zero, *(row.get(key, zero).to(zero) for row in rows for key in _SUMS)])[1:]
    if len(table):
        vectors.add_up(table.view(len(entries), -1), [mask.parameters[name] for name in entries])
        if process_group is not None:
            dist.all_reduce(table, group=process_group)
            table /= dist.get_world_size(process_group)
    in_both = at_x.keys() & at_perturbed.keys()
    counts = [0 if name in in_both else _count(mask, name, entry) for name, entry in entries.items()]
    sums, numbers = _read_together(table, [*counts, *others])
    norms: dict[str, SquaredNorms] = {}
    for k, name in enumerate(entries):
        whole, masked, perturbed, product, difference = sums[k * len(_SUMS) : (k + 1) * len(_SUMS)]
        shared = masked if name in in_both else 0.0
        norms[name] = SquaredNorms(whole, masked, shared, perturbed, product, difference, int(numbers[k]))
    return norms, numbers[len(entries) :]


def _read_together(table: Tensor, numbers: Sequence[Number]) -> tuple[list[float], list[float]]:
    """Read a table and further numbers in one transfer; a number that the host has stays as it is."""
    on_device = [number.detach().reshape(1).to(table) for number in numbers if isinstance(number, Tensor)]
    values: list[float] = torch.cat([table, *on_device]).tolist()
    read = iter(values[len(table) :])
    return values[: len(table)], [next(read) if isinstance(number, Tensor) else number for number in numbers]


def _criteria(norms: Iterable[SquaredNorms]) -> Criteria:
    columns = zip(*norms, strict=True)
    sums = SquaredNorms(*(sum(column) for column in columns))
    shared, perturbed = math.sqrt(sums.shared), math.sqrt(sums.perturbed)
    return Criteria(
        whole=math.sqrt(sums.whole),
        masked=math.sqrt(sums.masked),
        shared=shared,
        perturbed=perturbed,
        # If both are the same gradient, the rounding of the square roots must not show as an angle between them.
        inner=shared * perturbed if sums.shared == sums.perturbed == sums.inner else sums.inner,
        difference=math.sqrt(sums.difference),
        left_out=sums.left_out,
    )


def _count(mask: Mask, name: str, entry: Entry) -> int | Tensor:
    return count_moving([entry])[0] if isinstance(entry, Tensor) else entry * mask.parameters[name].numel()


@final
@dataclass(frozen=True)
class Summary:
    """Statistics of all measurements of one mask.

    The theorem needs the maximum, which grows without bound when the core is nearly stationary: ‖p ⊙ G‖ → 0, and
    c_norm → ∞ (erratum E22). The mean is then the number to look at.
    """

    count: int
    mean: Mapping[str, float]
    """The mean over the steps at which the quantity is finite and, for c_align, not negative."""
    max: Mapping[str, float]
    """The maximum; infinite for c_align and q after one negative alignment, because no bound holds then."""
    min: Mapping[str, float]
    """The minimum, which is the worst case of α and the cosine."""
    negative: float
    """The share of steps with a negative inner product."""

    def __str__(self) -> str:
        norms = ", ".join(f"{name} {self.mean[name]:.3g} (max {self.max[name]:.3g})" for name in ("c_norm", "c_sim"))
        align = f"c_align {self.mean['c_align']:.3g} (max {self.max['c_align']:.3g}, {self.negative:.0%} negative)"
        return f"{self.count} measured: {norms}, {align}, q {self.mean['q']:.3g} (max {self.max['q']:.3g})"


def add_to_summary(memory: MutableMapping[str, Any], name: str, measured: Criteria) -> None:
    """Add one measurement to the statistics that `memory` holds under the name of its mask."""
    increments = {"count": 1, "negative": int(measured.inner < 0)}
    for quantity in _RATIOS:
        value, key = getattr(measured, quantity), f"{name}/{quantity}"
        memory[f"{key}.last"] = value
        bound = math.inf if quantity == "c_align" and value < 0 else value
        if math.isfinite(bound):
            increments |= {f"{quantity}.sum": value, f"{quantity}.count": 1}
        if not math.isnan(bound):
            memory[f"{key}.max"] = max(float(memory.get(f"{key}.max", -math.inf)), bound)
            memory[f"{key}.min"] = min(float(memory.get(f"{key}.min", math.inf)), value)
    for statistic, increment in increments.items():
        memory[f"{name}/{statistic}"] = memory.get(f"{name}/{statistic}", 0) + increment


def summaries(memory: Mapping[str, Any]) -> dict[str, Summary]:
    """Return the summary of every mask that was measured, by the name of its level or mask."""
    names = [key.removesuffix("/count") for key in memory if key.endswith("/count")]
    return {name: _summary(memory, name) for name in names}


def latest(memory: Mapping[str, Any], name: str, quantity: str) -> float | None:
    """Return the last measured value, for rules that decide by it; None before the first measurement."""
    value = memory.get(f"{name}/{quantity}.last")
    return None if value is None else float(value)


def times_measured(memory: Mapping[str, Any], name: str) -> int:
    """Return how often the mask was measured."""
    return int(memory.get(f"{name}/count", 0))


def _summary(memory: Mapping[str, Any], name: str) -> Summary:
    count = times_measured(memory, name)
    finite = {quantity: memory.get(f"{name}/{quantity}.count", 0) for quantity in _RATIOS}
    return Summary(
        count=count,
        mean={quantity: memory[f"{name}/{quantity}.sum"] / n if n else math.nan for quantity, n in finite.items()},
        max={quantity: memory.get(f"{name}/{quantity}.max", math.nan) for quantity in _RATIOS},
        min={quantity: memory.get(f"{name}/{quantity}.min", math.nan) for quantity in _RATIOS},
        negative=memory.get(f"{name}/negative", 0) / max(1, count),
    )
