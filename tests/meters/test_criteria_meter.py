"""Which steps and probes a CriteriaMeter measures, what it costs, and what it refuses."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from partialsgd import CriteriaMeter, Method, Width, masks, methods, nest
from partialsgd.testing.problems import PROBLEMS
from partialsgd.testing.runs import assert_same_bits
from tests.functions import backward
from tests.meters.training import (
    SEED,
    assert_same_norms,
    batch,
    closure,
    first_step,
    mlp,
    over_batches,
    trained,
    values,
)
from tests.reference import element, gradient
from tests.training import by_gradients, family

BATCHNORM = next(p for p in PROBLEMS if p.name == "batchnorm")


@pytest.mark.parametrize("every", [2, 16, 50])
def test_each_level_is_counted_by_itself(every) -> None:
    """By t alone and an even number, alternating training would measure full steps only, where all is 1."""
    nested = nest(mlp(), Width(0.5))
    sgd = trained(nested, methods.alternating(), meter := CriteriaMeter(every))
    criteria = [sgd.step(closure(nested, t, 4)) for t in range(2 * every + 2)]
    measured = [(step.t, step.criteria.level) for step in criteria if step.criteria]
    assert measured == [(0, "full"), (1, "core"), (2 * every, "full"), (2 * every + 1, "core")]
    assert {level: summary.count for level, summary in meter.summary(sgd).items()} == {"full": 2, "core": 2}
    assert all(s.criteria.c_align == 1 == s.criteria.q for s in criteria if s.criteria and s.level == "full")
    assert all(s.criteria.c_norm > 1 for s in criteria if s.criteria and s.level == "core")


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


def test_masks_that_never_come_again_do_not_defeat_every() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])

    def some(context):
        chosen = torch.randperm(20, generator=torch.Generator().manual_seed(context.t))[:5]
        return masks.only(context.parameters, [str(int(k)) for k in chosen])

    sgd = trained(model, Method(mask=some, name="some"), CriteriaMeter(50))

    def run():
        return backward(model(torch.ones(2, 4)).square().mean())

    due = [t for t in range(200) if sgd.step(run).criteria]
    assert len(due) < 40 and len(due) > 4, "a cycle of up to 32 masks is counted apart, what is more is not one"
    size = len(sgd.measured["meter"])
    for _ in range(50):
        sgd.step(run)
    assert len(sgd.measured["meter"]) == size, "and what is remembered does not grow"


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
        assert first_step(nested, make(nested), meter).backwards == expected


def test_the_full_branch_of_slimmable_serves_the_others_and_is_the_same_number() -> None:
    """The gradient of the first branch is the one that a separate pass would give."""
    nested = nest(mlp(), Width([0.25, 0.5]))
    levels = [first_step(nested, methods.slimmable(), CriteriaMeter(1)).measurements]
    for level in ("1/2", "1/4"):
        nested = nest(mlp(), Width([0.25, 0.5]))
        levels.append([first_step(nested, methods.only(level), CriteriaMeter(1)).criteria])
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
        due.append([criteria.level for criteria in step.measurements])
        assert step.backwards == len(step.losses) == 3
    assert any(levels and "full" not in levels for levels in due)


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
                assert_same_norms(step.criteria, expected)
        final.append(values(model))
    assert_same_bits(*final)


PROBED = {
    "neurons": (BATCHNORM, lambda: BATCHNORM.model(), methods.dropout(0.5, unit="neurons"), methods.plain(), 2),
    "level": (None, lambda: nest(mlp(), Width(0.5)), "core", methods.plain(), 2),
    "gradient": (None, mlp, methods.sam(0.3), methods.dropout(0.5), 3),
}


@pytest.mark.parametrize("case", PROBED)
def test_a_probe_is_measured_as_if_it_were_trained_beside_any_method(case: str) -> None:
    """Neurons keep the statistics of those that are out; a level is Figure 4's; a probe may read the gradient."""
    problem, build, probe, method, backwards = PROBED[case]
    steps = []
    for trained_method, meter in ((method, CriteriaMeter(1, probe)), (probe, CriteriaMeter(1))):
        model = build()
        method = methods.only(probe) if trained_method == "core" else trained_method
        torch.manual_seed(SEED)
        run = closure(model, 0) if problem is None else problem.closure(model, 0)
        steps.append(trained(model, method, meter).step(run))
    step, alone = steps
    assert_same_norms(step.criteria, alone.criteria)
    assert step.backwards == backwards and (step.level is None and step.criteria.probe.startswith(alone.level or ""))
    if case == "level":
        assert (step.criteria.probe, step.criteria.level) == ("core", "core") and step.mask.is_everything


