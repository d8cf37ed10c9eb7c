"""Algorithm 2, and what it may be told."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from partialsgd import Nested, OutputSum, PartialSGD, Width, methods, nest, soft_cross_entropy
from partialsgd.meters.criteria import Criteria
from partialsgd.method import Context
from partialsgd.methods.alternating import EVEN_SHARE, step_shares, step_value, take_turn
from partialsgd.parameters import Parameters
from partialsgd.testing.runs import assert_same_bits
from tests.methods.training import X, Y, assert_close, backward, load_through_a_file, nested_loss, sgd_of, train
from tests.training import family

LAWS = {
    "": methods.alternating(),
    "weights": methods.alternating(weights={"full": 1, "core": 2}, lr={"core": 0.5}),
    "late": methods.alternating(weights={0: {"full": 1, "core": 1}, 2: {"full": 3, "core": 1}}),
    "criterion": methods.alternating(order="criterion", every=2),
}
REFUSED_SETTINGS = [
    ({"order": ["core"], "weights": {"core": 1.0}}, "one of them"),
    ({"order": "criterion", "weights": {"core": 1.0}}, "one of them"),
    ({"weights": {"core": 0.0}}, "a step needs a level: order must name one, and weights"),
    ({"order": []}, "a step needs a level: order must name one, and weights"),
    ({"weights": {}}, "a step needs a level: order must name one, and weights"),
    ({"weights": {0: {"core": 1.0}, 4: {"core": 0.0}}}, "a step needs a level: order must name one, and weights"),
    ({"weights": {2: {"core": 1.0}}}, "the odds from step 0 on; the first step is 2"),
    ({"weights": {0: {"core": 1.0}, "core": 1.0}}, "odds for every step, or for every level"),
    ({"weights": {0: {"core": 1.0}, -1: {"core": 1.0}}}, "a step in weights must be a whole number of at least 0"),
    ({"weights": {0: {"core": 1.0}, 0.5: {"core": 1.0}}}, "a step in weights must be a whole number of at least 0"),
    ({"weights": {0: {"core": 1.0}, 5: {"core": -1.0}}}, "weights of 'core' must be a number from 0 to"),
    *(
        ({setting: {"full": 1.0, "core": wrong}}, f"{setting} of 'core' must be a number from 0 to")
        for setting in ("weights", "lr")
        for wrong in (-1.0, math.nan, math.inf, 1e308, 10**400, True, "2")
    ),
    *(({"order": order}, f"or 'criterion'; got '{order}'") for order in ("core", "criteria")),
    ({"every": 5}, "every=5 is how often order='criterion' measures"),
    ({"order": "criterion", "every": 0}, "every must be a whole number"),
]


def levels_of(nested, method, steps: int = 6, **options) -> list[str | None]:
    return [step.level for step in train(sgd_of(nested, method, **options), nested_loss, steps)]


def test_the_whole_network_comes_first_and_the_levels_go_from_the_largest_down() -> None:
    assert levels_of(family(), methods.alternating()) == ["full", "core"] * 3
    assert levels_of(family(0.25, 0.5), methods.alternating(), 7) == ["full", "1/2", "1/4"] * 2 + ["full"]


def test_algorithm_2_written_out() -> None:
    """x ← x − γ p ⊙ ∇f(p ⊙ x) by hand, on the full network with numbers outside the core at zero."""
    nested, by_hand = family(kind="low_rank"), family(kind="low_rank")
    for one in (nested, by_hand):
        one.model[1], one.model[3] = torch.nn.Identity(), torch.nn.Identity()  # no BatchNorm, no dropout
    levels_of(nested, methods.alternating(lr={"core": 0.5}))
    core = set(by_hand.parameters(level="core"))
    for t in range(6):
        saved = [p.detach().clone() for p in by_hand.parameters()]
        if t % 2:
            with torch.no_grad():
                [p.zero_() for p in by_hand.parameters() if p not in core]
        loss = F.cross_entropy(by_hand(X), Y)
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()), allow_unused=True)
        with torch.no_grad():
            for p, old, g in zip(by_hand.parameters(), saved, gradients, strict=True):
                p.copy_(old)
                if g is not None and (t % 2 == 0 or p in core):
                    p.sub_(g, alpha=0.1 * (0.5 if t % 2 else 1.0))
    assert_close(nested, by_hand, rtol=1e-5, atol=1e-6)


def test_odds_may_change_at_a_step_and_are_those_of_the_step_also_after_a_resume() -> None:
    """The level of step t is drawn by (seed, t) with the odds that hold at t, whichever held before."""
    early, late = {"full": 1, "core": 1}, {"full": 7, "core": 1}
    changing = methods.alternating(weights={200: late, 0: early})
    levels = levels_of(family(), changing, 400)
    assert levels[:200] == levels_of(family(), methods.alternating(weights=early), 400)[:200]
    assert levels[200:] == levels_of(family(), methods.alternating(weights=late), 400)[200:]
    assert Counter(levels[:200])["full"] < 130 < 160 < Counter(levels[200:])["full"]
    assert (
        methods.alternating(weights={0: early}).bind(family()).name
        == methods.alternating(weights=early).bind(family()).name
    )
    with pytest.raises(ValueError, match="weights: there is no level 'small'"):
        methods.alternating(weights={0: early, 5: {"small": 1.0}}).bind(family())


def test_order_is_a_cycle_and_weights_are_odds() -> None:
    nested = family(0.25, 0.5)
    assert levels_of(nested, methods.alternating(order=("1/4", "1/4", "full")), 4) == ["1/4", "1/4", "full", "1/4"]
    method = methods.alternating(weights={"full": 1, "1/2": 0, "1/4": 3})
    branches, parameters = method.bind(nested).branches, Parameters(nested)
    drawn = Counter(branches(Context(t, 0, parameters, {}))[0].level for t in range(400))
    assert set(drawn) == {"full", "1/4"} and 60 < drawn["full"] < 140  # 100 expected, deviation 9
    assert levels_of(nested, method, 20) == levels_of(nested, method, 20) != levels_of(nested, method, 20, seed=1)


def test_distillation_finds_the_whole_network_in_the_teacher() -> None:
    nested = family()
    seen = []

    def closure(g):
        outputs = nested(X)
        seen.append((g.level, g.teacher))
        loss = F.cross_entropy(outputs, Y) if g.teacher is None else soft_cross_entropy(outputs, g.teacher)
        loss.backward()
        return loss

    full_norm = nested.model[1].get_submodule("full")
    sgd = sgd_of(nested, methods.alternating(distill=True))
    for _ in range(2):
        sgd.step(closure)
    (first, none), (second, teacher) = seen
    assert (first, none, second) == ("full", None, "core")
    assert teacher.shape == (16, 3) and not teacher.requires_grad
    assert int(full_norm.num_batches_tracked) == 1  # the teacher's pass left no trace
    assert nested.teacher is None


TWO = {
    "SGD and Adagrad": (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01), torch.optim.Adagrad),
    "Adam and Adam": (lambda p: torch.optim.Adam(p, 0.02, weight_decay=0.1), torch.optim.Adam),
    "AdamW and SGD": (torch.optim.AdamW, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
}
CROSSED = torch.randn(16, 30, generator=torch.Generator().manual_seed(1))


class WideAndDeep:
    """The sum of a linear model of crossed features and a deep network, each with an optimizer of its own."""

    def __init__(self, wide_optimizer, deep_optimizer) -> None:
        torch.manual_seed(0)
        self.deep = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
        self.wide = nn.Linear(30, 3)
        self.optimizers = [wide_optimizer(self.wide.parameters()), deep_optimizer(self.deep.parameters())]

    def nested(self):
        self.family = nest(OutputSum(core=self.deep, extension=self.wide, inputs=((0,), (1,))))
        self.sgd = PartialSGD(self.family, self.optimizers, methods.alternating())
        self.saved = [self.family, *self.optimizers, self.sgd]
        return self

    def step(self) -> str | None:
        return self.sgd.step(backward(lambda: F.cross_entropy(self.family(X, CROSSED), Y))).level

    def tensors(self, part: int) -> dict[str, torch.Tensor]:
        model, optimizer = (self.wide, self.deep)[part], self.optimizers[part]
        found = {f"model.{name}": p for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            found |= {f"{key}.{name}": value for key, value in optimizer.state.get(p, {}).items()}
        return {name: value.detach().clone() for name, value in found.items()}


@pytest.mark.parametrize("stop", [3, 4])
@pytest.mark.parametrize("optimizers", TWO.values(), ids=TWO)
def test_wide_and_deep_with_an_optimizer_for_each_part(optimizers, stop: int) -> None:
    """As both by hand: at even t on the sum, at odd t the deep one alone. A resumed run has both optimizers' states."""
    run, by_hand = WideAndDeep(*optimizers).nested(), WideAndDeep(*optimizers)
    for t in range(9):
        if t == stop:
            resumed = WideAndDeep(*optimizers).nested()
            load_through_a_file(run.saved, resumed.saved)
            run = resumed
        before = run.tensors(0)
        level = run.step()
        outputs = by_hand.deep(X) + by_hand.wide(CROSSED) if t % 2 == 0 else by_hand.deep(X)
        F.cross_entropy(outputs, Y).backward()
        for optimizer in by_hand.optimizers if t % 2 == 0 else by_hand.optimizers[1:]:
            optimizer.step()
        [optimizer.zero_grad() for optimizer in by_hand.optimizers]
        assert level == ("full", "core")[t % 2]
        for part in (0, 1):
            assert_same_bits(run.tensors(part), by_hand.tensors(part))
        same = all(torch.equal(before[n], now) for n, now in run.tensors(0).items() if n in before)
        assert same == (level == "core")
    deep, both = run.family.extract("core"), run.family.extract("full")
    with torch.no_grad():
        assert torch.equal(deep(X), run.deep(X))
        assert torch.equal(both(X, CROSSED), run.deep(X) + run.wide(CROSSED))
    with pytest.raises(ValueError, match="extension"):
        PartialSGD(run.family, run.optimizers[1:], methods.alternating())


