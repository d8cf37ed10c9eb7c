"""Every measured number again by torch.func, over any batches, in any precision, and at its edges."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from partialsgd import CriteriaMeter, LowRank, Method, Width, masks, methods, nest, perturbations, soft_cross_entropy
from partialsgd.meters.criteria_meter import block_of
from partialsgd.method import Context
from partialsgd.parameters import Parameters
from partialsgd.testing.problems import PROBLEMS
from partialsgd.vectors import Vector
from tests.functions import backward
from tests.meters.training import SEED, batch, closure, first_step, mlp, over_batches, trained, values
from tests.reference import element, gradient, perturbed
from tests.training import family


def by_definition(mask, x, moved, g, h) -> dict[str, float]:
    """The five numbers, from the vectors written out; coordinates that only one pass used are in neither."""
    names = [name for name in g if name in h]

    def flat(vector, over, masked):
        parts = [vector[n] * element(mask, n, vector[n]) if masked else vector[n] for n in over]
        return torch.cat([part.flatten().double() for part in parts]) if parts else torch.zeros(1)

    pg, ph = flat(g, names, True), flat(h, names, True)
    whole, masked = (float(flat(g, list(g), is_masked).norm()) for is_masked in (False, True))
    moved = float(torch.cat([(moved[n] - x[n]).flatten() for n in x]).norm())
    numbers = {"whole": whole, "masked": masked, "perturbed": ph.norm(), "inner": pg @ ph, "moved": moved}
    numbers |= {"c_norm": whole / masked, "c_sim": pg.norm() / ph.norm(), "c_align": pg.norm() * ph.norm() / (pg @ ph)}
    numbers |= {"alpha": min(1, max(0, pg @ ph / (ph @ ph)))}
    return {name: float(number) for name, number in numbers.items()}


def assert_is_definition(criteria, mask, x, moved, g, h, rel: float = 1e-4, names=None) -> dict[str, float]:
    expected = by_definition(mask, x, moved, g, h)
    for name in names or expected:
        assert getattr(criteria, name) == pytest.approx(expected[name], rel=rel, abs=1e-6), name
    return expected


def mean_over(data):
    return lambda f: torch.stack([F.cross_entropy(f(a), b) for a, b in data]).mean()


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
@pytest.mark.parametrize(
    "method",
    [
        *(methods.dropout(0.7), methods.random_mask(0.5), methods.top_k(0.3), methods.sam(0.2)),
        *(methods.extragradient(0.05), methods.dynamic_pruning(0.5)),
        Method(
            mask=lambda c: masks.only(c.parameters, [next(iter(c.parameters))]),
            perturb=lambda c: perturbations.function(list(c.parameters), lambda ps: [p.mul_(0.5) for p in ps.values()]),
            name="halved",
        ),
    ],
    ids=lambda m: m.name.partition("(")[0],
)
def test_every_quantity_again_by_torch_func(problem, method) -> None:
    model = problem.model()
    other, x = copy.deepcopy(model), values(model)
    sgd = trained(model, method, CriteriaMeter(1))
    torch.manual_seed(SEED)
    step = sgd.step(problem.closure(model, 0))
    criteria = step.criteria

    def loss(f):
        torch.manual_seed(SEED)
        return problem.evaluate(_Called(other, f), 0)

    g = gradient(other, x, loss)
    context = Context(0, 0, Parameters(other), {}).with_mask(step.mask).with_gradient(Vector(g))
    moved = perturbed(other, x, method.perturb(context))
    expected = assert_is_definition(criteria, step.mask, x, moved, g, gradient(other, moved, loss), rel=2e-4)
    assert criteria.q == pytest.approx(criteria.whole / (criteria.alpha * criteria.perturbed), rel=1e-6)
    largest = max(criteria.masked, criteria.perturbed)
    assert criteria.bounded_perturbation == pytest.approx(expected["moved"] / largest, rel=1e-4)


class _Called(nn.Module):
    """A module whose forward is a given function: problems evaluate modules."""

    def __init__(self, model, f) -> None:
        super().__init__()
        self.f = f
        self.training = model.training

    def forward(self, *args):
        return self.f(*args)


@pytest.mark.parametrize("spec", [Width(0.5), LowRank(0.25)], ids=["width", "low rank"])
def test_a_level_is_measured_as_the_mask_that_defines_it(spec) -> None:
    """The core runs as a small network; by definition it is the whole one at p ⊙ x."""
    nested = nest(mlp(), spec)
    sgd = trained(nested, methods.alternating(), CriteriaMeter(1))
    sgd.step(closure(nested, 0))
    x, mask = values(nested), nested.mask("core")
    criteria = sgd.step(closure(nested, 1)).criteria
    dropped, loss = {n: v * element(mask, n, v) for n, v in x.items()}, mean_over([batch(1)])
    assert criteria.level == "core"
    assert_is_definition(criteria, mask, x, dropped, gradient(nested, x, loss), gradient(nested, dropped, loss))


@pytest.mark.parametrize(
    ("spec", "slim", "single", "dropout_off"),
    [(LowRank(0.25), 3, 2, False), (Width(0.5), 4, 3, True)],
    ids=["rank", "width"],
)
def test_where_noise_cannot_be_the_same_the_pair_is_measured_without(spec, slim, single, dropout_off) -> None:
    nested = nest(mlp(0.4), spec)
    step = first_step(nested, methods.only("core"), CriteriaMeter(1))
    assert (step.backwards, step.criteria.dropout_off) == (single, dropout_off)
    if dropout_off:  # the same numbers as of the network that has no dropout
        twin = nest(mlp(), spec)
        twin.load_state_dict(nest(mlp(0.4), spec).state_dict())
        clean = first_step(twin, methods.only("core"), CriteriaMeter(1)).criteria
        assert clean.c_align == step.criteria.c_align and not clean.dropout_off
    nested = nest(mlp(0.4), spec)
    assert first_step(nested, methods.slimmable(), CriteriaMeter(1)).backwards == slim
    assert nested.training and all(m.training for m in nested.modules())


class Noisy(nn.Module):
    """Draws noise in training without a module of dropout."""

    def __init__(self, noise) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.noise = nn.Linear(6, 16), nn.Linear(16, 3), noise

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.second(self.noise(hidden) if self.training else hidden)


def one_number(hidden):
    """The same at each level, as Hugging Face's layers draw it."""
    return hidden * (0.5 + torch.rand([]))


