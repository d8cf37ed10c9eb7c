"""The criteria while training: every number again by torch.func, and what measuring costs and does not change."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from partialsgd import (
    CriteriaMeter,
    LowRank,
    Method,
    PartialSGD,
    Width,
    masks,
    methods,
    nest,
    perturbations,
    soft_cross_entropy,
)
from partialsgd.parameters import Parameters
from partialsgd.testing.problems import PROBLEMS
from partialsgd.testing.runs import assert_same_bits
from tests.families import family
from tests.reference import element, gradient, perturbed

SEED = 5
BATCHNORM = next(p for p in PROBLEMS if p.name == "batchnorm")


def mlp(drop: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.Tanh(), nn.Dropout(drop), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3)]
    return nn.Sequential(*layers)


def batch(t: int, n: int = 20):
    g = torch.Generator().manual_seed(t)
    return torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)


def closure(model: nn.Module, t: int, n: int = 20):
    x, y = batch(t, n)

    def run():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return run


def trained(model: nn.Module, method: Method, meter, rate: float = 0.1, **options) -> PartialSGD:
    return PartialSGD(model, torch.optim.SGD(model.parameters(), rate), method, meter=meter, **options)


def values(model: nn.Module) -> dict:
    return {name: p.detach().clone() for name, p in Parameters(model).items()}


def by_definition(mask, x, moved, g, h) -> dict[str, float]:
    """The five numbers, from the vectors written out; coordinates that only one pass used are in neither."""
    names = [name for name in g if name in h]

    def flat(vector, over, masked):
        parts = [vector[n] * element(mask, n, vector[n]) if masked else vector[n] for n in over]
        return torch.cat([part.flatten().double() for part in parts]) if parts else torch.zeros(1)

    pg, ph = flat(g, names, True), flat(h, names, True)
    return {
        "whole": float(flat(g, list(g), False).norm()),
        "masked": float(flat(g, list(g), True).norm()),
        "perturbed": float(ph.norm()),
        "inner": float(pg @ ph),
        "moved": float(torch.cat([(moved[n] - x[n]).flatten() for n in x]).norm()),
        "c_norm": float(flat(g, list(g), False).norm() / flat(g, list(g), True).norm()),
        "c_sim": float(pg.norm() / ph.norm()),
        "c_align": float(pg.norm() * ph.norm() / (pg @ ph)),
        "alpha": float(min(1, max(0, pg @ ph / (ph @ ph)))),
    }


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
@pytest.mark.parametrize(
    "method",
    [
        methods.dropout(0.7),
        methods.random_mask(0.5),
        methods.top_k(0.3),
        methods.sam(0.2),
        methods.extragradient(0.05),
        methods.dynamic_pruning(0.5),
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
    found = step.criteria

    def loss(f):
        torch.manual_seed(SEED)
        return problem.evaluate(_Called(other, f), 0)

    g = gradient(other, x, loss)
    moved = perturbed(other, x, _perturbation_of(method, other, g, step.mask))
    expected = by_definition(step.mask, x, moved, g, gradient(other, moved, loss))
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=2e-4, abs=1e-6), name
    assert found.q == pytest.approx(found.whole / (found.alpha * found.perturbed), rel=1e-6)
    largest = max(found.masked, found.perturbed)
    assert found.bounded_perturbation == pytest.approx(expected["moved"] / largest, rel=1e-4)


class _Called(nn.Module):
    """A module whose forward is a given function: problems evaluate modules."""

    def __init__(self, model, f) -> None:
        super().__init__()
        self.f = f
        self.training = model.training

    def forward(self, *args):
        return self.f(*args)


def _perturbation_of(method: Method, model: nn.Module, g, mask):
    from partialsgd.method import Context
    from partialsgd.vectors import Vector

    context = Context(0, 0, Parameters(model), {}).with_mask(mask).with_gradient(Vector(g))
    return method.perturb(context)


@pytest.mark.parametrize("spec", [Width(0.5), LowRank(0.25)], ids=["width", "low rank"])
def test_a_level_is_measured_as_the_mask_that_defines_it(spec) -> None:
    """The core runs as a small network; by definition it is the whole one at p ⊙ x."""
    nested = nest(mlp(), spec)
    sgd = trained(nested, methods.alternating(), CriteriaMeter(1))
    sgd.step(closure(nested, 0))
    x, mask = values(nested), nested.mask("core")
    found = sgd.step(closure(nested, 1)).criteria
    inputs, targets = batch(1)

    def loss(f):
        return F.cross_entropy(f(inputs), targets)

    dropped = {name: value * element(mask, name, value) for name, value in x.items()}
    g, h = gradient(nested, x, loss), gradient(nested, dropped, loss)
    expected = by_definition(mask, x, dropped, g, h)
    assert found.level == "core"
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize("every", [2, 16, 50])
def test_each_level_is_counted_by_itself(every) -> None:
    """By t alone and an even number, alternating training would measure full steps only, where all is 1."""
    nested = nest(mlp(), Width(0.5))
    sgd = trained(nested, methods.alternating(), meter := CriteriaMeter(every))
    found = [sgd.step(closure(nested, t, 4)) for t in range(2 * every + 2)]
    measured = [(step.t, step.criteria.level) for step in found if step.criteria]
    assert measured == [(0, "full"), (1, "core"), (2 * every, "full"), (2 * every + 1, "core")]
    assert {level: summary.count for level, summary in meter.summary(sgd).items()} == {"full": 2, "core": 2}
    assert all(s.criteria.c_align == 1 == s.criteria.q for s in found if s.criteria and s.level == "full")
    assert all(s.criteria.c_norm > 1 for s in found if s.criteria and s.level == "core")


def test_masks_of_whole_tensors_that_come_again_are_counted_by_themselves() -> None:
    model = mlp()
    blocks = [["0"], ["3"], ["5"]]
    method = Method(mask=lambda c: masks.only(c.parameters, blocks[c.t % 3]), name="cyclic")
    sgd = trained(model, method, meter := CriteriaMeter(3))
    due = [t for t in range(12) if sgd.step(closure(model, t)).criteria]
    assert due == [0, 1, 2, 9, 10, 11]
    assert len(meter.summary(sgd)) == 3
    sgd = trained(model, methods.dropout(0.5), CriteriaMeter(3))  # masks that never come again are one
    assert [t for t in range(7) if sgd.step(closure(model, t)).criteria] == [0, 3, 6]


@pytest.mark.parametrize(
    ("make", "unmeasured", "measured"),
    [
        (lambda n: methods.plain(), 1, 1),
        (lambda n: methods.random_mask(0.5), 1, 1),
        (lambda n: methods.top_k(0.2), 1, 1),
        (lambda n: methods.compressed_gradient(0.2), 1, 1),
        (lambda n: methods.sam(), 2, 2),
        (lambda n: methods.extragradient(), 2, 2),
        (lambda n: methods.dropout(0.5), 1, 2),
        (lambda n: methods.slimmable(), 2, 2),
        (lambda n: methods.sandwich(), 2, 2),
        (lambda n: methods.only("core"), 1, 2),
        (lambda n: methods.only("full"), 1, 1),
        (lambda n: methods.compose(methods.only("core"), methods.sam()), 2, 3),
    ],
    ids=["plain", "random", "top_k", "compressed", "sam", "extra", "dropout", "slim", "sandwich", "core", "full", "cs"],
)
def test_a_pass_is_made_only_where_the_gradient_at_x_is_missing(make, unmeasured, measured) -> None:
    for meter, expected in ((None, unmeasured), (CriteriaMeter(1), measured)):
        nested = nest(mlp(), Width(0.5))
        assert trained(nested, make(nested), meter).step(closure(nested, 0)).backwards == expected


def test_the_full_branch_of_slimmable_serves_the_others_and_is_the_same_number() -> None:
    """What is kept of the first branch is what a pass of its own would give."""
    nested = nest(mlp(), Width([0.25, 0.5]))
    levels = [trained(nested, methods.slimmable(), CriteriaMeter(1)).step(closure(nested, 0)).measurements]
    for level in ("1/2", "1/4"):
        nested = nest(mlp(), Width([0.25, 0.5]))
        levels.append([trained(nested, methods.only(level), CriteriaMeter(1)).step(closure(nested, 0)).criteria])
    (full, half, quarter), [alone_half], [alone_quarter] = levels
    assert [c.level for c in levels[0]] == ["full", "1/2", "1/4"] and full.c_norm == 1
    for a, b in ((half, alone_half), (quarter, alone_quarter)):
        ours, alone = a.numbers(), b.numbers()
        assert all(ours.pop(word) == alone.pop(word) for word in ("level", "probe"))
        groups = ours.pop("groups"), alone.pop("groups")
        assert ours == pytest.approx(alone, rel=1e-6)  # where a gradient lies decides how some processors add
        assert groups[0].keys() == groups[1].keys()
        for name, numbers in groups[0].items():
            assert numbers == pytest.approx(groups[1][name], rel=1e-6)


def test_the_full_branch_serves_levels_that_are_due_when_it_is_not_itself() -> None:
    nested = nest(mlp(), Width([0.25, 0.5, 0.75]))
    sgd = trained(nested, methods.sandwich(between=1), CriteriaMeter(3))
    due = []
    for t in range(15):
        step = sgd.step(closure(nested, t))
        due.append([found.level for found in step.measurements])
        assert step.backwards == len(step.losses) == 3
    assert any(levels and "full" not in levels for levels in due)


@pytest.mark.parametrize(
    ("spec", "slim", "single", "quiet"), [(LowRank(0.25), 3, 2, False), (Width(0.5), 4, 3, True)], ids=["rank", "width"]
)
def test_where_noise_cannot_be_the_same_the_pair_is_measured_without(spec, slim, single, quiet) -> None:
    nested = nest(mlp(0.4), spec)
    step = trained(nested, methods.only("core"), CriteriaMeter(1)).step(closure(nested, 0))
    assert (step.backwards, step.criteria.quiet) == (single, quiet)
    if quiet:  # the same numbers as of the network that has no dropout
        twin = nest(mlp(), spec)
        twin.load_state_dict(nest(mlp(0.4), spec).state_dict())
        clean = trained(twin, methods.only("core"), CriteriaMeter(1)).step(closure(twin, 0)).criteria
        assert clean.c_align == step.criteria.c_align and not clean.quiet
    nested = nest(mlp(0.4), spec)
    assert trained(nested, methods.slimmable(), CriteriaMeter(1)).step(closure(nested, 0)).backwards == slim
    assert nested.training and all(m.training for m in nested.modules())


class Functional(nn.Module):
    """Draws noise without a module of dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.second(F.dropout(torch.relu(self.first(x)), 0.5, self.training))