def noiseless(*ratios: float) -> Nested:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    return nest(model, Width(ratios or 0.5))


def gradient_at(nested: Nested, level: str) -> dict[str, torch.Tensor]:
    with nested.at(level):
        loss = F.cross_entropy(nested(X), Y)
        found = torch.autograd.grad(loss, list(nested.parameters()), allow_unused=True)
    names = [name for name, _ in nested.named_parameters()]
    return {name: g for name, g in zip(names, found, strict=True) if g is not None}


def test_by_criterion_the_levels_are_those_that_are_owed_a_step_by_hand() -> None:
    """q of each level by autograd at every second of its steps, the shares and the credits in plain numbers."""
    nested = noiseless(0.25, 0.5)
    sgd = sgd_of(nested, methods.alternating(order="criterion", every=2), 0.3)
    levels = ("full", "1/2", "1/4")
    sizes = {level: sum(p.numel() for p in nested.parameters(level=level)) for level in levels}
    descent, credit, steps = dict.fromkeys(levels, 1.0), dict.fromkeys(levels, 0.0), dict.fromkeys(levels, 0)
    taken = []
    for _ in range(60):
        total = sum(descent.values())
        credit = {level: credit[level] + 1 / 12 + 0.75 * descent[level] / total for level in levels}
        level = max(levels, key=lambda level: round(credit[level], 9))
        credit[level] -= 1
        if steps[level] % 2 == 0:
            g, h = gradient_at(nested, "full"), gradient_at(nested, level)
            inner = sum(float((g[n] * h[n]).sum()) for n in h)
            alpha = min(1.0, max(0.0, inner / sum(float(v.square().sum()) for v in h.values())))
            share = alpha**2 * sum(float(v.square().sum()) for v in h.values())
            share /= sum(float(v.square().sum()) for v in g.values())
            descent[level] = share * sizes["full"] / sizes[level]
        steps[level] += 1
        step = train(sgd, nested_loss)[0]
        assert bool(step.measurements) == (steps[level] % 2 == 1)
        assert step.backwards == 1 + (bool(step.measurements) and level != "full"), "x̃ is x for the whole network"
        taken.append((step.level, level))
    assert all(a == b for a, b in taken)
    assert [a for a, _ in taken[:3]] == ["full", "1/2", "1/4"], "it begins as Algorithm 2 does"
    assert [a for a, _ in taken] != list(levels) * 20, "and then does not go on so"


