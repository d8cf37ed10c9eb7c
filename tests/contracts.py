"""Every method of the registry, through every law."""

from __future__ import annotations

import pytest

from partialsgd import methods
from partialsgd.rules import Method
from partialsgd.testing.contracts import *  # noqa: F403  # the laws: pytest collects them here

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


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


def test_every_method_of_the_registry_is_here() -> None:
    assert {m.name.partition("(")[0] for m in METHODS.values()} == set(methods.SUMMARIES)
