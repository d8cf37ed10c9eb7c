"""α by torch.func and by hand, held between measurements, and 0 where the gradients point apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from partialsgd import Method, PartialSGD, masks, methods, perturbations
from partialsgd.meters.criteria_meter import CriteriaMeter
from partialsgd.testing.runs import Run, assert_same_bits
from tests.methods.training import MLP, are_equal, assert_resumes, backward, values
from tests.optimizer_zoo import COORDINATE_WISE
from tests.training import family

LAWS = {
    "": methods.scaled_by_alpha(methods.sam(0.5), every=2),
    "dropout": methods.scaled_by_alpha(methods.dropout(0.3), every=2),
}
REFUSED_OPTIMIZERS = ("ASGD", "Rprop")  # α would be no factor of their step

RATE = 0.1


class Half(nn.Module):
    """f(x) = ½ Σ h x², of which gradients are known without a machine."""

    def __init__(self, x: list[float], h: list[float] | None = None) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(x, dtype=torch.float64))
        self.h = torch.tensor(h or [1.0] * len(x), dtype=torch.float64)

    def value(self) -> Tensor:
        return 0.5 * (self.h * self.x**2).sum()

    def closure(self) -> Tensor:
        loss = self.value()
        loss.backward()
        return loss


def shifted(*by: float, when=lambda t: True) -> Method:
    """δx = by, at the steps that `when` says."""

    def perturb(context) -> perturbations.Perturbation:
        if not when(context.t):
            return perturbations.nowhere()
        return perturbations.function(("x",), lambda parameters: parameters["x"].add_(torch.tensor(by)))

    return Method(perturb=perturb, name="shifted")


def sgd_of(model: nn.Module, method: Method, rate: float = RATE, **options) -> PartialSGD:
    return PartialSGD(model, torch.optim.SGD(model.parameters(), rate, **options), method, seed=3)


def step_of_mlp(sgd: PartialSGD, t: int):
    model = sgd.parameters.model
    torch.manual_seed(t)
    return sgd.step(MLP.closure(model, t))


def test_a_step_is_the_one_that_torch_func_computes() -> None:
    model = MLP.model()
    sgd = sgd_of(model, methods.scaled_by_alpha(methods.dropout(0.3), every=1))

    def loss(parameters: dict[str, Tensor], t: int) -> Tensor:
        return MLP.evaluate(lambda *inputs: functional_call(model, parameters, inputs), t)

    seen = []
    for t in range(12):
        x = values(model)
        step = sgd.step(MLP.closure(model, t))
        p = {n: torch.as_tensor(step.mask[n]).float().expand(v.shape) for n, v in x.items()}
        dropped = {n: v * p[n] for n, v in x.items()}
        g, h = ({n: p[n] * v for n, v in grad(loss)(at, t).items()} for at in (x, dropped))
        inner, square = sum(float((g[n] * h[n]).sum()) for n in g), sum(float((v * v).sum()) for v in h.values())
        alpha = min(1.0, max(0.0, inner / square))
        assert step.lr == pytest.approx(RATE * alpha, rel=1e-4) and step.backwards == 2
        for n, new in model.named_parameters():
            torch.testing.assert_close(new.detach(), x[n] - RATE * alpha * h[n], msg=lambda m, n=n, t=t: f"{n} {t} {m}")
        seen.append(alpha)
    assert min(seen) == 0 and max(seen) == 1 and len(set(seen)) > 4, "all that α may be must have occurred"


def test_alpha_is_measured_at_every_nth_step_of_each_level_and_held_between() -> None:
    """The level's own steps are counted: with t alone and an even number the core would never be measured."""
    nested = family()
    x, y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3
    closure = backward(lambda: nn.functional.cross_entropy(nested(x), y))
    sgd = sgd_of(nested, methods.scaled_by_alpha(methods.alternating(lr={"core": 0.5}), every=2))
    alphas: list[float] = []
    for t in range(12):
        step = sgd.step(closure)
        assert bool(step.measurements) == (t // 2 % 2 == 0), "both levels at their first, third, fifth step"
        if step.level == "full":
            assert step.lr == RATE and step.backwards == 1, "x̃ is x: no pass more, and α = 1"
            continue
        if step.measurements:
            alphas.append(step.criteria.alpha)
        assert step.lr == pytest.approx(RATE * 0.5 * alphas[-1]), "its own factor of the learning rate stays"
    assert len(set(alphas)) == 3 and all(0 < alpha < 1 for alpha in alphas)


def test_each_mask_of_whole_tensors_has_an_alpha_of_its_own() -> None:
    """f = ½ Σ h x² over two tensors that move in turn, each perturbed; both α are known."""
    model = nn.ParameterDict({"a": torch.tensor([2.0]), "b": torch.tensor([4.0])}).double()

    def mask(context) -> masks.Mask:
        return masks.from_tensors(context.parameters, {"ab"[context.t % 2]: True})

    def perturb(context) -> perturbations.Perturbation:
        return perturbations.function(("a", "b"), lambda x: [x["a"].add_(2.0), x["b"].add_(12.0)])

    closure = backward(lambda: 0.5 * (model["a"].square().sum() + model["b"].square().sum()))
    sgd = sgd_of(model, methods.scaled_by_alpha(Method(mask=mask, perturb=perturb, name="turns"), every=3), 1e-9)
    lrs = [sgd.step(closure).lr for _ in range(8)]
    assert lrs == pytest.approx([1e-9 * 2 / 4, 1e-9 * 4 / 16] * 4, rel=1e-6)


@pytest.mark.parametrize("name", [n for n in COORDINATE_WISE if n not in ("ASGD", "Rprop")])
def test_where_the_gradients_point_apart_nothing_moves_and_the_optimizer_goes_on(name: str) -> None:
    """Also by momentum that came before, and by weight decay; the state takes the gradient in, as at any step."""
    model = Half([1.0, -2.0])
    optimizer = COORDINATE_WISE[name](model.parameters())
    sgd = PartialSGD(model, optimizer, methods.scaled_by_alpha(shifted(-4.0, 8.0, when=lambda t: t >= 3), every=1))
    for t in range(5):
        before, state = model.x.detach().clone(), repr(optimizer.state[model.x])
        step = sgd.step(model.closure)
        assert torch.equal(model.x, before) == (t >= 3), f"at {t}"
        assert (step.lr == 0) == (t >= 3)
        if t >= 3:
            assert step.criteria.inner < 0 and step.criteria.alpha == 0
        if state != "{}" and name != "SGD":
            assert repr(optimizer.state[model.x]) != state
    assert sgd.t == 5 and optimizer.param_groups[0]["lr"] == COORDINATE_WISE[name]([model.x]).param_groups[0]["lr"]


def test_where_there_is_no_gradient_the_step_is_the_methods_own() -> None:
    """α is 0/0 there; weight decay, and the steps up to the next measurement, go by γ."""
    model = Half([2.0])
    sgd = sgd_of(model, methods.scaled_by_alpha(shifted(-2.0, when=lambda t: t == 0), every=4), weight_decay=0.5)
    step = sgd.step(model.closure)
    assert step.criteria.perturbed == 0 and math.isnan(step.criteria.alpha)
    assert step.lr == RATE and model.x.item() == pytest.approx(2.0 * (1 - RATE * 0.5))
    assert sgd.step(model.closure).lr == RATE


def test_what_is_not_perturbed_is_the_method_to_the_bit_and_costs_nothing() -> None:
    for method in (methods.plain(), methods.random_mask(0.5), methods.top_k(0.3), methods.compressed_gradient(0.2)):
        ours, alone = sgd_of(MLP.model(), methods.scaled_by_alpha(method, every=1)), sgd_of(MLP.model(), method)
        for t in range(4):
            step, other = step_of_mlp(ours, t), step_of_mlp(alone, t)
            assert step.backwards == other.backwards and step.lr == RATE, method.name
        assert are_equal(ours.parameters.model, alone.parameters.model), method.name


def test_a_guard_around_it_takes_the_fallbacks_step_at_the_whole_rate() -> None:
    kinds = []

    def by(found) -> float:
        return 1.0 if sgd.t % 4 < 2 else math.nan

    method = methods.scaled_by_alpha(methods.sam(0.5), every=1)
    sgd = sgd_of(MLP.model(), methods.guarded(method, by=by, fallback=methods.top_k(0.2), every=1))
    for t in range(8):
        step = step_of_mlp(sgd, t)
        kinds.append(step.mask.is_everything)
        assert step.lr == (pytest.approx(RATE * step.criteria.alpha) if kinds[-1] else RATE)
        assert step.criteria.alpha < 1
    assert kinds == [True, True, False, False] * 2
    scaled = methods.scaled_by_alpha(methods.dropout(0.6), every=3)
    ours, alone = (sgd_of(MLP.model(), m) for m in (methods.guarded(scaled, by=lambda found: 1.0, every=2), scaled))
    for t in range(6):
        assert step_of_mlp(ours, t).lr == step_of_mlp(alone, t).lr
    assert are_equal(ours.parameters.model, alone.parameters.model)


def test_a_resumed_run_holds_the_alpha_that_it_had() -> None:
    method = methods.scaled_by_alpha(methods.sam(0.5), every=5)
    run = Run(MLP, COORDINATE_WISE["AdamW"], method, False)
    rates = [run.step(t).lr for t in range(8)]
    assert len(set(rates[:5])) == 1 and rates[5] != rates[0] < 0.01
    assert_resumes(method, 3, 8, make=COORDINATE_WISE["AdamW"])


def test_the_users_meter_beside_it_changes_nothing_and_finds_the_same() -> None:
    runs = []
    for meter in (None, CriteriaMeter(every=1)):
        made = Run(MLP, COORDINATE_WISE["AdamW"], methods.scaled_by_alpha(methods.dropout(0.6), every=3), False, meter)
        steps = [made.step(t) for t in range(6)]
        runs.append((steps, made.tensors()))
    (alone, ours), (both, theirs) = runs
    assert_same_bits(ours, theirs)
    assert [len(s.measurements) for s in alone] == [1, 0, 0] * 2, "without a meter of the user's, its own is shown"
    assert [len(s.measurements) for s in both] == [1] * 6
    assert [s.backwards for s in alone] == [2, 1, 1] * 2 and [s.backwards for s in both] == [2] * 6, "one pass for both"
    assert all(a.criteria.alpha == b.criteria.alpha for a, b in zip(alone[::3], both[::3], strict=True))


def test_what_cannot_be_scaled_is_refused_and_leaves_the_model_alone() -> None:
    one = methods.scaled_by_alpha(methods.dropout())
    for build, message in (
        (lambda: methods.scaled_by_alpha(one), "measures already"),
        (lambda: methods.scaled_by_alpha(methods.guarded(methods.dropout())), r"guarded\(scaled_by_alpha"),
        (lambda: methods.guarded(methods.dropout(), fallback=one), "has a meter, which as a fallback"),
        (lambda: methods.scaled_by_alpha(methods.dropout(), every=0), "every must be a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            build()
    with pytest.raises(TypeError, match="method must be a Method"):
        methods.scaled_by_alpha(methods.dropout)
    nested = family()
    before = {name: value.clone() for name, value in nested.state_dict().items()}
    for method, message in (
        (methods.scaled_by_alpha(methods.slimmable()), "takes 2 gradients in a step, and α is that of one"),
        (methods.compose(methods.slimmable(), methods.scaled_by_alpha(methods.sam())), "measures one gradient"),
    ):
        sgd = sgd_of(nested, method)
        with pytest.raises(ValueError, match=message):
            sgd.step(lambda: nested(torch.ones(2, 6)).sum().backward() or 0.0)
        assert_same_bits(before, nested.state_dict())