def test_noise_that_no_module_makes_is_noticed() -> None:
    nested = nest(Functional(), Width(0.5))
    sgd = trained(nested, methods.only("core"), CriteriaMeter(1))
    step = sgd.step(closure(nested, 0))
    assert step.criteria.quiet and step.backwards == 5  # a pair was tried first
    nested = nest(Functional(), Width(0.5)).eval()
    step = trained(nested, methods.only("core"), CriteriaMeter(1)).step(closure(nested, 0))
    assert not step.criteria.quiet and step.backwards == 2


class OneNumber(nn.Module):
    """Draws one number in training, as Hugging Face's layers do, and uses it at each level alike."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        factor = 0.5 + torch.rand([]) if self.training else 1.0
        return self.second(torch.relu(self.first(x)) * factor)


def test_noise_that_is_the_same_at_each_level_is_left_on() -> None:
    """The pair is the one that a generator begun twice at the same place gives."""
    for method, probe in ((lambda n: methods.only("core"), None), (lambda n: methods.plain(), "core")):
        nested = nest(OneNumber(), Width(0.5, hidden=("first", "second")))
        x, mask = values(nested), nested.mask("core")
        sgd = trained(nested, method(nested), CriteriaMeter(1, probe))
        torch.manual_seed(SEED)
        step = sgd.step(closure(nested, 0))
        assert not step.criteria.quiet and step.backwards == 3  # one of them to see that it draws alike
        inputs, targets = batch(0)

        def loss(f, inputs=inputs, targets=targets):
            torch.manual_seed(SEED)
            return F.cross_entropy(f(inputs), targets)

        dropped = {n: v * element(mask, n, v) for n, v in x.items()}
        expected = by_definition(mask, x, dropped, gradient(nested, x, loss), gradient(nested, dropped, loss))
        assert step.criteria.c_align == pytest.approx(expected["c_align"], rel=1e-4)
        assert step.criteria.whole == pytest.approx(expected["whole"], rel=1e-4)


def test_a_probe_is_measured_and_not_trained() -> None:
    """Plain training against a random mask (Figure 3): the numbers of dropout at the same x, and the run of plain."""
    final = []
    for meter in (None, CriteriaMeter(1, methods.dropout(0.6))):
        model = mlp()
        sgd = trained(model, methods.plain(), meter)
        for t in range(3):
            before = copy.deepcopy(model)
            step = sgd.step(closure(model, t))
            if meter is not None:
                other = trained(before, methods.dropout(0.6), CriteriaMeter(1))
                other.t = t
                expected = other.step(closure(before, t)).criteria
                assert step.criteria.probe.startswith("dropout") and step.backwards == 2
                for name in ("whole", "masked", "perturbed", "inner", "moved"):
                    assert getattr(step.criteria, name) == getattr(expected, name)
        final.append(values(model))
    assert_same_bits(*final)


def test_neurons_are_probed_as_they_are_dropped() -> None:
    """Dropping neurons also keeps the statistics of those that are out; a probe leaves them all alone."""
    model, twin = BATCHNORM.model(), BATCHNORM.model()
    neurons = methods.dropout(0.5, unit="neurons")
    torch.manual_seed(SEED)
    step = trained(model, methods.plain(), CriteriaMeter(1, neurons)).step(BATCHNORM.closure(model, 0))
    torch.manual_seed(SEED)
    expected = trained(twin, neurons, CriteriaMeter(1)).step(BATCHNORM.closure(twin, 0)).criteria
    for name in ("whole", "masked", "perturbed", "inner", "moved"):
        assert getattr(step.criteria, name) == getattr(expected, name)


def test_a_level_as_probe_of_standard_training() -> None:
    """Standard training against its half-width core (Figure 4)."""
    nested = nest(mlp(), Width(0.5))
    twin = copy.deepcopy(nested)
    step = trained(nested, methods.plain(), CriteriaMeter(1, "core")).step(closure(nested, 0))
    expected = trained(twin, methods.only("core"), CriteriaMeter(1)).step(closure(twin, 0)).criteria
    assert (
        step.level is None and step.mask.is_everything and (step.criteria.probe, step.criteria.level) == ("core",) * 2
    )
    for name in ("whole", "masked", "perturbed", "inner", "moved"):
        assert getattr(step.criteria, name) == getattr(expected, name)


def test_a_probe_may_look_at_the_gradient_and_be_measured_beside_any_method() -> None:
    model = mlp()
    twin = copy.deepcopy(model)
    step = trained(model, methods.dropout(0.5), CriteriaMeter(1, methods.sam(0.3))).step(closure(model, 0))
    expected = trained(twin, methods.sam(0.3), CriteriaMeter(1)).step(closure(twin, 0)).criteria
    assert step.backwards == 3 and step.criteria.c_align == expected.c_align and step.criteria.moved == expected.moved
    step = trained(mlp(), methods.dropout(0.5), CriteriaMeter(1, methods.top_k(0.2)))
    model = step.parameters.model
    assert step.step(closure(model, 0)).criteria.c_sim == 1


def test_over_all_the_data_it_is_the_gradient_of_all_the_data() -> None:
    model = mlp()
    x, mask_x = values(model), values(model)
    data = [batch(100 + k, 8) for k in range(5)]
    meter = CriteriaMeter(1, batches=data, loss=lambda b: F.cross_entropy(model(b[0]), b[1]))
    step = trained(model, methods.dropout(0.7), meter).step(closure(model, 0))
    assert step.backwards == 11
    other = mlp()

    def loss(f):
        return torch.stack([F.cross_entropy(f(a), b) for a, b in data]).mean()

    dropped = {n: v * element(step.mask, n, v) for n, v in mask_x.items()}
    expected = by_definition(step.mask, x, dropped, gradient(other, x, loss), gradient(other, dropped, loss))
    for name, value in expected.items():
        assert getattr(step.criteria, name) == pytest.approx(value, rel=1e-4), name


def test_independent_batches_are_the_two_halves() -> None:
    model = mlp()
    x = values(model)
    asked = []

    def batches(t):
        asked.append(t)
        return [batch(100 * (t + 1) + k, 8) for k in range(4)]

    meter = CriteriaMeter(2, batches=batches, loss=lambda b: F.cross_entropy(model(b[0]), b[1]), independent=True)
    sgd = trained(model, methods.dropout(0.7), meter)
    step = sgd.step(closure(model, 0))
    other = mlp()

    def mean_of(data):
        return lambda f: torch.stack([F.cross_entropy(f(a), b) for a, b in data]).mean()

    data = [batch(100 + k, 8) for k in range(4)]
    dropped = {n: v * element(step.mask, n, v) for n, v in x.items()}
    g, h = gradient(other, x, mean_of(data[:2])), gradient(other, dropped, mean_of(data[2:]))
    expected = by_definition(step.mask, x, dropped, g, h)
    assert step.criteria.c_align == pytest.approx(expected["c_align"], rel=1e-4)
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
        meter = CriteriaMeter(
            1,
            methods.dropout(0.8),
            batches=lambda t: [batch(1000 + 2 * t, 32), batch(1001 + 2 * t, 32)],
            loss=lambda b: F.cross_entropy(model(b[0]), b[1]),
            independent=independent,
            alerts=None,
        )
        sgd = trained(model, methods.plain(), meter, rate=0.0)
        found = [sgd.step(closure(model, t)).criteria.cosine for t in range(60)]
        cosines[independent] = sum(found) / len(found)
    assert cosines[False] > 0.8 and abs(cosines[True]) < 0.1


@pytest.mark.parametrize("source", ["loader", "function"])
def test_batches_that_draw_do_not_change_the_run(source) -> None:
    """A DataLoader draws from torch's generator whenever it is begun, and the model's dropout would notice."""
    final = []
    for measured in (False, True):
        model = mlp(0.3)
        data = torch.utils.data.TensorDataset(*batch(99, 64))
        loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
        batches = loader if source == "loader" else lambda t: [(torch.randn(8, 6), torch.randint(3, (8,)))]
        meter = CriteriaMeter(1, batches=batches, loss=lambda b, model=model: F.cross_entropy(model(b[0]), b[1]))
        sgd = trained(model, methods.dropout(0.7), meter if measured else None)
        torch.manual_seed(SEED)
        for t in range(3):
            assert (sgd.step(closure(model, t)).criteria is not None) == measured
        final.append(values(model) | {"rng": torch.get_rng_state()})
    assert_same_bits(*final)


@pytest.mark.parametrize("independent", [False, True])
def test_where_nothing_is_masked_or_moved_all_is_one_over_any_batches(independent) -> None:
    """Two halves of the data have two gradients; that is noise, and no reason to call plain SGD's steps uphill."""
    for method, passes in ((methods.plain(), 1), (methods.random_mask(0.5), 3 if independent else 5)):
        model = mlp()
        meter = CriteriaMeter(
            1,
            batches=[batch(k, 4) for k in range(4)],
            loss=lambda b, model=model: F.cross_entropy(model(b[0]), b[1]),
            independent=independent,
        )
        step = trained(model, method, meter).step(closure(model, 0))
        assert step.backwards == passes
        assert step.criteria.c_sim == step.criteria.c_align == step.criteria.alpha == 1


