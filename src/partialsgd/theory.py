"""γ_base, T, α, q: Theorem 1 as functions of numbers, with the constants corrected or as printed.

L is `smoothness` (Assumption 1), F_0 = f(x_0) − f* is `gap`, and the noise has E‖p ⊙ ξ(x)‖² ≤ M ‖p ⊙ ∇f(x)‖² + σ²
for every mask in use (Assumption 2); σ² is `variance`. G is the gradient at x, G̃ the one at x̃. The errata that the
docstrings name are in docs/errata.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

__all__ = [
    "Bounds",
    "alpha",
    "alternating_bound",
    "average_bound",
    "descent",
    "iterations",
    "lemma_bounds",
    "q",
    "step_size",
]

Constants = Literal["corrected", "printed"]
Denominator = Literal["max", "perturbed"]


@final
@dataclass(frozen=True)
class Bounds:
    """What a bounded perturbation guarantees at each step; under a strict assumption no bound is attained."""

    c_sim: float
    c_align: float
    alpha: float
    """At least this; the others at most."""
    q: float
    """At most this without a mask; with one, times c_norm."""


def step_size(
    *,
    smoothness: float,
    epsilon: float,
    M: float = 0.0,
    variance: float = 0.0,
    q: float = 1.0,
    constants: Constants = "corrected",
) -> float:
    """γ_base = min{1/(L(M + 1)), ε/(2 q² L σ²)}; q = 1 is part 1 of Theorem 1, and SGD.

    Printed: ε/(L σ²) in both parts, with which the noise term alone is ε (E7), or q² ε in part 2 (E9).
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
    """T ≥ max{4 (M + 1) q²/ε, 8 σ² q⁴/ε²} · L F_0: with `step_size` the average is then at most ε; not rounded.

    Of α_t² ‖p ⊙ G̃‖² with q = 1 (part 1), of ‖G‖² with q = max q_t (part 2). Printed, in the proof: 4 times the sum of
    (M + 1) q²/ε and σ² q⁴/ε², which is up to half too few where the noise rules (E8).
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
    """(1/T) Σ E α_t² ‖p ⊙ G̃‖² ≤ 2 F_0/(T γ_base) + γ_base L σ²; times q² it bounds the average of ‖G‖².

    For any γ_base ≤ 1/(L(M + 1)), and also with a smaller factor than α_t, if it is that factor which is squared.
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
    """(2/T) Σ_{t even} E‖G‖² ≤ 4 F_0/(T γ_base) + 2 γ_base L σ²: the whole network in alternating training, without q.

    Not in the paper (E22): Lemma 3 is summed over all T steps, and only those of the whole network are kept, where
    α_t = q_t = 1. They are `share` of all; the others need a factor between 0 and α_t.
    """
    _require("share", share, 0 < share <= 1, "in (0, 1]: it is the share of steps that train the whole network")
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
    """Lemma 3: E f(x_{t+1}) ≤ f(x_t) − γ_base/2 · α_t² ‖p ⊙ G̃‖² + γ_base² L σ²/2; `value` is f(x_t).

    For any factor between 0 and the theorem's α_t; the noise is that of x̃_t (E18).
    """
    _require_problem(smoothness, M, variance)
    _require_step(gamma_base, smoothness, M)
    _require("perturbed", perturbed, perturbed >= 0, "at least 0: it is ‖p ⊙ G̃‖")
    _require("alpha", alpha, 0 <= alpha <= 1, "in [0, 1]: see theory.alpha")
    return value - gamma_base / 2 * (alpha * perturbed) ** 2 + gamma_base**2 * smoothness * variance / 2


def alpha(*, inner: float, perturbed: float, constants: Constants = "corrected") -> float:
    """α_t = ⟨p ⊙ G, p ⊙ G̃⟩/‖p ⊙ G̃‖², at most 1 and at least 0; nan where p ⊙ G̃ = 0, and nothing moves.

    Printed: not clipped at 0, so that a negative inner product gives a step uphill (E10).
    """
    _require_constants(constants)
    ratio = _ratio(_ratio(inner, perturbed), perturbed)
    if math.isnan(ratio):
        return math.nan
    return min(1.0, max(0.0, ratio)) if constants == "corrected" else min(1.0, ratio)


def q(*, whole: float, masked: float, perturbed: float, inner: float, constants: Constants = "corrected") -> float:
    """q_t = ‖G‖/(α_t ‖p ⊙ G̃‖): inf where a step guarantees nothing, nan where G = 0.

    Printed: ‖G‖/‖p ⊙ G‖ · max{‖p ⊙ G‖/‖p ⊙ G̃‖, ‖p ⊙ G‖ ‖p ⊙ G̃‖/⟨p ⊙ G, p ⊙ G̃⟩}, the same for a positive inner product;
    for a negative one the maximum picks the first term, and q_t is finite where there is no guarantee (E10).
    """
    _require_constants(constants)
    if constants == "corrected":
        scaled = min(perturbed, max(0.0, inner / perturbed)) if perturbed > 0 else 0.0  # α_t ‖p ⊙ G̃‖
        return _ratio(whole, scaled)
    norms, angle = _ratio(masked, perturbed), _ratio(masked * perturbed, inner)
    return _ratio(whole, masked) * (math.nan if math.isnan(norms + angle) else max(norms, angle))


def lemma_bounds(*, kappa: float = 0.5, denominator: Denominator = "max", constants: Constants = "corrected") -> Bounds:
    """Lemma 2: L ‖δx‖ ≤ κ · max{‖p ⊙ G‖, ‖p ⊙ G̃‖} gives c_sim ≤ 1/(1 − κ) and c_align ≤ 1/√(1 − κ²).

    κ = 1/2 is Assumption 3: 2 and 2/√3. With κ · ‖p ⊙ G̃‖ instead, which is what the proof uses, c_sim ≤ 1 + κ. All are
    attained. Printed: c_sim ≤ √(2 + 2κ²), which is false for the maximum (E3), c_align ≤ that/(1 − κ), and q ≤ 10 at
    κ = 1/2, the square of the largest of them (E4).
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


def _ratio(a: float, b: float) -> float:
    """a / b, where a zero below gives an infinity and two zeros nothing."""
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    return a / b


def _require(name: str, value: float, is_so: bool, expected: str) -> None:
    if not is_so or value == math.inf:
        raise ValueError(f"{name} must be finite and {expected}; got {value}")


def _require_problem(smoothness: float, M: float, variance: float) -> None:
    _require("smoothness", smoothness, smoothness > 0, "positive: it is L")
    _require("M", M, M >= 0, "at least 0; 0 is noise that does not grow with the gradient")
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
