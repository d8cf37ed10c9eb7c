"""Theorem 1 as functions of numbers (γ_base, T, α, q), with the constants corrected or as printed in the paper.

`smoothness` is L (Assumption 1), `gap` is F_0 = f(x_0) − f*, and `M` and `variance` (σ²) bound the noise of every mask
in use: E‖p ⊙ ξ(x)‖² ≤ M ‖p ⊙ ∇f(x)‖² + σ² (Assumption 2). G is the gradient at x and G̃ the gradient at x̃. Labels such
as E7 refer to docs/errata.md. This module needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

__all__ = ["Bounds", "alpha", "alternating_bound", "average_bound"]
__all__ += ["descent", "iterations", "lemma_bounds", "q", "ratio", "step_size"]

Constants = Literal["corrected", "printed"]
Denominator = Literal["max", "perturbed"]


@final
@dataclass(frozen=True)
class Bounds:
    """The guarantees of Lemma 2 for each step. Under a strict assumption no bound is attained."""

    c_sim: float
    c_align: float
    alpha: float
    """A lower bound; the other three are upper bounds."""
    q: float
    """The bound without a mask. With a mask, multiply it by c_norm."""


def step_size(
    *,
    smoothness: float,
    epsilon: float,
    M: float = 0.0,
    variance: float = 0.0,
    q: float = 1.0,
    constants: Constants = "corrected",
) -> float:
    """Return γ_base = min{1/(L(M + 1)), ε/(2 q² L σ²)}; q = 1 is part 1 of Theorem 1, and plain SGD.

    The paper prints ε/(L σ²) for both parts. The noise term alone is then ε (E7), or q² ε in part 2 (E9).
    """
    _require_problem(smoothness, M, variance)
    _require_target(epsilon, q, constants)
    longest = 1 / (smoothness * (M + 1))
    if variance == 0:
        return longest
    factor = 2 * q * q if constants == "corrected" else 1.0
    return min(longest, epsilon / (factor * smoothness * variance))


def iterations(
    *,
    smoothness: float,
    epsilon: float,
    gap: float,
    M: float = 0.0,
    variance: float = 0.0,
    q: float = 1.0,
    constants: Constants = "corrected",
) -> float:
    """Return T = max{4 (M + 1) q²/ε, 8 σ² q⁴/ε²} · L F_0, the number of steps, not rounded.

    After T steps of size `step_size` the average of α_t² ‖p ⊙ G̃‖² (q = 1, part 1) or of ‖G‖² (q = max q_t, part 2) is
    at most ε. The paper's proof prints 4 ((M + 1) q²/ε + σ² q⁴/ε²), up to a factor of 2 too small (E8).
    """
    _require_problem(smoothness, M, variance)
    _require_target(epsilon, q, constants)
    _require("gap", gap, gap >= 0, "at least 0: it is f(x_0) − f*")
    inverse = q * q / epsilon
    if math.isinf(inverse):
        return math.inf
    steady, noisy = 4 * (M + 1) * inverse, 4 * variance * inverse * inverse
    return (max(steady, 2 * noisy) if constants == "corrected" else steady + noisy) * smoothness * gap


def average_bound(
    *, smoothness: float, gap: float, T: float, gamma_base: float, M: float = 0.0, variance: float = 0.0, q: float = 1.0
) -> float:
    """Bound the average over T steps: (1/T) Σ E α_t² ‖p ⊙ G̃‖² ≤ 2 F_0/(T γ_base) + γ_base L σ².

    Multiplied by q² it bounds the average of ‖G‖². It holds for every γ_base ≤ 1/(L(M + 1)), and for any step-size
    factor between 0 and α_t in place of α_t.
    """
    _require_problem(smoothness, M, variance)
    _require_step(gamma_base, smoothness, M)
    _require_target(1.0, q)
    _require("gap", gap, gap >= 0, "at least 0: it is f(x_0) − f*")
    _require("T", T, T > 0, "positive: it is a number of steps")
    return q * q * (2 * gap / (T * gamma_base) + gamma_base * smoothness * variance)


def alternating_bound(
    *,
    smoothness: float,
    gap: float,
    T: float,
    gamma_base: float,
    M: float = 0.0,
    variance: float = 0.0,
    share: float = 0.5,
) -> float:
    """Bound the full network in alternating training: (2/T) Σ_{t even} E‖G‖² ≤ 4 F_0/(T γ_base) + 2 γ_base L σ².

    This bound is not in the paper and does not contain q (E22): it sums Lemma 3 over all T steps and keeps those of the
    full network, where α_t = q_t = 1. `share` is their share; the other steps need a factor between 0 and α_t.
    """
    _require("share", share, 0 < share <= 1, "in (0, 1]: it is the share of steps that train the full network")
    return average_bound(smoothness=smoothness, gap=gap, T=T, gamma_base=gamma_base, M=M, variance=variance) / share


def descent(
    *,
    value: float,
    perturbed: float,
    alpha: float,
    smoothness: float,
    gamma_base: float,
    M: float = 0.0,
    variance: float = 0.0,
) -> float:
    """Bound E f(x_{t+1}) by Lemma 3: f(x_t) − γ_base/2 · α_t² ‖p ⊙ G̃‖² + γ_base² L σ²/2, where `value` is f(x_t).

    It holds for any `alpha` between 0 and the theorem's α_t. The noise is the noise at x̃_t (E18).
    """
    _require_problem(smoothness, M, variance)
    _require_step(gamma_base, smoothness, M)
    _require("perturbed", perturbed, perturbed >= 0, "at least 0: it is ‖p ⊙ G̃‖")
    _require("alpha", alpha, 0 <= alpha <= 1, "in [0, 1]: see theory.alpha")
    return value - gamma_base / 2 * (alpha * perturbed) ** 2 + gamma_base**2 * smoothness * variance / 2


def alpha(*, inner: float, perturbed: float, constants: Constants = "corrected") -> float:
    """Return α_t = ⟨p ⊙ G, p ⊙ G̃⟩/‖p ⊙ G̃‖², clipped to [0, 1]; nan if p ⊙ G̃ = 0 or the inner product overflowed.

    The paper does not clip at 0, so that a negative inner product gives a step uphill (E10).
    """
    _require_constants(constants)
    square = perturbed * perturbed
    value = inner / square if 0 < square < math.inf else ratio(ratio(inner, perturbed), perturbed)
    if not math.isfinite(inner) or math.isnan(value):
        return math.nan
    return min(1.0, max(0.0, value)) if constants == "corrected" else min(1.0, value)


def q(*, whole: float, masked: float, perturbed: float, inner: float, constants: Constants = "corrected") -> float:
    """Return q_t = ‖G‖/(α_t ‖p ⊙ G̃‖): inf if the step guarantees nothing, nan if G = 0.

    The paper prints ‖G‖/‖p ⊙ G‖ · max{‖p ⊙ G‖/‖p ⊙ G̃‖, ‖p ⊙ G‖ ‖p ⊙ G̃‖/⟨p ⊙ G, p ⊙ G̃⟩}. This is the same for a positive
    inner product, and finite for a negative one, where nothing is guaranteed (E10).
    """
    if constants == "corrected":
        return ratio(whole, 0.0 if perturbed == 0 else alpha(inner=inner, perturbed=perturbed) * perturbed)
    _require_constants(constants)
    norms, angle = ratio(masked, perturbed), ratio(masked * perturbed, inner)
    return ratio(whole, masked) * (math.nan if math.isnan(norms + angle) else max(norms, angle))


def ratio(a: float, b: float) -> float:
    """Return a / b, with ±inf for a division by zero and nan for 0 / 0."""
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    return a / b


def lemma_bounds(*, kappa: float = 0.5, denominator: Denominator = "max", constants: Constants = "corrected") -> Bounds:
    """Return the bounds of Lemma 2: if L ‖δx‖ ≤ κ · max{‖p ⊙ G‖, ‖p ⊙ G̃‖}, c_sim ≤ 1/(1 − κ), c_align ≤ 1/√(1 − κ²).

    κ = 1/2 is Assumption 3 and gives 2 and 2/√3. With `denominator="perturbed"` (L ‖δx‖ ≤ κ · ‖p ⊙ G̃‖, which the proof
    uses) c_sim ≤ 1 + κ. All bounds are attained. The paper prints c_sim ≤ √(2 + 2κ²), which is false for the maximum
    (E3), c_align ≤ √(2 + 2κ²)/(1 − κ), and q ≤ 10 at κ = 1/2, the square of the larger one (E4).
    """
    _require_constants(constants)
    _require("kappa", kappa, 0 <= kappa < 1, "in [0, 1): it is L ‖δx‖ over the norm, and 1/2 in Assumption 3")
    if denominator not in get_args(Denominator):
        raise ValueError(f"denominator must be 'max' or 'perturbed', got {denominator!r}")
    if constants == "printed":
        c_sim = math.sqrt(2 + 2 * kappa**2)
        c_align = c_sim / (1 - kappa)
        return Bounds(c_sim, c_align, 1 - kappa, max(c_sim, c_align) ** 2)
    c_sim = 1 / (1 - kappa) if denominator == "max" else 1 + kappa
    c_align = 1 / math.sqrt(1 - kappa**2)
    return Bounds(c_sim, c_align, 1 - kappa, max(c_sim, c_align))


def _require(name: str, value: float, is_valid: bool, expected: str) -> None:
    if not is_valid or value == math.inf:
        raise ValueError(f"{name} must be finite and {expected}; got {value}")


def _require_problem(smoothness: float, M: float, variance: float) -> None:
    _require("smoothness", smoothness, smoothness > 0, "positive: it is L")
    _require("M", M, M >= 0, "at least 0; 0 means noise that does not grow with the gradient")
    _require("variance", variance, variance >= 0, "at least 0: it is σ², not σ")


def _require_target(epsilon: float, q: float, constants: Constants = "corrected") -> None:
    _require("epsilon", epsilon, epsilon > 0, "positive: it bounds a mean of squared norms")
    if not q >= 1 - 1e-6:  # a measured q of plain training may be 1 less a rounding
        raise ValueError(f"q must be at least 1, got {q}; it is ‖G‖/(α ‖p ⊙ G̃‖), and 1 for SGD")
    _require_constants(constants)


def _require_step(gamma_base: float, smoothness: float, M: float) -> None:
    longest = 1 / (smoothness * (M + 1))
    if not 0 < gamma_base <= longest * (1 + 1e-9):
        raise ValueError(f"gamma_base must be in (0, 1/(L(M + 1))] = (0, {longest:.6g}], got {gamma_base}")


def _require_constants(constants: Constants) -> None:
    if constants not in get_args(Constants):
        raise ValueError(f"constants must be 'corrected' or 'printed', got {constants!r}")