def test_the_difference_of_two_samples_is_no_secant() -> None:
    found = {}
    for independent in (False, True):
        model = mlp()
        meter = CriteriaMeter(
            1,
            batches=[batch(k, 8) for k in range(2)],
            loss=lambda b, model=model: F.cross_entropy(model(b[0]), b[1]),
            independent=independent,
        )
        found[independent] = trained(model, methods.extragradient(1e-3), meter).step(closure(model, 0)).criteria
    assert 0 < found[False].secant < 10 and math.isnan(found[True].secant)


def test_a_small_move_has_the_secant_of_the_curvature_and_not_of_rounding() -> None:
    """½‖x‖² in single precision, moved by a millionth of its gradient: L is 1."""
    model = nn.ParameterDict({"x": nn.Parameter(torch.randn(200_000, generator=torch.Generator().manual_seed(0)))})

    def run():
        loss = 0.5 * model["x"].square().sum()
        loss.backward()
        return loss

    for eta in (1e-2, 1e-4, 1e-5):
        found = trained(model, methods.extragradient(eta), CriteriaMeter(1), rate=0.0).step(run).criteria
        assert found.secant == pytest.approx(1, rel=0.02), eta


@pytest.mark.parametrize("make", [methods.alternating, methods.slimmable], ids=["alternating", "slimmable"])
def test_with_distillation_the_gradient_at_x_is_that_of_the_labels(make) -> None:
    """f is the loss of the whole network. Taught by itself it would have no gradient at all."""
    nested, twin = nest(mlp(), LowRank(0.5)), nest(mlp(), LowRank(0.5))
    x, y = batch(0)

    def run(g):
        scores = nested(x)
        if g.level == "full":
            g.outputs = scores
            loss = F.cross_entropy(scores, y)
        else:
            loss = soft_cross_entropy(scores, g.teacher)
        loss.backward()
        return loss

    sgd = trained(nested, make(distill=True), CriteriaMeter(1), rate=0.0)
    steps = [sgd.step(run) for _ in range(2)]
    core = next(found for step in steps for found in step.measurements if found.level == "core")
    assert core.whole == pytest.approx(
        trained(twin, methods.plain(), CriteriaMeter(1)).step(closure(twin, 0)).criteria.whole, rel=1e-5
    )


