"""Theorem 1 in numbers worked out by hand, and what is refused. Whether it holds is asked in test_bounds.py."""

from __future__ import annotations

import inspect
import math
import random
import subprocess
import sys

import pytest

from partialsgd import theory
from partialsgd.meters.criteria import Criteria

# The example of erratum E8: L = σ = F_0 = 1, M = 0.
UNIT = {"smoothness": 1.0, "variance": 1.0}


def test_all_is_exact_documented_and_keyword_only() -> None:
    own = {n for n, v in vars(theory).items() if getattr(v, "__module__", "") == theory.__name__ and n[0] != "_"}
    assert own == set(theory.__all__) and theory.__all__ == sorted(theory.__all__)
    for name in theory.__all__:
        assert inspect.getdoc(getattr(theory, name))
        if name not in ("Bounds", "ratio"):
            kinds = {p.kind for p in inspect.signature(getattr(theory, name)).parameters.values()}
            assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_it_needs_no_torch() -> None:
    code = (
        "import sys, partialsgd as ps; ps.theory.step_size(smoothness=1, epsilon=1); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_step_size_is_the_smaller_of_two() -> None:
    assert theory.step_size(smoothness=4.0, epsilon=0.1, M=1.0) == 1 / 8
    assert theory.step_size(smoothness=4.0, epsilon=0.1, M=1.0, variance=2.0) == pytest.approx(0.1 / (2 * 4 * 2))
    assert theory.step_size(smoothness=4.0, epsilon=100.0, M=1.0, variance=2.0) == 1 / 8
    assert theory.step_size(smoothness=4.0, epsilon=0.1, variance=2.0, q=3.0) == pytest.approx(0.1 / (2 * 9 * 4 * 2))


def test_with_the_printed_step_size_the_noise_alone_is_epsilon() -> None:
    """Erratum E7: however many steps are made, the proof's bound stays above ε; with half of it it is ε/2."""
    for constants, noise in (("printed", 0.01), ("corrected", 0.005)):
        gamma = theory.step_size(epsilon=0.01, constants=constants, **UNIT)
        bound = theory.average_bound(gap=1.0, T=1e12, gamma_base=gamma, **UNIT)
        assert bound == pytest.approx(noise, rel=1e-6) and bound > noise


def test_the_printed_number_of_iterations_is_too_small_where_noise_rules() -> None:
    """Erratum E8: at the printed T the bound is 0.0149 and ε is 0.01."""
    gamma = theory.step_size(epsilon=0.01, **UNIT)
    printed, corrected = (
        theory.iterations(epsilon=0.01, gap=1.0, constants=c, **UNIT) for c in ("printed", "corrected")
    )
    assert (printed, corrected) == (pytest.approx(4 * (1e4 + 100)), pytest.approx(8e4))
    assert theory.average_bound(gap=1.0, T=printed, gamma_base=gamma, **UNIT) == pytest.approx(0.0149, abs=1e-5)
    assert theory.average_bound(gap=1.0, T=corrected, gamma_base=gamma, **UNIT) == pytest.approx(0.01)


def test_part_2_needs_a_step_size_of_its_own() -> None:
    """Erratum E9: the printed γ_base knows no q, and the noise term of ‖G‖² is then q² ε."""
    gamma = theory.step_size(epsilon=0.01, q=3.0, constants="printed", **UNIT)
    assert gamma == theory.step_size(epsilon=0.01, constants="printed", **UNIT)
    assert theory.average_bound(gap=1.0, T=1e12, gamma_base=gamma, q=3.0, **UNIT) == pytest.approx(9 * 0.01, rel=1e-6)


@pytest.mark.parametrize("q", [1.0, 1.5, 10.0])
@pytest.mark.parametrize(("M", "variance"), [(0.0, 0.0), (3.0, 0.0), (0.0, 2.0), (3.0, 2.0), (50.0, 1e-3)])
def test_step_size_and_iterations_give_epsilon_in_both_parts(M: float, variance: float, q: float) -> None:
    problem = {"smoothness": 5.0, "M": M, "variance": variance, "q": q}
    gamma, T = theory.step_size(epsilon=0.3, **problem), theory.iterations(epsilon=0.3, gap=2.0, **problem)
    assert theory.average_bound(gap=2.0, T=T, gamma_base=gamma, **problem) <= 0.3 * (1 + 1e-12)
    if variance in (0.0, 2.0):  # one branch rules: 2 F_0/(T γ) is exactly ε/2 at T, and above it before
        rest = theory.average_bound(gap=2.0, T=1e15, gamma_base=gamma, **problem)
        assert theory.average_bound(gap=2.0, T=T, gamma_base=gamma, **problem) - rest == pytest.approx(0.15, rel=1e-6)


def test_more_of_anything_bad_takes_longer() -> None:
    base = {"smoothness": 2.0, "epsilon": 0.1, "gap": 3.0, "M": 1.0, "variance": 0.5, "q": 1.5}
    least = theory.iterations(**base)
    for name in ("smoothness", "gap", "variance", "q"):
        assert theory.iterations(**base | {name: 2 * base[name]}) > least
    assert theory.iterations(**base | {"variance": 0.0, "M": 2.0}) > theory.iterations(**base | {"variance": 0.0})
    assert theory.iterations(**base | {"epsilon": 0.05}) > least
    assert theory.iterations(**base | {"gap": 0.0}) == 0
    assert theory.iterations(**base | {"q": math.inf}) == math.inf
    without_gap = {name: value for name, value in base.items() if name != "gap"}
    assert theory.step_size(**without_gap | {"q": math.inf}) == 0


def test_sgd_is_alpha_and_q_of_one() -> None:
    """Without a mask and a perturbation G̃ = p ⊙ G = G; and the rate is that of SGD, L F_0/ε + σ² L F_0/ε²."""
    norms = {"whole": 0.7, "masked": 0.7, "perturbed": 0.7, "inner": 0.7**2}
    for constants in ("corrected", "printed"):
        assert theory.q(**norms, constants=constants) == pytest.approx(1)
        assert theory.alpha(inner=norms["inner"], perturbed=0.7, constants=constants) == pytest.approx(1)
    at_rest = theory.lemma_bounds(kappa=0.0)
    assert (at_rest.c_sim, at_rest.c_align, at_rest.alpha, at_rest.q) == (1, 1, 1, 1)


def test_alpha_and_q_of_the_theorem_and_of_the_meter_are_one() -> None:
    draw = random.Random(0)
    for _ in range(200):
        perturbed, masked = draw.uniform(0.1, 3), draw.uniform(0.1, 3)
        norms = {"masked": masked, "perturbed": perturbed, "inner": draw.uniform(-1, 1) * masked * perturbed}
        norms["whole"] = masked * draw.uniform(1, 4)
        alpha, q = theory.alpha(inner=norms["inner"], perturbed=perturbed), theory.q(**norms)
        measured = Criteria(shared=masked, **norms)
        assert (alpha, q) == (pytest.approx(measured.alpha), pytest.approx(measured.q))
        assert q >= 1 - 1e-12 and 0 <= alpha <= 1
        if norms["inner"] > 0:
            assert q == pytest.approx(theory.q(**norms, constants="printed"))
            assert q == pytest.approx(norms["whole"] / (alpha * perturbed))


def test_negative_alignment_is_no_guarantee_and_in_print_it_looks_like_one() -> None:
    """Erratum E10: G = 1, G̃ = −1/2 gives α = −2; with G̃ = −2 the printed q² α² ‖G̃‖² is 1/4, and ‖G‖² is 1."""
    assert theory.alpha(inner=-0.5, perturbed=0.5, constants="printed") == -2
    assert theory.alpha(inner=-0.5, perturbed=0.5) == 0
    norms = {"whole": 1.0, "masked": 1.0, "perturbed": 2.0, "inner": -2.0}
    alpha, q = theory.alpha(inner=-2.0, perturbed=2.0, constants="printed"), theory.q(**norms, constants="printed")
    assert (q * alpha * 2.0) ** 2 == pytest.approx(0.25)
    assert theory.q(**norms) == math.inf


def test_zero_norms_give_infinities_and_not_errors() -> None:
    nan, inf = math.isnan, math.inf
    for constants in ("corrected", "printed"):
        assert nan(theory.alpha(inner=0.0, perturbed=0.0, constants=constants))
        assert theory.q(whole=1.0, masked=1.0, perturbed=1.0, inner=0.0, constants=constants) == inf, "orthogonal"
        assert nan(theory.q(whole=0.0, masked=0.0, perturbed=0.0, inner=0.0, constants=constants)), "stationary"
    assert theory.q(whole=1.0, masked=0.0, perturbed=0.0, inner=0.0) == inf, "the core alone is stationary"
    assert theory.alpha(inner=1e300, perturbed=1e200) == pytest.approx(1e-100), "the square would be infinite"


def test_lemma_3_by_hand() -> None:
    bound = theory.descent(value=2.0, perturbed=3.0, alpha=0.5, smoothness=4.0, gamma_base=0.1, M=1.0, variance=2.0)
    assert bound == pytest.approx(2 - 0.05 * 0.25 * 9 + 0.01 * 4 * 2 / 2)


def test_the_even_steps_have_twice_the_bound_of_all_and_no_q() -> None:
    problem = {"smoothness": 4.0, "gap": 3.0, "T": 100, "gamma_base": 0.1, "M": 1.0, "variance": 2.0}
    assert theory.alternating_bound(**problem) == pytest.approx(4 * 3 / (100 * 0.1) + 2 * 0.1 * 4 * 2)
    assert theory.alternating_bound(**problem, share=1.0) == theory.average_bound(**problem)


def test_the_constants_of_lemma_2() -> None:
    """Errata E3 and E4."""
    printed, largest = theory.lemma_bounds(constants="printed"), theory.lemma_bounds()
    perturbed = theory.lemma_bounds(denominator="perturbed")
    assert (printed.c_sim, printed.c_align, printed.q) == pytest.approx((10**0.5 / 2, 10**0.5, 10))
    assert (largest.c_sim, largest.c_align, largest.q) == pytest.approx((2, 2 / 3**0.5, 2))
    assert (perturbed.c_sim, perturbed.c_align, perturbed.q) == pytest.approx((1.5, 2 / 3**0.5, 1.5))
    assert printed.alpha == largest.alpha == perturbed.alpha == 0.5
    near_one = theory.lemma_bounds(kappa=0.95, denominator="perturbed")
    assert near_one.q == near_one.c_align > near_one.c_sim


PROBLEM = {
    "smoothness": 2.0,
    "epsilon": 1.0,
    "gap": 1.0,
    "T": 9,
    "gamma_base": 0.25,
    "M": 1.0,
    "variance": 0.0,
    "q": 1.0,
}
NORMS = {"q": 1.0, "whole": 1.0, "masked": 1.0, "perturbed": 1.0, "inner": 1.0, "alpha": 1.0, "value": 1.0}


@pytest.mark.parametrize(
    ("function", "wrong", "message"),
    [
        (theory.step_size, {"smoothness": 0.0}, "smoothness must be finite and positive: it is L; got 0"),
        (theory.step_size, {"epsilon": -1.0}, "epsilon must be finite and positive"),
        (theory.step_size, {"M": -1.0}, "M must be finite and at least 0"),
        (theory.step_size, {"variance": math.nan}, "variance must .* σ², not σ; got nan"),
        (theory.step_size, {"q": 0.5}, "q must be at least 1, got 0.5"),
        (theory.step_size, {"q": math.nan}, "q must be at least 1, got nan"),
        (theory.step_size, {"constants": "right"}, "'corrected' or 'printed', got 'right'"),
        (theory.iterations, {"gap": -1.0}, "gap must be finite and at least 0"),
        (theory.iterations, {"gap": math.inf}, "gap must be finite"),
        (theory.average_bound, {"T": 0}, "T must be finite and positive"),
        (theory.average_bound, {"gamma_base": 0.3}, r"in \(0, 1/\(L\(M \+ 1\)\)\] = \(0, 0.25\], got 0.3"),
        (theory.alternating_bound, {"share": 0.0}, "share must be"),
        (theory.descent, {"alpha": -0.5}, r"alpha must be finite and in \[0, 1\]"),
        (theory.descent, {"perturbed": -1.0}, "perturbed must be finite and at least 0"),
        (theory.alpha, {"constants": "new"}, "constants must be"),
        (theory.q, {"constants": "new"}, "constants must be"),
        (theory.lemma_bounds, {"kappa": 1.0}, r"kappa must be finite and in \[0, 1\)"),
        (theory.lemma_bounds, {"denominator": "min"}, "denominator must be 'max' or 'perturbed', got 'min'"),
        (theory.lemma_bounds, {"constants": "new"}, "constants must be"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(function, wrong: dict[str, object], message: str) -> None:
    takes = inspect.signature(function).parameters
    valid = {name: value for name, value in (PROBLEM | NORMS).items() if name in takes}
    function(**valid)
    with pytest.raises(ValueError, match=message):
        function(**valid | wrong)