def test_by_criterion_the_next_level_can_be_looked_at_and_a_skipped_step_is_taken_again() -> None:
    nested = noiseless()
    sgd = sgd_of(nested, methods.alternating(order="criterion", every=2), nonfinite="skip")
    for t in range(30):
        with sgd.perturbed():
            expected = nested.level
        before = dict(sgd.memory), {who: dict(memory) for who, memory in sgd.measured.items()}
        skipped = sgd.step(lambda: F.cross_entropy(nested(X), Y).backward() or float("nan"))
        assert skipped.skipped and skipped.level == expected and before == (sgd.memory, sgd.measured)
        assert train(sgd, nested_loss)[0].level == expected and sgd.t == t + 1


@pytest.mark.parametrize("stop", [1, 6, 13])
def test_by_criterion_a_resumed_run_takes_the_same_levels(stop: int) -> None:
    def start():
        nested = family()
        optimizer = torch.optim.AdamW(nested.parameters(), 0.02)
        method = methods.alternating(order="criterion", every=3, lr={"core": 0.7})
        return nested, optimizer, PartialSGD(nested, optimizer, method)

    whole, resumed = start(), start()
    train(whole[2], nested_loss, stop)
    load_through_a_file(whole, resumed)
    noise = torch.get_rng_state()
    expected = [step.level for step in train(whole[2], nested_loss, 25)]
    torch.set_rng_state(noise)
    assert [step.level for step in train(resumed[2], nested_loss, 25)] == expected and len(set(expected)) == 2
    assert_same_bits(whole[0].state_dict(), resumed[0].state_dict())