def test_the_move_of_a_level_and_another_method_is_counted_once() -> None:
    """Outside the level x goes to zero, inside it is moved as the other method says."""
    for other in (methods.dropout(0.5), methods.random_mask(0.5), methods.top_k(0.1), methods.sam(0.3)):
        nested = nest(mlp(), Width(0.5))
        x, level = values(nested), nested.mask("core")
        method = methods.compose(methods.only("core"), other)
        step = trained(nested, method, CriteriaMeter(1)).step(closure(nested, 0))
        moved = {n: -v * ~element(level, n, v) for n, v in x.items()}
        if other.name.startswith("dropout"):
            moved = {n: -v * ~element(step.mask, n, v) for n, v in x.items()}
        expected = float(torch.cat([m.flatten() for m in moved.values()]).norm())
        expected = math.hypot(expected, 0.3) if other.name.startswith("sam") else expected
        assert step.criteria.moved == pytest.approx(expected, rel=1e-5), other.name


def test_masks_that_never_come_again_do_not_defeat_every() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])

    def some(context):
        chosen = torch.randperm(20, generator=torch.Generator().manual_seed(context.t))[:5]
        return masks.only(context.parameters, [str(int(k)) for k in chosen])

    sgd = trained(model, Method(mask=some, name="some"), CriteriaMeter(50))

    def run():
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    due = [t for t in range(200) if sgd.step(run).criteria]
    assert len(due) < 40 and len(due) > 4, "a cycle of up to 32 masks is counted apart, what is more is not one"
    size = len(sgd.measured["meter"])
    for _ in range(50):
        sgd.step(run)
    assert len(sgd.measured["meter"]) == size, "and what is remembered does not grow"


