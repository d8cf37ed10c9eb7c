"""Every method of the registry, through every law.

Under SGD with momentum and under AdamW on every run, under every other optimizer by `make test-all`.
"""

from __future__ import annotations

import pytest
import torch

from partialsgd import methods
from partialsgd.rules import Method
from partialsgd.testing import contracts as laws
from partialsgd.testing.contracts import *  # noqa: F403  # the laws: pytest collects them here
from partialsgd.testing.problems import Problem
from tests.nested import contracts as nested
from tests.optimizers import COORDINATE_WISE, Make

METHODS = {
    "plain": methods.plain(),
    "random_mask": methods.random_mask(0.4),
    "dropout": methods.dropout(0.7),
    "dropout_neurons": methods.dropout(0.7, unit="neurons"),
    "top_k": methods.top_k(0.2),
    "top_k_layer": methods.top_k(0.2, scope="layer"),
    "extragradient": methods.extragradient(0.02),
    "sam": methods.sam(0.1),
    "sam_adaptive": methods.sam(0.5, adaptive=True),
}
EVERY_RUN = ("SGD momentum wd", "AdamW")


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in EVERY_RUN else pytest.mark.slow, id=name.replace(" ", "_"))
        for name in COORDINATE_WISE
    ]
)
def optimizer(request: pytest.FixtureRequest) -> Make:
    return COORDINATE_WISE[request.param]


def test_every_method_of_the_registry_is_here() -> None:
    here = {m.name.partition("(")[0] for m in METHODS.values()}
    assert here | set(nested.METHODS) == set(methods.SUMMARIES) and not here & set(nested.METHODS)


def test_a_coupled_optimizer_holds_the_law_or_refuses_and_leaves_the_model_alone(
    method: Method, problem: Problem, request: pytest.FixtureRequest, record_property
) -> None:
    def make(parameters):
        return torch.optim.Adafactor(parameters, 0.01)

    run, name = laws.Run(problem, make, method, False), request.node.callspec.params["method"]
    for t in range(laws.STEPS):
        before = run.tensors()
        try:
            assert not run.step(t).mask.partial, "an element mask was let through"
        except NotImplementedError:
            laws.assert_same_bits(before, run.tensors() | {"rng": before["rng"]})
            assert run.sgd.t == t and all(p.grad is None for p in run.model.parameters())
            record_property("matrix", ("method", name, "Adafactor", "refused"))
            return
    laws.test_law_1_nothing_outside_the_mask_moves(method, problem, make, False)
    record_property("matrix", ("method", name, "Adafactor", "holds"))
