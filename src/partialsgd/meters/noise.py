"""L, M, σ², F_0: the constants of Theorem 1, estimated from a model, a loss and some batches.

    found = noise.estimate(model, loss, batches, masks=["core", "full"])    # loss(batch) → Tensor
    print(found.reading(q=1.8, epsilon=1e-2))

Nothing is changed by it: parameters, `.grad`, buffers, modes and generators are afterwards what they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from partialsgd import theory
from partialsgd.engine.partial_sgd import PartialSGD
from partialsgd.masks import Mask, everything
from partialsgd.meters.curvature import Curvature, power_iteration
from partialsgd.meters.envelopes import bound
from partialsgd.meters.estimates import Estimate, standard_error
from partialsgd.meters.objectives import Loss, Objective
from partialsgd.meters.spreads import Point, point
from partialsgd.meters.summaries import summaries
from partialsgd.method import Context, Method, NeedsGradient, Remembered
from partialsgd.nested.nested import unwrap_nested
from partialsgd.parameters import Parameters, parameters_of


@final
@dataclass(frozen=True)
class Findings:
    """The constants at x, each with its uncertainty, and what they were found from."""

    smoothness: Estimate
    """L"""
    M: Estimate
    variance: Estimate
    """σ²"""
    gap: Estimate
    """F_0 = f(x_0) − f*, x_0 being the first point."""
    points: tuple[Point, ...]
    curvature: Curvature | None
    """How L was found; None where it was given."""

    def reading(self, *, epsilon: float, q: float = 1.0) -> str:
        """In words, what Theorem 1 makes of these numbers for an average of ‖G‖² of at most `epsilon`.

        `q` is the largest q_t of the run, as a meter has seen it; 1 is plain SGD.
        """
        lines = [f"L = {self.smoothness}", f"M = {self.M}", f"σ² = {self.variance}", f"F_0 = {self.gap}"]
        return "\n".join([*lines, *_reading(self, epsilon, q)])


def estimate(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    masks: Sequence[str | Mask] = (),
    points: Sequence[Point] = (),
    lowest: float = 0.0,
    smoothness: float | None = None,
    tolerance: float = 1e-2,
    iterations: int = 100,
    seed: int = 0,
) -> Findings:
    """All constants, at the model's x and at the `points` that `measure` has seen before.

    `masks` are those in use, as masks or as names of levels; none means all ones. `lowest` is a number that the loss
    cannot fall below. `smoothness` is L where it is known; else it is found by power iteration on the Hessian, to a
    relative residual of `tolerance` or with `iterations` products.
    """
    objective = Objective(model, loss, batches, seed=seed)
    seen = (*points, point(objective, _named(objective, masks)))
    gap = _gap(seen[0], lowest)
    M, variance = bound(seen)
    if smoothness is not None:
        return Findings(Estimate(smoothness, math.nan, "given"), M, variance, gap, seen, None)
    curvature = power_iteration(objective, tolerance=tolerance, iterations=iterations, seed=seed)
    return Findings(curvature.estimate, M, variance, gap, seen, curvature)


def measure(
    model: nn.Module, loss: Loss, batches: Iterable[Any], *, masks: Sequence[str | Mask] = (), seed: int = 0
) -> Point:
    """What one x tells of M, σ² and F_0: a few numbers, to be collected along a run for `estimate(points=…)`.

    Each batch must be an independent draw of the size that is trained with: σ² is that of one such batch.
    """
    objective = Objective(model, loss, batches, seed=seed)
    return point(objective, _named(objective, masks))


def secant(sgd: PartialSGD) -> Estimate:
    """L from the run itself: the steepest ‖p ⊙ (G̃ − G)‖ / ‖δx‖ that its CriteriaMeter has seen, which L is not below.

    Both gradients are of one batch, whose loss may curve more than f.
    """
    seen = [one for one in summaries(sgd.measured.get("meter", {})).values() if not math.isnan(one.max["secant"])]
    pairs = sum(one.count for one in seen)
    if not pairs:
        raise ValueError("no pair of gradients was measured at two points: PartialSGD(…, meter=ps.CriteriaMeter())")
    return Estimate(max(one.max["secant"] for one in seen), math.nan, f"a lower bound, from {pairs} pairs of gradients")


def drawn(method: Method, model: nn.Module, *, times: Iterable[int] = range(8), seed: int = 0) -> list[Mask]:
    """The different masks that a method chooses at some t. They stand for all that it may choose."""
    method = method.bind(model)
    parameters, memory, found = parameters_of(model), dict[str, Remembered](), list[Mask]()
    for t in times:
        for number, branch in enumerate(method.branches_at(Context(t, seed, parameters, memory))):
            try:
                mask = branch.mask(Context(t, seed, parameters, memory, number, branch.level)).simplified()
            except NeedsGradient:
                raise ValueError(
                    f"{method.name} chooses its mask by the gradient that it masks, which Assumption 2 does not allow "
                    "(erratum E2); give masks that were chosen before"
                ) from None
            if not any(_is_same(mask, other) for other in found):
                found.append(mask)
    return found


def _named(objective: Objective, masks: Sequence[str | Mask]) -> dict[str, Mask]:
    model, parameters = objective.model, objective.all_parameters
    if isinstance(masks, (str, Mask)):
        raise TypeError(f"masks must be a list of masks or levels, got {masks!r}; write masks=[…]")
    named: dict[str, Mask] = {} if masks else {"all ones": everything(parameters)}
    for k, mask in enumerate(masks):
        if isinstance(mask, str):
            named[mask] = unwrap_nested(model).mask(mask, parameters)
        elif isinstance(mask, Mask):
            _require_same_model(mask, parameters)
            named[f"mask {k}"] = mask
        else:
            raise TypeError(f"masks must hold masks or names of levels, got {mask!r}; see noise.drawn for a method's")
    return named


def _require_same_model(mask: Mask, parameters: Parameters) -> None:
    shapes = all(entry.shape == parameters[name].shape for name, entry in mask.partial.items() if name in parameters)
    if mask.keys() != parameters.keys() or not shapes:
        raise ValueError(f"{mask!r} is of another model; build it from the model that is measured")


def _is_same(a: Mask, b: Mask) -> bool:
    pairs = ((entry, b[name]) for name, entry in a.items())
    return all(x is y or (isinstance(x, Tensor) and isinstance(y, Tensor) and torch.equal(x, y)) for x, y in pairs)


def _gap(first: Point, lowest: float) -> Estimate:
    mean = sum(first.losses) / len(first)
    if mean < lowest:
        raise ValueError(f"the loss is {mean:.6g}, below lowest = {lowest}; give a number that it cannot fall below")
    note = f"one standard error over {len(first)} batches, if f* = {lowest:g}"
    return Estimate(mean - lowest, standard_error(first.losses), note)


def _reading(found: Findings, epsilon: float, q: float) -> list[str]:
    L, M, variance = found.smoothness.value, found.M.value, found.variance.value
    if L == 0:
        return ["L = 0: f does not curve here, and the theorem gives no step size"]
    limit = f"step size: at most 1/(L(M + 1)) = {1 / (L * (M + 1)):.3g}, less where f curves more than here"
    if q == math.inf:
        return [limit, "q is infinite: a step has kept nothing of the gradient, and the theorem says nothing of ‖G‖²"]
    step = theory.step_size(smoothness=L, epsilon=epsilon, M=M, variance=variance, q=q)
    needed, plain = (
        theory.iterations(smoothness=L, epsilon=epsilon, gap=1.0, M=M, variance=variance, q=power) for power in (q, 1.0)
    )
    lines = [limit, f"for an average ‖G‖² of {epsilon:g}: {needed * found.gap.value:.3g} steps of size {step:.3g}"]
    if q > 1:
        lines.append(
            f"with these masks, q² = {q**2:.3g}: at most {q**2:.3g} times the iterations of plain SGD where the noise "
            f"is small, q⁴ = {q**4:.3g} times where it dominates; here {needed / plain:.3g} times"
        )
    return lines