def test_a_probe_of_several_levels_has_a_summary_of_each_and_is_asked_once_a_step() -> None:
    nested = nest(mlp(), Width([0.25, 0.5]))
    sgd = trained(nested, methods.plain(), meter := CriteriaMeter(1, methods.slimmable()))
    for t in range(3):
        sgd.step(closure(nested, t))
    counts = {place.rpartition(", ")[2]: summary.count for place, summary in meter.summary(sgd).items()}
    assert counts == {"full": 3, "1/2": 3, "1/4": 3}
    sgd = trained(nested, methods.slimmable(), CriteriaMeter(1, methods.dropout(0.5)))
    assert len(sgd.step(closure(nested, 0)).measurements) == 1


def test_micro_batches_are_measured_together() -> None:
    criteria = []
    for times in (1, 2):
        model = mlp()
        sgd = trained(model, methods.random_mask(0.5), CriteriaMeter(2))
        x, y = batch(0)
        for g in sgd.gradients():
            for _ in range(times):
                with g:
                    (F.cross_entropy(model(x), y) / times).backward()
        criteria.append(sgd.update().criteria)
    assert criteria[0].whole == pytest.approx(criteria[1].whole) and criteria[0].c_norm == pytest.approx(
        criteria[1].c_norm
    )


def test_of_a_step_with_several_branches_the_first_is_compared_with_the_last_steps() -> None:
    nested = nest(mlp(), Width(0.5))
    sgd = trained(nested, methods.slimmable(), CriteriaMeter(1, consecutive=True), rate=0.0)
    first, second = (sgd.step(closure(nested, 0)) for _ in range(2))
    assert all(found.consecutive is None for found in first.measurements), "there is no step before the first"
    assert second.criteria.consecutive_cosine == pytest.approx(1, rel=1e-6), "the same batch at the same x"


