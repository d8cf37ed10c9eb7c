"""Estimates of L, M, σ² and F_0, the constants of Theorem 1, from a model, a loss and some batches.

    findings = constants.estimate(model, loss, batches, masks=["core", "full"])    # loss(batch) → Tensor
    print(findings.reading(q=1.8, epsilon=1e-2))

Parameters, `.grad`, buffers, training modes and generators are unchanged afterwards.
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
from partialsgd.meters.criteria import summaries
from partialsgd.method import Context, Method, NeedsGradient, Remembered
from partialsgd.nested.nested import unwrap_nested
from partialsgd.parameters import Parameters, parameters_of
from studies.constants.curvature import Curvature, power_iteration
from studies.constants.gradient_noise import Estimate, Point, bound, point, standard_error
from studies.constants.objective import Loss, Objective


@final
@dataclass(frozen=True)
class Findings:
    """The constants with their errors, and the measurements that they come from."""

    smoothness: Estimate
    """L"""
    M: Estimate
    variance: Estimate
    """σ²"""
    gap: Estimate
    """F_0 = f(x_0) − f*, where x_0 is the first point."""
    points: tuple[Point, ...]
    curvature: Curvature | None
    """The power iteration that gave L; None if L was passed as `smoothness`."""

    def reading(self, *, epsilon: float, q: float = 1.0) -> str:
        """Describe the step size and number of steps that Theorem 1 gives for an average ‖G‖² of at most `epsilon`.

        `q` is the largest q_t of the run, as a `CriteriaMeter` measures it; 1 is plain SGD.
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
    """Estimate all constants at the model's current x, together with earlier `points` from `measure`.

    `masks` are the masks in use, as masks or names of levels; by default the mask is all ones. `lowest` is a lower
    bound of the loss. `smoothness` is L if it is known; otherwise power iteration on the Hessian estimates it, to a
    relative residual of `tolerance` or with at most `iterations` products.
    """
    objective = Objective(model, loss, batches, seed=seed)
    all_points = (*points, point(objective, _named(objective, masks)))
    gap = _gap(all_points[0], lowest)
    M, variance = bound(all_points)
    if smoothness is not None:
        return Findings(Estimate(smoothness, math.nan, "given"), M, variance, gap, all_points, None)
    curvature = power_iteration(objective, tolerance=tolerance, iterations=iterations, seed=seed)
    return Findings(curvature.estimate, M, variance, gap, all_points, curvature)


def measure(
    model: nn.Module, loss: Loss, batches: Iterable[Any], *, masks: Sequence[str | Mask] = (), seed: int = 0
) -> Point:
    """Measure what one x says about M, σ² and F_0; collect such points along a run for `estimate(points=…)`.

    Each batch must be an independent draw of the training batch size: σ² is the noise of one such batch.
    """
    objective = Objective(model, loss, batches, seed=seed)
    return point(objective, _named(objective, masks))


def secant(sgd: PartialSGD) -> Estimate:
    """Return a lower bound of L from the run itself: the largest ‖p ⊙ (G̃ − G)‖ / ‖δx‖ that its CriteriaMeter measured.

    Both gradients are of one batch, whose loss may curve more than f.
    """
    moved = [one for one in summaries(sgd.measured.get("meter", {})).values() if not math.isnan(one.max["secant"])]
    pairs = sum(one.count for one in moved)
    if not pairs:
        raise ValueError(
            "no pair of gradients was measured at two points; build PartialSGD with meter=ps.CriteriaMeter()"
        )
    return Estimate(
        max(one.max["secant"] for one in moved), math.nan, f"a lower bound, from {pairs} pairs of gradients"
    )


def masks_of(method: Method, model: nn.Module, *, times: Iterable[int] = range(8), seed: int = 0) -> list[Mask]:
    """Return the different masks that a method chooses at the given t, as a sample of all that it may choose."""
    method = method.bind(model)
    parameters, memory, masks = parameters_of(model), dict[str, Remembered](), list[Mask]()
    for t in times:
        for number, branch in enumerate(method.branches_at(Context(t, seed, parameters, memory))):
            try:
                mask = branch.mask(Context(t, seed, parameters, memory, number, branch.level)).simplified()
            except NeedsGradient:
                raise ValueError(
                    f"{method.name} chooses its mask by the gradient that it masks, which Assumption 2 does not allow "
                    "(erratum E2); pass masks that were chosen before"
                ) from None
            if not any(_is_same(mask, other) for other in masks):
                masks.append(mask)
    return masks


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
            raise TypeError(
                f"masks must hold masks or names of levels, got {mask!r}; constants.masks_of gives those of a method"
            )
    return named


def _require_same_model(mask: Mask, parameters: Parameters) -> None:
    shapes = all(entry.shape == parameters[name].shape for name, entry in mask.partial.items() if name in parameters)
    if mask.keys() != parameters.keys() or not shapes:
        raise ValueError(f"{mask!r} belongs to another model; build it from the model that is measured")


def _is_same(a: Mask, b: Mask) -> bool:
    pairs = ((entry, b[name]) for name, entry in a.items())
    return all(x is y or (isinstance(x, Tensor) and isinstance(y, Tensor) and torch.equal(x, y)) for x, y in pairs)


def _gap(first: Point, lowest: float) -> Estimate:
    mean = sum(first.losses) / len(first)
    if mean < lowest:
        raise ValueError(f"the loss is {mean:.6g}, below lowest = {lowest}; pass a lower bound of the loss")
    note = f"one standard error over {len(first)} batches, if f* = {lowest:g}"
    return Estimate(mean - lowest, standard_error(first.losses), note)


def _reading(findings: Findings, epsilon: float, q: float) -> list[str]:
    L, M, variance = findings.smoothness.value, findings.M.value, findings.variance.value
    if L == 0:
        return ["L = 0: f does not curve here, and the theorem gives no step size"]
    limit = f"step size: at most 1/(L(M + 1)) = {1 / (L * (M + 1)):.3g}, less where f curves more than here"
    if q == math.inf:
        return [limit, "q is infinite: a step used nothing of the gradient, and the theorem gives no bound of ‖G‖²"]
    step = theory.step_size(smoothness=L, epsilon=epsilon, M=M, variance=variance, q=q)
    needed, plain = (
        theory.iterations(smoothness=L, epsilon=epsilon, gap=1.0, M=M, variance=variance, q=power) for power in (q, 1.0)
    )
    lines = [limit, f"for an average ‖G‖² of {epsilon:g}: {needed * findings.gap.value:.3g} steps of size {step:.3g}"]
    if q > 1:
        lines.append(
            f"with these masks, q² = {q**2:.3g}: at most {q**2:.3g} times the iterations of plain SGD where the noise "
            f"is small, q⁴ = {q**4:.3g} times where it dominates; here {needed / plain:.3g} times"
        )
    return lines