def test_a_probe_of_several_levels_has_a_summary_of_each_and_is_asked_once_a_step() -> None:
    nested = nest(mlp(), Width([0.25, 0.5]))
    sgd = trained(nested, methods.plain(), meter := CriteriaMeter(1, methods.slimmable()))
    for t in range(3):
        sgd.step(closure(nested, t))
    counts = {place.rpartition(", ")[2]: summary.count for place, summary in meter.summary(sgd).items()}
    assert counts == {"full": 3, "1/2": 3, "1/4": 3}
    sgd = trained(nested, methods.slimmable(), CriteriaMeter(1, methods.dropout(0.5)))
    assert len(sgd.step(closure(nested, 0)).measurements) == 1


@pytest.mark.parametrize("source", ["loader", "function"])
def test_batches_that_draw_do_not_change_the_run(source) -> None:
    """A DataLoader draws from torch's generator whenever it is begun, and the model's dropout would notice."""
    final = []
    for measured in (False, True):
        model = mlp(0.3)
        data = torch.utils.data.TensorDataset(*batch(99, 64))
        loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
        batches = loader if source == "loader" else lambda t: [(torch.randn(8, 6), torch.randint(3, (8,)))]
        sgd = trained(model, methods.dropout(0.7), over_batches(model, batches) if measured else None)
        torch.manual_seed(SEED)
        for t in range(3):
            assert (sgd.step(closure(model, t)).criteria is not None) == measured
        final.append(values(model) | {"rng": torch.get_rng_state()})
    assert_same_bits(*final)


def test_of_a_step_with_several_branches_the_first_is_compared_with_the_last_steps() -> None:
    nested = nest(mlp(), Width(0.5))
    sgd = trained(nested, methods.slimmable(), CriteriaMeter(1, consecutive=True), rate=0.0)
    first, second = (sgd.step(closure(nested, 0)) for _ in range(2))
    assert all(criteria.consecutive is None for criteria in first.measurements), "there is no step before the first"
    assert second.criteria.consecutive_cosine == pytest.approx(1, rel=1e-6), "the same batch at the same x"


class Reads(TorchDispatchMode):
    """A meter that counts the tensors that another one reads one number at a time, while it measures."""

    def __init__(self, meter: CriteriaMeter) -> None:
        super().__init__()
        self.meter, self.requests, self.counts = meter, meter.requests, []

    def measure(self, pair):
        self.counts.append(0)
        with self:
            return self.meter.measure(pair)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[-1] += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [methods.alternating, lambda: methods.only("core"), lambda: methods.dropout(0.5)])
def test_all_numbers_are_read_from_the_device_at_once(make) -> None:
    """The loss for the alerts, left-out coordinates and consecutive gradients too. `tolist` is one read."""
    nested = family()
    sgd = trained(nested, make(), reads := Reads(CriteriaMeter(2, consecutive=True)))
    measured = [sgd.step(closure(nested, t)).criteria for t in range(6)]
    assert len(reads.counts) > 6 and set(reads.counts) == {0}
    assert [one.consecutive is not None for one in measured if one][1:] == [True] * (
        len(list(filter(None, measured))) - 1
    )


def test_a_zero_gradient_has_no_direction() -> None:
    model = nn.Linear(2, 1)
    sgd = trained(model, methods.plain(), CriteriaMeter(1, consecutive=True))
    for factor in (1.0, 0.0):
        measured = sgd.step(lambda factor=factor: backward(factor * model(torch.ones(1, 2)).sum())).criteria
    assert measured.consecutive == 0.0 and math.isnan(measured.consecutive_cosine)