def test_of_a_refused_step_the_gradient_that_was_applied_is_kept() -> None:
    model = mlp()
    never = methods.guarded(methods.dropout(0.5), by=lambda found: 9.0, bound=1.0, every=1)
    sgd = trained(model, never, CriteriaMeter(1, consecutive=True))
    x = values(model)
    inputs, targets = batch(0)
    sgd.step(closure(model, 0))
    g = gradient(mlp(), x, lambda f: F.cross_entropy(f(inputs), targets))
    kept = {key.removeprefix("before/"): v for key, v in sgd.measured["meter"].items() if key.startswith("before/")}
    assert kept.keys() == g.keys() and all(torch.allclose(kept[n], g[n], atol=1e-6) for n in g)


def test_consecutive_gradients_are_compared() -> None:
    nested = nest(mlp(), Width(0.5))
    sgd = trained(nested, methods.alternating(), CriteriaMeter(2, consecutive=True))
    before = None
    for t in range(6):
        x, level = values(nested), ("full", "core")[t % 2]
        mask = nested.mask(level)
        inputs, targets = batch(t)
        dropped = {n: v * element(mask, n, v) for n, v in x.items()}
        g = gradient(nested, dropped, lambda f, i=inputs, y=targets: F.cross_entropy(f(i), y))
        now = torch.cat([(g[n] * element(mask, n, g[n])).flatten().double() for n in g])
        found = sgd.step(closure(nested, t)).criteria
        assert (found is not None) == (t % 4 < 2)
        if found is not None and before is not None:
            assert found.consecutive == pytest.approx(float(now @ before), rel=1e-4)
            assert found.consecutive_cosine == pytest.approx(float(now @ before / now.norm() / before.norm()), rel=1e-4)
        before = now