def test_noise_that_no_module_makes_is_noticed() -> None:
    nested = nest(Noisy(F.dropout), Width(0.5))
    sgd = trained(nested, methods.only("core"), CriteriaMeter(1))
    step = sgd.step(closure(nested, 0))
    assert step.criteria.dropout_off and step.backwards == 5  # a pair was tried first
    nested = nest(Noisy(F.dropout), Width(0.5)).eval()
    step = first_step(nested, methods.only("core"), CriteriaMeter(1))
    assert not step.criteria.dropout_off and step.backwards == 2


def test_noise_that_is_the_same_at_each_level_is_left_on() -> None:
    """The pair is the one that a generator begun twice at the same place gives."""
    for method, probe in ((lambda n: methods.only("core"), None), (lambda n: methods.plain(), "core")):
        nested = nest(Noisy(one_number), Width(0.5, hidden=("first", "second")))
        x, mask = values(nested), nested.mask("core")
        sgd = trained(nested, method(nested), CriteriaMeter(1, probe))
        torch.manual_seed(SEED)
        step = sgd.step(closure(nested, 0))
        assert not step.criteria.dropout_off and step.backwards == 3  # one of them to see that it draws alike
        inputs, targets = batch(0)

        def loss(f, inputs=inputs, targets=targets):
            torch.manual_seed(SEED)
            return F.cross_entropy(f(inputs), targets)

        dropped = {n: v * element(mask, n, v) for n, v in x.items()}
        g, h = gradient(nested, x, loss), gradient(nested, dropped, loss)
        assert_is_definition(step.criteria, mask, x, dropped, g, h, names=("c_align", "whole"))


