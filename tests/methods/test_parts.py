"""Parts of a method draw and remember for themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd import Method, methods
from tests.methods.test_stages import mlp
from tests.methods.training import sgd_of


def test_two_methods_that_draw_do_not_draw_alike() -> None:
    model = nn.Linear(200, 200)
    sgd = sgd_of(
        model, methods.compose(methods.random_mask(0.6, where=["weight"]), methods.random_mask(0.5, where=["weight"]))
    )
    mask = sgd.step(lambda: model(torch.ones(1, 200)).sum().backward() or 0.0).mask
    assert float(mask["weight"].float().mean()) == pytest.approx(0.3, abs=0.01)


def test_two_methods_that_remember_keep_their_memories_apart() -> None:
    """Sparsity masks of one and of the other lie under the same names; error feedback and past gradients do not."""
    model = mlp(3)
    method = methods.compose(
        methods.ac_dc(0.5, warmup=1, sparse=3, dense=1, reset=False), methods.compressed_gradient(0.5)
    )
    sgd = sgd_of(model, method, 0.01)
    for t in range(5):
        sgd.step(lambda: model(torch.arange(24.0).view(4, 6).cos()).square().sum().backward() or 0.0)
        assert all(key.startswith(("part 2.unsent.", "magnitudes.")) for key in sgd.memory)
        assert any(key.startswith("magnitudes.") for key in sgd.memory) == (1 <= t < 4)


def test_three_methods_draw_apart_however_they_are_nested() -> None:
    def mask() -> Method:
        return methods.random_mask(0.5, where=["weight"])

    for method in (
        methods.compose(methods.compose(mask(), mask()), mask()),
        methods.compose(mask(), methods.compose(mask(), mask())),
    ):
        model = nn.Linear(200, 200)
        sgd = sgd_of(model, method)
        found = sgd.step(lambda model=model: model(torch.ones(1, 200)).sum().backward() or 0.0).mask["weight"]
        assert float(found.float().mean()) == pytest.approx(0.125, abs=0.01)
    kept = methods.compose(
        methods.compose(methods.sam(0.1, interval=2), methods.top_k(0.5)), methods.compressed_gradient(0.5)
    )
    model = mlp(2)
    sgd = sgd_of(model, kept)
    sgd.step(lambda: model(torch.ones(2, 6)).sum().backward() or 0.0)
    assert {key.partition(".")[0] for key in sgd.memory} == {"sam", "part 3"}
