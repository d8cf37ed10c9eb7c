"""Every method of the registry, through every law.

Under SGD with momentum and under AdamW on every run, under every other optimizer by `make test-all`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from partialsgd import PartialSGD, methods
from partialsgd.method import Method
from partialsgd.testing import contracts as laws
from partialsgd.testing import runs
from partialsgd.testing.contracts import *  # noqa: F403  # the laws: pytest collects them here
from partialsgd.testing.problems import PROBLEMS, Problem
from tests.methods import laws as laws_of_methods
from tests.methods.laws import METHODS
from tests.optimizer_zoo import COORDINATE_WISE, Make

ALL_PROBLEMS = {problem.name: problem for problem in PROBLEMS}
REFUSED, UNSCALED = laws_of_methods.REFUSED_PROBLEMS, laws_of_methods.REFUSED_OPTIMIZERS
"""(method, problem) and (method, optimizer) that have no meaning together: seen to raise, and left out of the laws."""
MAIN = set(methods.NAMES)
"""Each method in one setting; other settings are tried on fewer problems unless all are asked for."""


def cells(laws_of_steps: bool) -> Iterator[Any]:
    """(method, problem, optimizer, autocast): all methods, all problems and all optimizers, but not their product."""
    wide = [(o, on, low) for o in ("AdamW", "SGD momentum wd") for on in ALL_PROBLEMS for low in (False, True)]
    deep = [(o, "mlp", False) for o in COORDINATE_WISE]
    for method in METHODS:
        for optimizer, on, low in dict.fromkeys(wide + deep):
            often = optimizer == "AdamW" and (not low or on in ("mlp", "transformer"))
            often |= optimizer == "SGD momentum wd" and not low and on in ("mlp", "batchnorm", "quadratic")
            often &= method in MAIN or (optimizer == "AdamW" and on in ("mlp", "batchnorm") and not low)
            if (
                (method, on) in REFUSED
                or (method, optimizer) in UNSCALED
                or (not laws_of_steps and (optimizer != "AdamW" or low))
            ):
                continue
            name = f"{method}-{on}-{optimizer.replace(' ', '_')}-{'bfloat16' if low else 'float32'}"
            yield pytest.param(method, on, optimizer, low, id=name, marks=() if often else pytest.mark.slow)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    fixtures = [name for name in ("method", "problem", "optimizer", "autocast") if name in metafunc.fixturenames]
    if "method" not in fixtures:
        return
    cases: dict[tuple[Any, ...], Any] = {}
    is_short = metafunc.config.getoption("markexpr") == "not slow"  # ten thousand tests less to make and to leave out
    for cell in cells("optimizer" in fixtures):
        if is_short and cell.marks:
            continue
        values = dict(zip(("method", "problem", "optimizer", "autocast"), cell.values, strict=True))
        if "autocast" in fixtures or not values["autocast"]:
            key = tuple(values[name] for name in fixtures)
            cases.setdefault(key, pytest.param(*key, id=cell.id, marks=cell.marks))
    metafunc.parametrize(fixtures, list(cases.values()), indirect=True)


@pytest.fixture
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


@pytest.fixture
def problem(request: pytest.FixtureRequest) -> Problem:
    return ALL_PROBLEMS[request.param]


@pytest.fixture
def optimizer(request: pytest.FixtureRequest) -> Make:
    return COORDINATE_WISE[request.param]


@pytest.fixture
def autocast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize(("name", "on"), sorted(REFUSED), ids="-on-".join)
def test_a_refused_pair_raises_and_leaves_the_model_alone(name: str, on: str) -> None:
    chosen = ALL_PROBLEMS[on]
    plain, model = chosen.model(), chosen.model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError):
        PartialSGD(model, optimizer, METHODS[name]).step(chosen.closure(model, 0))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(("name", "by"), sorted(UNSCALED), ids="-with-".join)
def test_an_optimizer_that_cannot_be_scaled_raises_and_leaves_the_model_alone(
    name: str, by: str, record_property
) -> None:
    run = runs.Run(ALL_PROBLEMS["batchnorm"], COORDINATE_WISE[by], METHODS[name], False)
    before = run.tensors()
    with pytest.raises(NotImplementedError, match=f"{by} cannot step by α = 0"):
        run.step(0)
    runs.assert_same_bits(before, run.tensors() | {"rng": before["rng"]})
    assert run.sgd.t == 0 and all(p.grad is None for p in run.model.parameters())
    record_property("matrix", ("method", name, by, "refused"))


def test_a_coupled_optimizer_holds_the_law_or_refuses_and_leaves_the_model_alone(
    method: Method, problem: Problem, request: pytest.FixtureRequest, record_property
) -> None:
    def make(parameters):
        return torch.optim.Adafactor(parameters, 0.01)

    run, name = runs.Run(problem, make, method, False), request.node.callspec.params["method"]
    for t in range(laws.STEPS):
        before = run.tensors()
        try:
            assert not run.step(t).mask.partial, "an element mask was let through"
        except NotImplementedError:
            runs.assert_same_bits(before, run.tensors() | {"rng": before["rng"]})
            assert run.sgd.t == t and all(p.grad is None for p in run.model.parameters())
            record_property("matrix", ("method", name, "Adafactor", "refused"))
            return
    laws.test_law_1_nothing_outside_the_mask_moves(method, problem, make, False)
    record_property("matrix", ("method", name, "Adafactor", "holds"))