def test_over_all_the_data_it_is_the_gradient_of_all_the_data() -> None:
    model = mlp()
    x, data = values(model), [batch(100 + k, 8) for k in range(5)]
    step = first_step(model, methods.dropout(0.7), over_batches(model, data))
    assert step.backwards == 11
    other, loss = mlp(), mean_over(data)
    dropped = {n: v * element(step.mask, n, v) for n, v in x.items()}
    assert_is_definition(step.criteria, step.mask, x, dropped, gradient(other, x, loss), gradient(other, dropped, loss))


def test_independent_batches_are_the_two_halves() -> None:
    model = mlp()
    x = values(model)
    asked = []

    def batches(t):
        asked.append(t)
        return [batch(100 * (t + 1) + k, 8) for k in range(4)]

    sgd = trained(model, methods.dropout(0.7), over_batches(model, batches, every=2, independent=True))
    step = sgd.step(closure(model, 0))
    other, data = mlp(), [batch(100 + k, 8) for k in range(4)]
    dropped = {n: v * element(step.mask, n, v) for n, v in x.items()}
    g, h = gradient(other, x, mean_over(data[:2])), gradient(other, dropped, mean_over(data[2:]))
    assert_is_definition(step.criteria, step.mask, x, dropped, g, h, names=("c_align",))
    for t in range(1, 3):
        sgd.step(closure(model, t))
    assert asked == [0, 2]


def test_a_shared_batch_inflates_the_cosine() -> None:
    """Erratum E21, by how much: of noise alone, one batch says that the gradients agree, two batches that they do not.

    The labels are random and the network is at the best constant answer, so the true gradient is nearly zero.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    cosines = {}
    for independent in (False, True):
        options = {"probe": methods.dropout(0.8), "independent": independent, "alerts": None}
        meter = over_batches(model, lambda t: [batch(1000 + 2 * t, 32), batch(1001 + 2 * t, 32)], **options)
        sgd = trained(model, methods.plain(), meter, rate=0.0)
        criteria = [sgd.step(closure(model, t)).criteria.cosine for t in range(60)]
        cosines[independent] = sum(criteria) / len(criteria)
    assert cosines[False] > 0.8 and abs(cosines[True]) < 0.1


@pytest.mark.parametrize("independent", [False, True])
def test_where_nothing_is_masked_or_moved_all_is_one_over_any_batches(independent) -> None:
    """Two halves of the data have two gradients; that is noise, and no reason to call plain SGD's steps uphill."""
    for method, passes in ((methods.plain(), 1), (methods.random_mask(0.5), 3 if independent else 5)):
        model = mlp()
        step = first_step(model, method, over_batches(model, [batch(k, 4) for k in range(4)], independent=independent))
        assert step.backwards == passes
        assert step.criteria.c_sim == step.criteria.c_align == step.criteria.alpha == 1


def test_the_difference_of_two_samples_is_no_secant() -> None:
    criteria = {}
    for independent in (False, True):
        model = mlp()
        meter = over_batches(model, [batch(k, 8) for k in range(2)], independent=independent)
        criteria[independent] = first_step(model, methods.extragradient(1e-3), meter).criteria
    assert 0 < criteria[False].secant < 10 and math.isnan(criteria[True].secant)


