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
from tests.nested import contracts as nested
from tests.optimizer_zoo import COORDINATE_WISE, Make

ALL_PROBLEMS = {problem.name: problem for problem in PROBLEMS}
METHODS: dict[str, Method] = {
    "plain": methods.plain(),
    "random_mask": methods.random_mask(0.4),
    "dropout": methods.dropout(0.7),
    "dropout_neurons": methods.dropout(0.7, unit="neurons"),
    "top_k": methods.top_k(0.2),
    "top_k_layer": methods.top_k(0.2, scope="layer"),
    "compressed_gradient": methods.compressed_gradient(0.2),
    "compressed_gradient_random": methods.compressed_gradient(0.2, kind="random-k", scope="layer"),
    "compressed_gradient_forgetful": methods.compressed_gradient(0.2, feedback=False),
    "ac_dc": methods.ac_dc(0.6, warmup=1, sparse=2, dense=1),
    "ac_dc_rows": methods.ac_dc(0.6, warmup=0, sparse=1, dense=1, until=4, scope="layer", unit="rows"),
    "dynamic_pruning": methods.dynamic_pruning(0.6, every=2),
    "dynamic_pruning_rows": methods.dynamic_pruning(0.6, every=3, ramp=4, scope="layer", unit="rows"),
    "dynamic_sparsity": methods.dynamic_sparsity((0.3, 0.6), every=2),
    "dynamic_sparsity_accumulated": methods.dynamic_sparsity((0.6,), scope="layer", accumulate=True),
    "independent_subnets": methods.independent_subnets(2, 2),
    "independent_subnets_average": methods.independent_subnets(2, 2, shared="average"),
    "independent_subnets_criterion": methods.independent_subnets(
        2, 3, shared="average", repartition="criterion", bound=1.1, measure_every=2
    ),
    "extragradient": methods.extragradient(0.02),
    "extragradient_past": methods.extragradient(0.02, past=True),
    "meprop": methods.meprop(3),
    "meprop_unmasked": methods.meprop(3, mask=False),
    "layerwise": methods.layerwise(2),
    "freezing": methods.freezing(steps=4, start=0.0),
    "freezing_criterion": methods.freezing("criterion", budget=1.3, every=3),
    "block_coordinate": methods.block_coordinate(every=2),
    "block_coordinate_free": methods.block_coordinate(every=1, order="random", free=True),
    "guarded": methods.guarded(methods.dropout(0.6), by="c_sim", bound=1.0, fallback=methods.sam(0.1), every=2),
    "compose": methods.compose(methods.top_k(0.3), methods.extragradient(0.02)),
    "compose_freezing": methods.compose(methods.freezing(steps=4, start=0.0), methods.sam(0.1, interval=2)),
    "sam": methods.sam(0.1),
    "sam_adaptive": methods.sam(0.5, adaptive=True),
    "sam_interval": methods.sam(0.1, interval=2),
    "scaled_by_alpha": methods.scaled_by_alpha(methods.sam(0.5), every=2),
    "scaled_by_alpha_dropout": methods.scaled_by_alpha(methods.dropout(0.3), every=2),
}
_BY_SUBNETS = ("independent_subnets", "independent_subnets_average", "independent_subnets_criterion")
_BY_STAGES = ("layerwise", "freezing", "freezing_criterion", "block_coordinate", "block_coordinate_free")
REFUSED = {(method, "quadratic") for method in ("meprop", "meprop_unmasked", "compose_freezing", *_BY_STAGES)} | {
    (method, problem)
    for method in ("dropout_neurons", *_BY_SUBNETS)
    for problem in ("quadratic", "tied", "unused")  # no hidden units, none of their own, not to be traced
}
"""(method, problem) that have no meaning together: seen to raise, and left out of the laws."""
UNSCALED = {(f"scaled_by_alpha{of}", optimizer) for of in ("", "_dropout") for optimizer in ("ASGD", "Rprop")}
"""(method, optimizer) whose α would be no factor of the step: seen to raise, and left out of the laws."""
MAIN = {method for method in METHODS if method in methods.SUMMARIES}
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
    wanted = [name for name in ("method", "problem", "optimizer", "autocast") if name in metafunc.fixturenames]
    if "method" not in wanted:
        return
    found: dict[tuple[Any, ...], Any] = {}
    is_short = metafunc.config.getoption("markexpr") == "not slow"  # ten thousand tests less to make and to leave out
    for cell in cells("optimizer" in wanted):
        if is_short and cell.marks:
            continue
        values = dict(zip(("method", "problem", "optimizer", "autocast"), cell.values, strict=True))
        if "autocast" in wanted or not values["autocast"]:
            key = tuple(values[name] for name in wanted)
            found.setdefault(key, pytest.param(*key, id=cell.id, marks=cell.marks))
    metafunc.parametrize(wanted, list(found.values()), indirect=True)


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


def test_every_method_of_the_registry_is_here() -> None:
    here = {method.name.partition("(")[0] for method in METHODS.values()}
    assert here | set(nested.METHODS) == set(methods.SUMMARIES) and not here & set(nested.METHODS)


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