def test_by_criterion_the_level_of_a_step_is_decided_once() -> None:
    """However often it is asked for, and whatever the step has measured by then."""
    nested = noiseless()
    method = methods.alternating(order="criterion", every=1).bind(nested)
    memory, measured = {}, {}
    for t in range(20):
        context = Context(t, 0, Parameters(nested), memory, measured=measured)
        level = method.branches_at(context)[0].level
        credits = dict(memory)
        measured |= {"core/q.last": 1.0 if t % 3 else 50.0}
        assert method.branches_at(context)[0].level == level and memory == credits
    assert sum(value for key, value in memory.items() if "credit" in key) == pytest.approx(0)


def test_by_criterion_it_can_be_composed_and_guarded() -> None:
    """Either part of a composition may be the one that measures; what a guard refuses was the level's turn."""
    by_criterion, top_k = methods.alternating(order="criterion", every=2), methods.top_k(0.5)
    both = methods.compose(by_criterion, top_k)
    runs = []
    for method in (both, methods.compose(top_k, by_criterion), methods.guarded(both, by=lambda criteria: 1.0)):
        nested = noiseless()
        runs.append((levels_of(nested, method, 20), nested.state_dict()))
    for levels, state in runs[1:]:
        assert levels == runs[0][0] and len(set(levels)) == 2
        assert_same_bits(runs[0][1], state)


def test_levels_that_are_not_there_are_refused() -> None:
    for settings in ({"order": ["small"]}, {"lr": {"small": 1.0}}):
        with pytest.raises(ValueError, match="no level 'small'; there are 'core', 'full'"):
            methods.alternating(**settings).bind(family())


def test_a_step_is_worth_the_descent_of_lemma_3_relative_to_the_whole_and_to_its_size() -> None:
    assert step_value(1.0, 1.0) == 1, "the whole network"
    half = Criteria(whole=4.0, masked=2.0, shared=2.0, perturbed=2.0, inner=3.0)  # α = 3/4: α² ‖p ⊙ G̃‖² / ‖G‖² = 9/64
    assert step_value(half.q, 0.25) == pytest.approx(9 / 64 / 0.25)
    uphill = Criteria(2.0, 1.0, 1.0, 1.0, inner=-0.5)
    stationary, at_a_minimum = Criteria(2.0, 0.0, 0.0, 1.0, inner=0.0), Criteria(0.0, 0.0, 0.0, 0.0, inner=0.0)
    assert [step_value(criteria.q, 0.1) for criteria in (uphill, stationary, at_a_minimum)] == [0] * 3
    assert step_shares({"full": 0.0, "core": 0.0}) == {"full": 0.5, "core": 0.5}, "a flat loss gives even shares"


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("kind", ["worthless", "random", "against the one who is owed most"])
def test_no_level_is_passed_over_for_long_over_1000_steps(n: int, kind: str) -> None:
    levels = tuple(map(str, range(n)))
    draw = torch.Generator().manual_seed(n)
    credits: dict[str, float] = {}
    waits, longest = dict.fromkeys(levels, 0), dict.fromkeys(levels, 0)
    for _ in range(1000):
        ahead = max(levels[:-1], key=lambda level: credits.get(level, 0.0))
        favoured = [ahead] if kind.startswith("against") else levels[:-1]
        values = {level: float(level in favoured) for level in levels}
        if kind == "random":
            values = dict(zip(levels, torch.rand(n, generator=draw).pow(8).tolist(), strict=True))
        chosen, credits = take_turn(credits, step_shares(values))
        assert sum(credits.values()) == pytest.approx(0, abs=1e-9)
        waits = {level: 0 if level == chosen else wait + 1 for level, wait in waits.items()}
        longest = {level: max(longest[level], waits[level]) for level in levels}
    assert max(longest.values()) <= n * (n - 1) / EVEN_SHARE
    if kind == "worthless":
        assert longest[levels[-1]] == pytest.approx(n / EVEN_SHARE, rel=0.5), "not far below what is promised"


def test_a_rate_for_all_levels_is_refused_with_an_example() -> None:
    with pytest.raises(TypeError, match=r"lr must have a number for each level, such as \{'core': 0\.5\}; got 0\.1"):
        methods.alternating(lr=0.1)