def test_a_small_move_has_the_secant_of_the_curvature_and_not_of_rounding() -> None:
    """½‖x‖² in single precision, moved by a millionth of its gradient: L is 1."""
    model = nn.ParameterDict({"x": nn.Parameter(torch.randn(200_000, generator=torch.Generator().manual_seed(0)))})
    for eta in (1e-2, 1e-4, 1e-5):
        sgd = trained(model, methods.extragradient(eta), CriteriaMeter(1), rate=0.0)
        measured = sgd.step(lambda: backward(0.5 * model["x"].square().sum())).criteria
        assert measured.secant == pytest.approx(1, rel=0.02), eta


@pytest.mark.parametrize("make", [methods.alternating, methods.slimmable], ids=["alternating", "slimmable"])
def test_with_distillation_the_gradient_at_x_is_that_of_the_labels(make) -> None:
    """f is the loss of the whole network. Taught by itself it would have no gradient at all."""
    nested, twin = nest(mlp(), LowRank(0.5)), nest(mlp(), LowRank(0.5))
    x, y = batch(0)

    def run(g):
        scores = nested(x)
        if g.level == "full":
            g.outputs = scores
        return backward(F.cross_entropy(scores, y) if g.level == "full" else soft_cross_entropy(scores, g.teacher))

    sgd = trained(nested, make(distill=True), CriteriaMeter(1), rate=0.0)
    steps = [sgd.step(run) for _ in range(2)]
    core = next(criteria for step in steps for criteria in step.measurements if criteria.level == "core")
    assert core.whole == pytest.approx(first_step(twin, methods.plain(), CriteriaMeter(1)).criteria.whole, rel=1e-5)


def test_the_move_of_a_level_and_another_method_is_counted_once() -> None:
    """Outside the level x goes to zero, inside it is moved as the other method says."""
    for other in (methods.dropout(0.5), methods.random_mask(0.5), methods.top_k(0.1), methods.sam(0.3)):
        nested = nest(mlp(), Width(0.5))
        x, level = values(nested), nested.mask("core")
        method = methods.compose(methods.only("core"), other)
        step = first_step(nested, method, CriteriaMeter(1))
        moved = {n: -v * ~element(level, n, v) for n, v in x.items()}
        if other.name.startswith("dropout"):
            moved = {n: -v * ~element(step.mask, n, v) for n, v in x.items()}
        expected = float(torch.cat([m.flatten() for m in moved.values()]).norm())
        expected = math.hypot(expected, 0.3) if other.name.startswith("sam") else expected
        assert step.criteria.moved == pytest.approx(expected, rel=1e-5), other.name


def test_groups_are_the_same_numbers_of_a_part() -> None:
    model = mlp()
    criteria = first_step(model, methods.dropout(0.7), CriteriaMeter(1)).criteria
    assert list(criteria.groups) == ["0", "3", "5"]
    for name in ("whole", "masked", "perturbed"):
        total = math.sqrt(sum(getattr(group, name) ** 2 for group in criteria.groups.values()))
        assert getattr(criteria, name) == pytest.approx(total, rel=1e-9)
    assert criteria.inner == pytest.approx(sum(group.inner for group in criteria.groups.values()), rel=1e-9)
    assert "moved" in criteria.numbers() and "moved" not in criteria.numbers()["groups"]["0"], "not known of a part"
    model = mlp()
    meter = CriteriaMeter(1, groups={"ends": ["0", "5"]})
    ends = first_step(model, methods.dropout(0.7), meter).criteria.groups
    assert ends["ends"].whole == pytest.approx(math.hypot(criteria.groups["0"].whole, criteria.groups["5"].whole))
    one = first_step(mlp(), methods.plain(), CriteriaMeter(1, groups={"one": "3"})).criteria.groups
    assert list(one) == ["one"], "one pattern may be given as a string"
    assert not first_step(mlp(), methods.plain(), CriteriaMeter(1, groups={})).criteria.groups


def test_a_numbered_block_is_a_group() -> None:
    groups = {"encoder.layers.3.fc1.weight": "encoder.layers.3", "0.weight": "0", "blocks.1.inner.2.weight": "blocks.1"}
    groups |= {"model.embed.weight": "model.embed", "head.bias": "head", "scale": "scale"}
    assert {name: block_of(name) for name in groups} == groups


