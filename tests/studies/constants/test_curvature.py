"""L against exact Hessians and known spectra; its bounds where power iteration is stopped early."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jacrev

from partialsgd.testing.problems import Problem
from studies.constants.curvature import power_iteration
from studies.constants.objective import Objective
from tests.studies.constants.test_objective import EXACT, as_function, objective_of


class Form(nn.Module):
    """½ xᵀ H x in two parameters, H = Q diag(λ) Qᵀ."""

    def __init__(self, eigenvalues: list[float], seed: int = 0) -> None:
        super().__init__()
        d, g = len(eigenvalues), torch.Generator().manual_seed(seed)
        self.top = nn.Parameter(torch.randn(1, dtype=torch.float64, generator=g))
        self.rest = nn.Parameter(torch.randn(d - 1, dtype=torch.float64, generator=g))
        self.q = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=g))[0]
        self.h = self.q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ self.q.T

    def forward(self, factor: float = 1.0) -> Tensor:
        x = torch.cat([self.top, self.rest])
        return 0.5 * factor * x @ self.h @ x


def objective(form: Form, factors: tuple[float, ...] = (1.0,)) -> Objective:
    return Objective(form, form, factors)


@pytest.mark.parametrize("problem", EXACT, ids=lambda p: p.name)
def test_it_is_the_largest_eigenvalue_of_the_exact_hessian(problem: Problem) -> None:
    model = problem.model()
    hessian = sum(jacrev(grad(f))(x) for f, x in (as_function(problem, model, t) for t in range(3))) / 3
    eigenvalues = torch.linalg.eigvalsh(hessian.double())
    found = power_iteration(objective_of(problem, model), iterations=500)
    largest = eigenvalues[eigenvalues.abs().argmax()]
    assert found.converged and found.size == pytest.approx(abs(float(largest)), rel=2e-3)
    assert found.sign == int(torch.sign(largest))
    assert found.residual <= 1e-2 * found.size


def test_where_f_curves_downwards_most_the_sign_says_so_and_the_note_too() -> None:
    found = power_iteration(objective(Form([-7.0, 3.0, 1.0, -2.0])))
    assert found.size == pytest.approx(7, rel=1e-3) and found.sign == -1
    assert "the eigenvalue is −7" in found.estimate.note and found.estimate.value == found.size


def test_plus_and_minus_the_same_eigenvalue_converge_though_v_does_not() -> None:
    """vᵀHv would be anything between −5 and 5 there."""
    found = power_iteration(objective(Form([5.0, -5.0, 1.0, 0.5])))
    assert found.converged and found.size == pytest.approx(5, rel=1e-4) and found.products < 20


@pytest.mark.parametrize("products", [2, 3, 6])
def test_stopped_early_it_is_a_lower_bound_and_an_eigenvalue_is_within_the_residual(products: int) -> None:
    loose = 0
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        eigenvalues = (torch.randn(6, generator=draw) * torch.tensor([5.0, 4.5, 1, 1, 0.1, 3])).tolist()
        found = power_iteration(objective(Form(eigenvalues, seed)), tolerance=1e-9, iterations=products, seed=seed)
        sizes = [abs(e) for e in eigenvalues]
        assert found.products == products and not found.converged and "not converged" in found.estimate.note
        assert found.size <= max(sizes) * (1 + 1e-9)
        distance = min(abs(size - found.size) for size in sizes)
        assert distance <= found.residual * (1 + 1e-9)
        loose += distance > found.residual / 50
    assert loose > 6, "the residual is not so wide that nothing could fall out of it"


def test_the_error_adds_how_much_the_batches_differ() -> None:
    form, factors = Form([4.0, 1.0, 0.5]), (0.5, 1.0, 2.0, 1.5)
    found = power_iteration(objective(form, factors), tolerance=1e-6)
    assert found.size == pytest.approx(5.0)
    shares = torch.tensor(factors, dtype=torch.float64) * 4
    assert found.spread == pytest.approx(float(shares.std() / math.sqrt(4)), rel=1e-4)
    assert found.estimate.error == found.residual + found.spread
    alone = power_iteration(objective(form))
    assert math.isnan(alone.spread) and alone.estimate.error == alone.residual and "one batch" in alone.estimate.note


def test_a_linear_loss_has_no_curvature() -> None:
    model = nn.Linear(3, 1)
    found = power_iteration(Objective(model, lambda x: model(x).sum(), [torch.ones(1, 3)]))
    assert (found.size, found.sign, found.residual, found.converged) == (0, 0, 0, True)


def test_what_cannot_be_is_refused() -> None:
    form = Form([1.0, 2.0])
    with pytest.raises(ValueError, match=r"tolerance must be in \(0, 1\), got 0"):
        power_iteration(objective(form), tolerance=0)
    with pytest.raises(ValueError, match="at least 2, got 1"):
        power_iteration(objective(form), iterations=1)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    with pytest.raises(ValueError, match="second derivative of the loss is not finite"):
        power_iteration(Objective(model, lambda x: model(x).abs().pow(1.5).sum() * 1.0, [torch.ones(1, 1)]))
