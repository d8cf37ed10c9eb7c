"""The laws of a training method, as one pytest module.

Put a method that was written elsewhere through them:

    import pytest
    from partialsgd.testing.contracts import *

    @pytest.fixture
    def method():
        return my_method()

Each law then runs on every problem of `partialsgd.testing.problems`, under SGD with momentum and under AdamW, in
float32 and inside `torch.autocast("cpu", torch.bfloat16)`. To try other cases, override the fixtures `problem`,
`optimizer` and `autocast`. *Bit* means `torch.equal`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partialsgd.masks import Mask
from partialsgd.meters.criteria_meter import CriteriaMeter
from partialsgd.method import Method, nothing, nowhere
from partialsgd.testing.problems import PROBLEMS, Problem
from partialsgd.testing.runs import AlwaysMeasuring, MakeOptimizer, Run, assert_same_bits, failing_after, outside_of

__all__ = [
    "autocast",
    "method",
    "optimizer",
    "problem",
    "test_law_1_nothing_outside_the_mask_moves",
    "test_law_2_x_is_x_again_after_every_pass",
    "test_law_2_x_is_x_again_when_the_closure_raises",
    "test_law_3_t_counts_optimizer_steps",
    "test_law_4_measuring_changes_nothing",
    "test_law_5_a_resumed_run_is_the_same_run",
    "test_law_8_requires_grad_is_not_touched",
    "test_law_9_nothing_is_left_behind",
    "test_law_12_draws_depend_on_seed_and_t_alone",
]

STEPS = 5


@pytest.fixture
def method() -> Method:
    """Override this with the method to be tested."""
    return Method()


@pytest.fixture(params=PROBLEMS, ids=lambda problem: problem.name)
def problem(request: pytest.FixtureRequest) -> Problem:
    chosen: Problem = request.param
    return chosen


@pytest.fixture(
    params=[
        pytest.param(lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.01), id="sgd"),
        pytest.param(lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1), id="adamw"),
    ]
)
def optimizer(request: pytest.FixtureRequest) -> MakeOptimizer:
    make: MakeOptimizer = request.param
    return make


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"])
def autocast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_law_1_nothing_outside_the_mask_moves(
    method: Method, problem: Problem, optimizer: MakeOptimizer, autocast: bool
) -> None:
    run = Run(problem, optimizer, method, autocast)
    if run.sgd.method.project is not nowhere:
        pytest.skip("not claimed: a projection moves what is outside the mask")
    moved = False
    for t in range(STEPS):
        before = run.coordinates()
        scalars = run.scalars()
        mask = run.step(t).mask
        after = run.coordinates()
        forgets = run.sgd.method.forget is not nothing  # state is not claimed then, parameters are
        for (name, key), old in before.items():
            if forgets and key != "":
                continue
            outside = outside_of(mask, name, old)
            assert torch.equal(after[name, key][outside], old[outside]), f"{name} {key} moved outside the mask at {t}"
            moved |= key == "" and not torch.equal(after[name, key], old)
        for name, counters in scalars.items():
            if mask[name] is False and not forgets:
                assert run.scalars()[name] == counters, f"the counters of {name} moved although it is outside"
    assert moved, "nothing moved at all: the test would hold for anything"


def test_law_2_x_is_x_again_after_every_pass(
    method: Method, problem: Problem, optimizer: MakeOptimizer, autocast: bool
) -> None:
    run = Run(problem, optimizer, method, autocast)
    for t in range(3):
        before = run.trained()
        for g in run.sgd.gradients():
            assert_same_bits(before, run.trained())
            with g:
                run.closure(t)()
            assert_same_bits(before, run.trained())
        assert not run.sgd.update().skipped


def test_law_2_x_is_x_again_when_the_closure_raises(
    method: Method, problem: Problem, optimizer: MakeOptimizer, autocast: bool
) -> None:
    run = Run(problem, optimizer, method, autocast)
    run.step(0)
    run.step(1)
    failing = 0
    while True:  # in the first pass of the step, in the second, until it has no more
        before, t = run.trained(), run.sgd.t
        try:
            run.sgd.step(failing_after(run.closure(2), failing))
        except ZeroDivisionError:
            assert_same_bits(before, run.trained())
            assert run.sgd.t == t
            assert all(p.grad is None for p in run.model.parameters())
            failing += 1
        else:
            break
    assert failing > 0
    assert run.step(3).t == 3, "a step after a failed one goes on as if nothing had happened"


def test_law_3_t_counts_optimizer_steps(
    method: Method, problem: Problem, optimizer: MakeOptimizer, autocast: bool
) -> None:
    run = Run(problem, optimizer, method, autocast, CriteriaMeter(every=2), options={"nonfinite": "skip"})

    def two_micro_batches() -> Tensor:
        return run.closure(0)() + run.closure(1)()

    assert run.sgd.step(two_micro_batches).t == 0
    assert run.sgd.t == 1
    before, remembered = run.trained(), run.remembered()
    assert run.sgd.step(lambda: run.closure(2)() * float("nan")).skipped
    assert run.sgd.t == 1
    assert_same_bits(before, run.trained())
    assert remembered == run.remembered(), "a skipped step is no turn, and nothing of it is measured"
    assert run.step(3).t == 1
    assert run.sgd.t == 2


def test_law_4_measuring_changes_nothing(
    method: Method, problem: Problem, optimizer: MakeOptimizer, autocast: bool
) -> None:
    final, counts = [], []
    for meter in (None, AlwaysMeasuring()):
        run = Run(problem, optimizer, method, autocast, meter=meter)
        counts.append([len(run.step(t).measurements) for t in range(STEPS)])
        final.append(run.tensors())
    assert_same_bits(*final)
    own, more = counts  # a method may have a meter of its own
    assert all(b > a for a, b in zip(own, more, strict=True)), "the meter was not asked at every step"


def test_law_5_a_resumed_run_is_the_same_run(
    method: Method, problem: Problem, optimizer: MakeOptimizer, autocast: bool
) -> None:
    whole = Run(problem, optimizer, method, autocast, meter=CriteriaMeter(every=2))
    saved = {}
    for t in range(STEPS):
        if t in (1, STEPS - 2):
            saved[t] = whole.save()
        whole.step(t)
    final = whole.tensors()
    for stop, state in saved.items():
        resumed = Run(problem, optimizer, method, autocast, meter=CriteriaMeter(every=2))
        resumed.load(state)
        for t in range(stop, STEPS):
            assert resumed.step(t).t == t
        assert_same_bits(final, resumed.tensors())
        assert whole.remembered() == resumed.remembered(), "what was measured before is a part of the run"


def test_law_8_requires_grad_is_not_touched(method: Method, problem: Problem, optimizer: MakeOptimizer) -> None:
    run = Run(problem, optimizer, method, False)
    seen = []

    def closure() -> Tensor:
        seen.append([p.requires_grad for p in run.model.parameters()])
        return run.closure(0)()

    run.sgd.step(closure)
    assert seen and all(all(flags) for flags in seen)
    assert all(p.requires_grad for p in run.model.parameters())


def test_law_9_nothing_is_left_behind(method: Method, problem: Problem, optimizer: MakeOptimizer) -> None:
    plain, run = Run(problem, optimizer, Method(), False), Run(problem, optimizer, method, False)
    for t in range(2):
        plain.step(t)
        random = torch.get_rng_state()
        run.step(t)
        assert problem.is_random or torch.equal(random, torch.get_rng_state()), "the global generator was drawn from"
    usual = set().union(*plain.optimizer.state.values())
    for p in run.model.parameters():
        assert vars(p) == {} and not p._backward_hooks and p.grad is None
        assert run.optimizer.state.get(p, {}).keys() <= usual
    for group, usual_group in zip(run.optimizer.param_groups, plain.optimizer.param_groups, strict=True):
        assert group | {"params": None} == usual_group | {"params": None}


def test_law_12_draws_depend_on_seed_and_t_alone(
    method: Method, problem: Problem, optimizer: MakeOptimizer, autocast: bool
) -> None:
    seen: list[list[Mask]] = []
    for disturbed in (False, True):
        run = Run(problem, optimizer, method, autocast)
        drawn = []
        for t in range(3):
            # A model that draws for itself needs the same draws, for masks that depend on its gradient.
            torch.manual_seed(t if problem.is_random else 2 * t + disturbed)
            drawn.append(run.step(t).mask)
            if disturbed:
                next(iter(run.sgd.gradients()))  # a step that was begun and dropped
                run.sgd.zero_grad()
        seen.append(drawn)
    for a, b in zip(*seen, strict=True):
        for name in a:
            assert torch.equal(torch.as_tensor(a[name]), torch.as_tensor(b[name])), f"the mask of {name} differs"