def test_groups_are_the_same_numbers_of_a_part() -> None:
    model = mlp()
    found = trained(model, methods.dropout(0.7), CriteriaMeter(1)).step(closure(model, 0)).criteria
    assert list(found.groups) == ["0", "3", "5"]
    for name in ("whole", "masked", "perturbed"):
        total = math.sqrt(sum(getattr(group, name) ** 2 for group in found.groups.values()))
        assert getattr(found, name) == pytest.approx(total, rel=1e-9)
    assert found.inner == pytest.approx(sum(group.inner for group in found.groups.values()), rel=1e-9)
    assert "moved" in found.numbers() and "moved" not in found.numbers()["groups"]["0"], "not known of a part"
    model = mlp()
    meter = CriteriaMeter(1, groups={"ends": ["0", "5"]})
    ends = trained(model, methods.dropout(0.7), meter).step(closure(model, 0)).criteria.groups
    assert ends["ends"].whole == pytest.approx(math.hypot(found.groups["0"].whole, found.groups["5"].whole))
    model = mlp()
    assert not trained(model, methods.plain(), CriteriaMeter(1, groups={})).step(closure(model, 0)).criteria.groups


def test_private_batch_norms_are_in_neither_vector_and_counted() -> None:
    nested = family()
    step = trained(nested, methods.only("core"), CriteriaMeter(1)).step(closure(nested, 0))
    own = [p for name, p in nested.named_parameters() if "core" in name]
    assert step.criteria.left_out == sum(p.numel() for p in own) > 0
    assert 0 < step.criteria.masked <= step.criteria.whole and step.criteria.quiet