def test_private_batch_norms_are_in_neither_vector_and_counted() -> None:
    nested = family()
    step = first_step(nested, methods.only("core"), CriteriaMeter(1))
    own = [p for name, p in nested.named_parameters() if "core" in name]
    assert step.criteria.left_out == sum(p.numel() for p in own) > 0
    assert 0 < step.criteria.masked <= step.criteria.whole and step.criteria.dropout_off


def core_of_two(f, a=(1.0,)):
    """The criteria of a core {a} in f(a, b), whose gradient at x̃ = (a, 0) is chosen by f."""
    model = nn.ParameterDict({"a": nn.Parameter(torch.tensor(a)), "b": nn.Parameter(torch.ones(1))})
    core = Method(lambda c: masks.only(c.parameters, ["a"]), lambda c: perturbations.drop_outside(c.mask), name="core")
    sgd = trained(model, core, CriteriaMeter(1))
    return sgd.step(lambda: backward(f(model["a"], model["b"]).sum())).criteria


def test_edges_zero_orthogonal_opposite_and_a_stationary_core() -> None:
    opposite = core_of_two(lambda a, b: a * (2 * b - 1))  # ∂a = 2b − 1: 1 at b = 1, −1 without it
    assert (opposite.c_align, opposite.cosine, opposite.alpha, opposite.q) == (-1, -1, 0, math.inf)
    assert opposite.squared.c_align == -1
    zero = core_of_two(lambda a, b: a * 0 + b * 0)
    assert zero.whole == 0 and math.isnan(zero.c_norm) and math.isnan(zero.c_align) and math.isnan(zero.alpha)
    stationary = core_of_two(lambda a, b: (a - 1) ** 2 + b**2)  # the core is at its best, the rest is not
    assert stationary.c_norm == math.inf and stationary.masked == 0 and stationary.whole == 2
    vanishing = core_of_two(lambda a, b: a * b)  # without b nothing is left of the gradient
    assert vanishing.c_sim == math.inf and math.isnan(vanishing.c_align) and vanishing.bounded_perturbation == 1
    orthogonal = core_of_two(lambda a, b: a[0] * b + a[1] * (1 - b), a=(1.0, 0.0))
    assert (orthogonal.inner, orthogonal.c_align, orthogonal.alpha, orthogonal.q) == (0, math.inf, 0, math.inf)


def test_checkpointing_and_autocast_change_nothing_but_rounding() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(0.3)

        def forward(self, x):
            return self.inner[5](checkpoint(self.inner[:5], x, use_reentrant=False))

    criteria = []
    for wrap, low in ((False, False), (True, False), (False, True)):
        model = Checkpointed() if wrap else nn.ModuleDict({"inner": mlp(0.3)})
        forward = model if wrap else model["inner"]
        x, y = batch(0)

        def run(forward=forward, low=low, x=x, y=y):
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                loss = F.cross_entropy(forward(x), y)
            return backward(loss)

        torch.manual_seed(SEED)
        criteria.append(trained(model, methods.dropout(0.7), CriteriaMeter(1)).step(run).criteria)
    plain, checkpointed, low = criteria
    assert plain.numbers() == checkpointed.numbers()
    assert low.c_align == pytest.approx(plain.c_align, rel=0.05) and low.c_align != plain.c_align


def test_a_loss_scale_is_not_measured() -> None:
    criteria, (x, y) = [], batch(0)
    for enabled in (False, True):
        model = mlp()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=enabled)
        sgd = trained(model, methods.dropout(0.7), CriteriaMeter(1), scaler=scaler)
        criteria.append(sgd.step(lambda s=scaler, m=model: backward(s.scale(F.cross_entropy(m(x), y)))).criteria)
    assert criteria[0].numbers() == criteria[1].numbers()  # a power of two
