"""The constants from a model, a loss and batches: true ones found again, the words right, nothing changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from partialsgd import CriteriaMeter, Method, PartialSGD, masks, methods, perturbations, theory
from partialsgd.testing.problems import PROBLEMS, Problem
from studies import constants
from studies.constants import Estimate, Findings
from tests.studies.constants.test_curvature import Form
from tests.studies.constants.test_objective import unchanged
from tests.training import family

D, M, VARIANCE, L = 30, 0.5, 4.0, 3.0


class Noisy(nn.Module):
    """½ xᵀ diag(L, 1, …) x with gradients (1 + √M z) ⊙ G + w, E‖w‖² = σ²."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.full((D // 2,), size / math.sqrt(D)))
        self.b = nn.Parameter(torch.full((D // 2,), size / math.sqrt(D)))
        self.register_buffer("h", torch.ones(D).index_fill(0, torch.tensor([3]), L))

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, (z, w) = torch.cat([self.a, self.b]), batch
        G = (self.h * x).detach()
        return 0.5 * (self.h * x**2).sum() + ((math.sqrt(M) * z * G + math.sqrt(VARIANCE / D) * w) * x).sum()


def draws(n: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(2, D, generator=draw)) for _ in range(n)]


def test_known_constants_are_found_again() -> None:
    far, near = Noisy(6.0), Noisy(0.1)
    points = [constants.measure(far, far, draws(40, 1)), constants.measure(far, far, draws(40, 2))]
    found = constants.estimate(near, near, draws(40, 3), points=points, lowest=-1.0, tolerance=1e-3)
    for estimate, true in ((found.M, M), (found.variance, VARIANCE)):
        assert abs(estimate.value - true) <= 2.5 * estimate.error and estimate.error < 0.2 * true
    assert abs(found.smoothness.value - L) <= found.smoothness.error + 1e-6 and found.curvature.sign == 1
    assert found.points[:2] == tuple(points) and len(found.points) == 3
    f = float(0.5 * (far.h * torch.cat([far.a, far.b]).detach() ** 2).sum()) + 1
    assert abs(found.gap.value - f) <= 3 * found.gap.error, "F_0 is that of the first point, above `lowest`"


def test_the_gap_is_the_mean_loss_above_its_bound_with_the_standard_error() -> None:
    model = Noisy(2.0)
    batches = draws(7)
    found = constants.estimate(model, model, batches, lowest=-3.0, smoothness=L)
    losses = torch.stack([model(batch).detach() for batch in batches]).double()
    assert found.gap.value == pytest.approx(float(losses.mean()) + 3)
    assert found.gap.error == pytest.approx(float(losses.std()) / math.sqrt(7))
    assert found.gap.note == "one standard error over 7 batches, if f* = -3"
    assert found.smoothness == Estimate(L, found.smoothness.error, "given") and found.curvature is None
    with pytest.raises(ValueError, match=r"below lowest = 1000.0; pass a lower bound"):
        constants.estimate(model, model, batches, lowest=1000.0)


def test_the_bound_holds_for_every_mask_at_every_point() -> None:
    points = []
    for seed, size in enumerate((0.2, 1.0, 3.0, 6.0)):
        model = Noisy(size)
        half = masks.only(model, ["a"])
        elements = masks.from_tensors(model, {"a": torch.arange(D // 2) % 3 == 0, "b": True})
        points.append(constants.measure(model, model, draws(8, seed), masks=[half, elements, ~half]))
    assert all(list(point.spreads) == ["mask 0", "mask 1", "mask 2"] for point in points)
    found = constants.estimate(model, model, draws(8, 9), masks=[half], points=points, smoothness=1.0, lowest=-99.0)
    for pair in (pair for point in found.points for pair in point.pairs().values()):
        assert found.M.value * max(0.0, pair.signal) + found.variance.value >= pair.noise - 1e-9


def test_levels_are_masks_by_name_and_the_level_that_runs_is_the_callers() -> None:
    nested = family(0.25, 0.5)
    batches = [torch.randn(9, 6, generator=torch.Generator().manual_seed(k)) for k in range(4)]

    def loss(x: Tensor) -> Tensor:
        return nested(x).square().mean()

    by_name = constants.measure(nested, loss, batches, masks=nested.levels)
    assert list(by_name.spreads) == list(nested.levels)
    given = [nested.mask(level) for level in nested.levels]
    assert list(constants.measure(nested, loss, batches, masks=given).spreads.values()) == list(
        by_name.spreads.values()
    )
    signals = [spread.mean for spread in by_name.spreads.values()]
    assert signals == sorted(signals) and signals[0] < signals[-1], "a larger level keeps more of the gradient"
    core = nested.levels[0]
    with nested.at(core):
        inside = constants.measure(nested, loss, batches, masks=[core, masks.everything(nested)])
    at_core, at_all = inside.spreads.values()
    assert at_core == at_all != by_name.spreads[core], "the gradient at x̃ is of the core's parameters and no others"
    with pytest.raises(ValueError, match="there is no level 'half'"):
        constants.measure(nested, loss, batches, masks=["half"])


def test_the_masks_of_a_method_are_those_of_its_steps_each_once() -> None:
    nested = family()
    core, full = nested.levels
    found = constants.masks_of(methods.alternating(), nested, times=range(6))
    assert [mask.count() for mask in found] == [nested.mask(full).count(), nested.mask(core).count()]
    model = Noisy(1.0)
    random = constants.masks_of(methods.random_mask(0.5), model, times=range(5), seed=3)
    (alone,) = constants.masks_of(methods.random_mask(0.5), model, times=[2], seed=3)
    (other,) = constants.masks_of(methods.random_mask(0.5), model, times=[2], seed=4)
    assert len(random) == 5 and alone["a"].equal(random[2]["a"]) and not other["a"].equal(alone["a"])
    assert [mask.is_everything for mask in constants.masks_of(methods.plain(), model)] == [True]
    with pytest.raises(ValueError, match=r"top_k.*by the gradient that it masks.*E2"):
        constants.masks_of(methods.top_k(), model)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_measuring_changes_nothing(problem: Problem) -> None:
    model = problem.model().train()
    problem.closure(model, 0)()
    next(model.parameters()).grad = None
    next(model.parameters()).requires_grad_(problem.name != "batchnorm")
    chosen = constants.masks_of(methods.dropout(0.9), model, times=range(2))
    with unchanged(model):
        found = constants.estimate(model, lambda t: problem.evaluate(model, t), range(3), masks=chosen, lowest=-99.0)
        again = constants.estimate(model, lambda t: problem.evaluate(model, t), range(3), masks=chosen, lowest=-99.0)
    assert found.points == again.points and found.curvature == again.curvature, "and it measures the same again"


def findings(**numbers: float) -> Findings:
    given = {"smoothness": 4.0, "M": 1.0, "variance": 0.06, "gap": 2.0, **numbers}
    return Findings(*(Estimate(given[name], 0.1, "x") for name in ("smoothness", "M", "variance", "gap")), (), None)


def test_the_reading_has_the_numbers_of_the_theorem() -> None:
    found, q, epsilon = findings(), 1.8, 0.1
    problem = {"smoothness": 4.0, "M": 1.0, "variance": 0.06, "epsilon": epsilon}
    needed, plain = (theory.iterations(**problem, gap=2.0, q=power) for power in (q, 1.0))
    text = found.reading(q=q, epsilon=epsilon)
    assert "L = 4 ± 0.1 (x)\nM = 1 ± 0.1 (x)\nσ² = 0.06 ± 0.1 (x)\nF_0 = 2 ± 0.1 (x)\n" in text
    assert "at most 1/(L(M + 1)) = 0.125" in text
    assert f"for an average ‖G‖² of 0.1: {needed:.3g} steps of size {theory.step_size(**problem, q=q):.3g}" in text
    assert "q² = 3.24: at most 3.24 times the iterations of plain SGD where the noise is small" in text
    assert f"q⁴ = 10.5 times where it dominates; here {needed / plain:.3g} times" in text
    assert q**2 < needed / plain < q**4


@pytest.mark.parametrize(("variance", "times"), [(1e-9, "3.24"), (1e3, "10.5")])
def test_little_noise_costs_q_squared_and_much_noise_its_square(variance: float, times: str) -> None:
    assert findings(variance=variance).reading(q=1.8, epsilon=0.1).endswith(f"here {times} times")


def test_the_reading_at_its_edges() -> None:
    assert "plain SGD" not in findings().reading(epsilon=0.1), "q = 1 is plain SGD"
    assert findings(gap=0.0).reading(epsilon=0.1, q=2.0).endswith("times"), "and a gap of nothing is no division by it"
    assert findings(smoothness=0.0).reading(epsilon=0.1).endswith("gives no step size")
    assert "gives no bound of ‖G‖²" in findings().reading(epsilon=0.1, q=math.inf)
    for wrong in (0.5, math.nan):
        with pytest.raises(ValueError, match="q must be at least 1"):
            findings().reading(epsilon=0.1, q=wrong)
    with pytest.raises(ValueError, match="epsilon must be"):
        findings().reading(epsilon=0.0)


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        ("core", TypeError, r"write masks=\["),
        (["core"], TypeError, "a nested model is needed"),
        ([3], TypeError, r"got 3; constants\.masks_of"),
        ([masks.everything(nn.Linear(2, 2))], ValueError, "belongs to another model"),
    ],
)
def test_wrong_masks_are_refused(chosen: Sequence[object], error: type[Exception], message: str) -> None:
    model = Noisy(1.0)
    with pytest.raises(error, match=message):
        constants.measure(model, model, draws(2), masks=chosen)


def test_a_mask_of_another_shape_and_one_batch_are_refused() -> None:
    model, other = Noisy(1.0), nn.ParameterDict({"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(2))})
    with pytest.raises(ValueError, match="belongs to another model"):
        constants.measure(model, model, draws(2), masks=[masks.from_tensors(other, {"a": torch.tensor([True, False])})])
    with pytest.raises(ValueError, match="one batch"):
        constants.estimate(model, model, draws(1))
    with pytest.raises(ValueError, match="batches is empty"):
        constants.measure(model, model, [])


def measured(form: nn.Module, moves: Sequence[Tensor], inside: Sequence[str] = ("top", "rest")) -> PartialSGD:
    """A run that takes the gradient at x + δx, for each δx once."""

    def perturb(context):
        move = moves[context.t]
        return perturbations.add({"top": move[:1], "rest": move[1:]})

    method = Method(mask=lambda c: masks.only(c.parameters, inside), perturb=perturb, name="moved")
    sgd = PartialSGD(form, torch.optim.SGD(form.parameters(), 1e-3), method, meter=CriteriaMeter(1))

    def closure():
        loss = form()
        loss.backward()
        return loss

    for _ in moves:
        sgd.step(closure)
    return sgd


def test_the_secant_of_a_run_is_never_above_l_and_equals_it_along_the_top_eigenvector() -> None:
    draw = torch.Generator().manual_seed(3)
    moves = list(torch.randn(50, 4, dtype=torch.float64, generator=draw))
    found = constants.secant(measured(Form([-7.0, 3.0, 1.0, -2.0]), moves))
    assert 4 < found.value <= 7 * (1 + 1e-9) and "a lower bound, from 50 pairs of gradients" in str(found)
    part = constants.secant(measured(Form([-7.0, 3.0, 1.0, -2.0]), moves, ["rest"]))
    assert 0 < part.value < found.value, "of part of the gradient it is a lower bound too"
    form = Form([-7.0, 3.0, 1.0, -2.0])
    assert constants.secant(measured(form, [0.3 * form.q[:, 0]])).value == pytest.approx(7)


def test_without_a_pair_at_two_points_there_is_no_secant() -> None:
    form = Form([2.0, 1.0])
    with pytest.raises(ValueError, match="no pair of gradients was measured at two points"):
        constants.secant(PartialSGD(form, torch.optim.SGD(form.parameters(), 0.1)))
    with pytest.raises(ValueError, match="no pair of gradients"):
        constants.secant(measured(form, [torch.zeros(2, dtype=torch.float64)]))