class Line(nn.Module):
    """f of two numbers, whose gradient at x̃ is chosen by where x̃ is."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor([a])), nn.Parameter(torch.tensor([b]))


def cored(inside) -> Method:
    return Method(
        mask=lambda c: masks.only(c.parameters, inside),
        perturb=lambda c: perturbations.drop_outside(c.mask),
        name="core",
    )


def _measured(f, a=1.0, b=1.0, inside=("a",)):
    model = Line(a, b)

    def run():
        loss = f(model.a, model.b).sum()
        loss.backward()
        return loss

    return trained(model, cored(inside), CriteriaMeter(1)).step(run).criteria


def test_edges_zero_orthogonal_opposite_and_a_stationary_core() -> None:
    opposite = _measured(lambda a, b: a * (2 * b - 1))  # ∂a = 2b − 1: 1 at b = 1, −1 without it
    assert (opposite.c_align, opposite.cosine, opposite.alpha, opposite.q) == (-1, -1, 0, math.inf)
    assert opposite.squared.c_align == -1
    zero = _measured(lambda a, b: a * 0 + b * 0)
    assert zero.whole == 0 and math.isnan(zero.c_norm) and math.isnan(zero.c_align) and math.isnan(zero.alpha)
    stationary = _measured(lambda a, b: (a - 1) ** 2 + b**2)  # the core is at its best, the rest is not
    assert stationary.c_norm == math.inf and stationary.masked == 0 and stationary.whole == 2
    vanishing = _measured(lambda a, b: a * b)  # without b nothing is left of the gradient
    assert vanishing.c_sim == math.inf and math.isnan(vanishing.c_align) and vanishing.bounded_perturbation == 1
    model = nn.ParameterDict({"a": nn.Parameter(torch.tensor([1.0, 0.0])), "b": nn.Parameter(torch.tensor([1.0]))})

    def orthogonal():
        a, b = model["a"], model["b"]
        loss = (a[0] * b + a[1] * (1 - b)).sum()
        loss.backward()
        return loss

    found = trained(model, cored(["a"]), CriteriaMeter(1)).step(orthogonal).criteria
    assert (found.inner, found.c_align, found.alpha, found.q) == (0, math.inf, 0, math.inf)


def test_checkpointing_and_autocast_change_nothing_but_rounding() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(0.3)

        def forward(self, x):
            return self.inner[5](checkpoint(self.inner[:5], x, use_reentrant=False))

    found = []
    for wrap, low in ((False, False), (True, False), (False, True)):
        model = Checkpointed() if wrap else nn.ModuleDict({"inner": mlp(0.3)})
        forward = model if wrap else model["inner"]
        x, y = batch(0)

        def run(forward=forward, low=low, x=x, y=y):
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                loss = F.cross_entropy(forward(x), y)
            loss.backward()
            return loss

        torch.manual_seed(SEED)
        found.append(trained(model, methods.dropout(0.7), CriteriaMeter(1)).step(run).criteria)
    plain, checkpointed, low = found
    assert plain.numbers() == checkpointed.numbers()
    assert low.c_align == pytest.approx(plain.c_align, rel=0.05) and low.c_align != plain.c_align


def test_inside_one_autocast_block_both_gradients_are_their_own() -> None:
    """Autocast keeps low-precision copies of weights: without clearing them x̃ would be x."""
    model = mlp()
    x, y = batch(0)

    def run():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with torch.autocast("cpu", torch.bfloat16):
        found = trained(model, methods.dropout(0.5), CriteriaMeter(1)).step(run).criteria
    assert found.c_align > 1.01


def test_a_loss_scale_is_not_measured() -> None:
    found = []
    for enabled in (False, True):
        model = mlp()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=enabled)
        x, y = batch(0)

        def run(model=model, scaler=scaler, x=x, y=y):
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            return loss

        found.append(trained(model, methods.dropout(0.7), CriteriaMeter(1), scaler=scaler).step(run).criteria)
    assert found[0].numbers() == found[1].numbers()  # a power of two


def test_a_skipped_step_is_not_counted() -> None:
    model = mlp()
    sgd = trained(model, methods.dropout(0.7), meter := CriteriaMeter(2), nonfinite="skip")
    sgd.step(closure(model, 0))

    def bad():
        loss = closure(model, 1)() * float("nan")
        next(model.parameters()).grad.fill_(float("nan"))
        return loss

    before = dict(sgd.measured["meter"])
    assert sgd.step(bad).skipped and sgd.measured["meter"] == before
    assert sgd.step(closure(model, 1)).criteria is None and sgd.step(closure(model, 2)).criteria is not None
    assert meter.summary(sgd)["model"].count == 2


def test_loops_that_own_their_backward_are_measured_too() -> None:
    model = mlp()
    sgd = trained(model, methods.dropout(0.7), CriteriaMeter(1))
    x, y = batch(0)
    for g in sgd.gradients():
        with g:
            F.cross_entropy(model(x), y).backward()
    twin = mlp()
    expected = trained(twin, methods.dropout(0.7), CriteriaMeter(1)).step(closure(twin, 0)).criteria
    assert sgd.update().criteria.numbers() == expected.numbers()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CriteriaMeter(0), "every must be a whole number of at least 1, got 0"),
        (lambda: CriteriaMeter(probe=3), "probe must be a Method or the name of a level, got 3"),
        (lambda: CriteriaMeter(batches=[1]), "batches and loss belong together"),
        (lambda: CriteriaMeter(independent=True), "independent=True needs batches"),
        (lambda: CriteriaMeter(alerts=False), "or None for no warnings; got False"),
        (lambda: CriteriaMeter(groups=["0"]), "groups must map names to patterns"),
        (
            lambda: trained(mlp(), methods.plain(), CriteriaMeter),
            "the meter must have the methods requests and measure",
        ),
        (lambda: trained(mlp(), methods.plain(), 3), "must have the methods requests and measure"),
        (lambda: CriteriaMeter().summary(trained(mlp(), methods.plain(), None)), "this run has no meter"),
    ],
)
def test_what_cannot_be_measured_is_refused(make, message) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_what_cannot_be_measured_here_is_refused_at_the_first_step() -> None:
    model = mlp()
    with pytest.raises(TypeError, match="a nested model is needed"):
        trained(model, methods.plain(), CriteriaMeter(1, "core")).step(closure(model, 0))
    nested = nest(mlp(), Width(0.5))
    with pytest.raises(ValueError, match="tiny"):
        trained(nested, methods.plain(), CriteriaMeter(1, "tiny")).step(closure(nested, 0))
    meter = CriteriaMeter(batches=lambda t: [], loss=lambda b: b)
    with pytest.raises(ValueError, match="batches gave 0 at t = 0; at least 1"):
        trained(model, methods.plain(), meter).step(closure(model, 0))
    for wrong in (lambda b: 1.0, lambda b: model(b[0]), lambda b: torch.ones(())):
        with pytest.raises(ValueError, match=r"loss\(batch\) must return the loss as one number"):
            sgd = trained(model, methods.dropout(0.5), CriteriaMeter(batches=[batch(0)], loss=wrong))
            sgd.step(closure(model, 0))
    with pytest.raises(ValueError, match=r"'5\.weight' is in two groups"):
        meter = CriteriaMeter(groups={"a": ["5"], "b": ["*.weight"]})
        trained(model, methods.plain(), meter).step(closure(model, 0))
    assert all(p.grad is None for p in model.parameters())


def test_functional_call_is_what_the_reference_uses() -> None:
    """The reference of this file does not go through PartialSGD."""
    model = mlp()
    x, y = batch(0)
    g = gradient(model, values(model), lambda f: F.cross_entropy(f(x), y))
    leaves = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
    loss = F.cross_entropy(functional_call(model, leaves, (x,)), y)
    expected = torch.autograd.grad(loss, list(leaves.values()))
    assert all(torch.equal(g[n], e) for n, e in zip(leaves, expected, strict=True))
