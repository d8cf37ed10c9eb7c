"""c_norm, c_sim, c_align, α, q: Criteria 1 to 3 and the theorem's quantities, from the two gradients of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

from partialsgd.masks import Mask
from partialsgd.meters.squares import Squares, added, squares
from partialsgd.method import GradientPair
from partialsgd.vectors import Vector

_KEPT = ("whole", "masked", "shared", "perturbed", "inner", "moved", "left_out")
_DERIVED = ("c_norm", "c_sim", "c_align", "cosine", "alpha", "q", "bounded_perturbation", "secant")
_OF_THE_MOVE = ("moved", "bounded_perturbation", "secant")


class Squared(NamedTuple):
    """The criteria as the paper's figures show them; a negative alignment stays negative."""

    c_norm: float
    c_sim: float
    c_align: float


@final
@dataclass(frozen=True)
class Criteria:
    """G is the gradient at x, G̃ the one at x̃; a criterion is 1 where a step is one of plain training."""

    whole: float
    """‖G‖"""
    masked: float
    """‖p ⊙ G‖"""
    shared: float
    """‖p ⊙ G‖ over the coordinates that both passes used"""
    perturbed: float
    """‖p ⊙ G̃‖, over the same"""
    inner: float
    """⟨p ⊙ G, p ⊙ G̃⟩"""
    moved: float = 0.0
    """‖δx‖; not a number for a group of layers, of which it is not known."""
    apart: float = math.nan
    """‖p ⊙ (G̃ − G)‖; not a number where the two are of different data."""
    left_out: int = 0
    """How many coordinates inside the mask one of the passes did not use."""
    level: str | None = None
    probe: str | None = None
    """What was measured instead of what is trained."""
    quiet: bool = False
    """Measured with dropout off, because x and x̃ do not draw the same noise."""
    consecutive: float | None = None
    """⟨p ⊙ g, p′ ⊙ g′⟩ of this step's mini-batch gradient and that of the step before, where it was asked for."""
    consecutive_cosine: float | None = None
    groups: Mapping[str, Criteria] = field(default_factory=dict)
    """The same of each group of layers by itself."""
    alerts: tuple[str, ...] = ()

    @property
    def c_norm(self) -> float:
        """Criterion 1: how much of the gradient the mask leaves."""
        return _ratio(self.whole, self.masked)

    @property
    def c_sim(self) -> float:
        """Criterion 2: how much shorter the perturbation makes it."""
        return _ratio(self.shared, self.perturbed)

    @property
    def c_align(self) -> float:
        """Criterion 3: one over the cosine of the two; negative where they point apart."""
        return _ratio(self.shared * self.perturbed, self.inner)

    @property
    def cosine(self) -> float:
        """Of the angle between p ⊙ G and p ⊙ G̃."""
        return _ratio(self.inner, self.shared * self.perturbed)

    @property
    def alpha(self) -> float:
        """The step size that the theorem allows, relative to plain training; clipped to [0, 1] (erratum E10)."""
        alpha = _ratio(self.inner, self.perturbed * self.perturbed)
        return min(1.0, max(0.0, alpha)) if math.isfinite(self.inner) and not math.isnan(alpha) else math.nan

    @property
    def q(self) -> float:
        """c_norm · ‖p ⊙ G‖ / (α ‖p ⊙ G̃‖), which is ‖G‖ / (α ‖p ⊙ G̃‖) where both passes use the same.

        Infinite where there is a gradient and the step sees nothing of it.
        """
        used = 0.0 if self.perturbed == 0 else self.alpha * self.perturbed
        if used == 0 or self.masked == 0:
            return _ratio(self.whole, 0.0)
        return self.c_norm * self.shared / used

    @property
    def bounded_perturbation(self) -> float:
        """‖δx‖ / max{‖p ⊙ G‖, ‖p ⊙ G̃‖}: Assumption 3 holds at this step if it is below 1/(2L)."""
        return 0.0 if self.moved == 0 else _ratio(self.moved, max(self.shared, self.perturbed))

    @property
    def secant(self) -> float:
        """‖p ⊙ (G̃ − G)‖ / ‖δx‖, which L is not below; not a number where nothing was moved."""
        return math.nan if self.moved == 0 else self.apart / self.moved

    @property
    def squared(self) -> Squared:
        """c_norm², c_sim² and the square of c_align with its sign."""
        c_norm, c_sim, c_align = self.c_norm, self.c_sim, self.c_align
        return Squared(c_norm * c_norm, c_sim * c_sim, c_align * abs(c_align))

    def numbers(self) -> dict[str, Any]:
        """For a log: every number under its name, those of the groups below `groups`."""
        names = [name for name in (*_KEPT, *_DERIVED) if name not in _OF_THE_MOVE or not math.isnan(self.moved)]
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.quiet:
            found["quiet"] = True
        if self.consecutive is not None:
            found |= {"consecutive": self.consecutive, "consecutive_cosine": self.consecutive_cosine}
        if self.alerts:
            found["alerts"] = list(self.alerts)
        if self.groups:
            found["groups"] = {name: group.numbers() for name, group in self.groups.items()}
        return {"level": self.level, "probe": self.probe, **found} if self.level or self.probe else found


def criteria_of(sight: GradientPair, group_of: Callable[[str], str | None] | None = None) -> Criteria:
    """Of what a meter or a guard is shown; with the groups of layers that `group_of` names, if it is given."""
    found = squares(sight.context.mask, sight.at_x, sight.at_perturbed, sight.process_group)
    whole = replace(
        _criteria(found), moved=sight.perturbation_norm, level=sight.context.level, quiet=sight.dropout_was_off
    )
    if sight.request.has_two_samples:
        whole = replace(whole, apart=math.nan)
    if group_of is None:
        return whole
    groups: dict[str, dict[str, Squares]] = {}
    for name, numbers in found.items():
        if (group := group_of(name)) is not None:
            groups.setdefault(group, {})[name] = numbers
    return replace(
        whole, groups={group: replace(_criteria(numbers), moved=math.nan) for group, numbers in groups.items()}
    )


def criteria(mask: Mask, at_x: Vector, at_perturbed: Vector) -> Criteria:
    """From gradients before the mask."""
    return _criteria(squares(mask, at_x, at_perturbed))


def _criteria(found: Mapping[str, Squares]) -> Criteria:
    total = added(found.values())
    shared, perturbed = math.sqrt(total.shared), math.sqrt(total.perturbed)
    return Criteria(
        whole=math.sqrt(total.whole),
        masked=math.sqrt(total.masked),
        shared=shared,
        perturbed=perturbed,
        # Where both are one gradient, roundings of the root must not make their angle.
        inner=shared * perturbed if total.shared == total.perturbed == total.inner else total.inner,
        apart=math.sqrt(total.apart),
        left_out=total.left_out,
    )


def _ratio(a: float, b: float) -> float:
    """a / b, where a zero below gives an infinity and two zeros nothing."""
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    return a / b