def test_of_a_refused_step_the_gradient_that_was_applied_is_kept() -> None:
    model = mlp()
    never = methods.guarded(methods.dropout(0.5), by=lambda criteria: 9.0, bound=1.0, every=1)
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
        criteria = sgd.step(closure(nested, t)).criteria
        assert (criteria is not None) == (t % 4 < 2)
        if criteria is not None and before is not None:
            assert criteria.consecutive == pytest.approx(float(now @ before), rel=1e-4)
            assert criteria.consecutive_cosine == pytest.approx(
                float(now @ before / now.norm() / before.norm()), rel=1e-4
            )
        before = now
    kept = {name.removeprefix("before/") for name in sgd.measured["meter"] if name.startswith("before/")}
    assert kept == {name for name, entry in nested.mask("core").items() if entry}, "one gradient, inside its mask"


def test_loops_that_own_their_backward_are_measured_too_micro_batches_together() -> None:
    expected = first_step(mlp(), methods.dropout(0.7), CriteriaMeter(1)).criteria
    model = mlp()
    step = by_gradients(trained(model, methods.dropout(0.7), CriteriaMeter(1)), closure(model, 0))
    assert step.criteria.numbers() == expected.numbers()
    model, (x, y) = mlp(), batch(0)
    half = lambda: backward(F.cross_entropy(model(x), y) / 2)  # noqa: E731  # shorter than a def
    step = by_gradients(trained(model, methods.dropout(0.7), CriteriaMeter(1)), half, half)
    assert step.criteria.whole == pytest.approx(expected.whole)
    assert step.criteria.c_norm == pytest.approx(expected.c_norm)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CriteriaMeter(0), "every must be an integer of at least 1, got 0"),
        (lambda: CriteriaMeter(True), "every must be an integer of at least 1, got True"),
        (lambda: CriteriaMeter(probe=3), "probe must be a Method or the name of a level, got 3"),
        (lambda: CriteriaMeter(batches=[1]), "batches and loss must be given together"),
        (lambda: CriteriaMeter(independent=True), "independent=True needs several batches"),
        (lambda: CriteriaMeter(alerts=False), "or None for no warnings; got False"),
        (lambda: CriteriaMeter(groups=["0"]), "groups must map names to patterns"),
        (lambda: CriteriaMeter().summary(trained(mlp(), methods.plain(), None)), "this PartialSGD has no meter"),
    ],
)
def test_what_cannot_be_measured_is_refused(make, message) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_what_cannot_be_measured_here_is_refused_at_the_first_step() -> None:
    model = mlp()
    with pytest.raises(TypeError, match="a nested model is needed"):
        first_step(model, methods.plain(), CriteriaMeter(1, "core"))
    nested = nest(mlp(), Width(0.5))
    with pytest.raises(ValueError, match="tiny"):
        first_step(nested, methods.plain(), CriteriaMeter(1, "tiny"))
    meter = CriteriaMeter(batches=lambda t: [], loss=lambda b: b)
    with pytest.raises(ValueError, match="batches gave 0 at t = 0; at least 1"):
        first_step(model, methods.plain(), meter)
    for wrong in (lambda b: 1.0, lambda b: model(b[0]), lambda b: torch.ones(())):
        with pytest.raises(ValueError, match=r"loss\(batch\) must return the loss as one number"):
            sgd = trained(model, methods.dropout(0.5), CriteriaMeter(batches=[batch(0)], loss=wrong))
            sgd.step(closure(model, 0))
    with pytest.raises(ValueError, match=r"'5\.weight' is in two groups, 'a' and 'b'"):
        first_step(model, methods.plain(), CriteriaMeter(groups={"a": ["5"], "b": ["*.weight"]}))
    with pytest.raises(ValueError, match="matches no parameter"):
        first_step(model, methods.plain(), CriteriaMeter(groups={"ends": ["7"]}))
    assert all(p.grad is None for p in model.parameters())
