"""Exactly k, the largest, with the bound of erratum E1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from partialsgd import methods
from tests.methods.training import backward, sgd_of

LAWS = {"": methods.top_k(0.2), "layer": methods.top_k(0.2, scope="layer")}
IDENTITY = [methods.top_k(1.0)]
REFUSED_SETTINGS = [({"scope": "row"}, "scope must be one of global, layer; got 'row'")]


def run(gradients: dict[str, torch.Tensor], method):
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros_like(g)) for name, g in gradients.items()})
    sgd = sgd_of(model, method, 1.0)

    return model, sgd.step(backward(lambda: sum((p * gradients[name]).sum() for name, p in model.items()))).mask


def test_the_largest_by_magnitude_over_the_whole_network() -> None:
    gradients = {"a": torch.tensor([1.0, -5.0, 2.0]), "b": torch.tensor([[4.0, 0.5], [-3.0, 0.1]])}
    model, mask = run(gradients, methods.top_k(3 / 7))
    assert mask.count() == 3
    torch.testing.assert_close(model["a"].detach(), torch.tensor([0.0, 5.0, 0.0]))
    torch.testing.assert_close(model["b"].detach(), torch.tensor([[-4.0, 0.0], [3.0, 0.0]]))


def test_a_share_of_each_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 1))
    sgd = sgd_of(model, methods.top_k(0.2, scope="layer"), 1.0)
    closure = backward(lambda: (1000 * model[0](torch.randn(3, 10)).square()).mean() + model(torch.randn(3, 10)).mean())
    mask = sgd.step(closure).mask
    for layer, size in (("0", 110), ("1", 11)):
        assert sum(int(torch.as_tensor(mask[f"{layer}.{n}"]).sum()) for n in ("weight", "bias")) == round(0.2 * size)


@pytest.mark.parametrize("equal", [True, False])
def test_c_norm_is_at_most_the_root_of_d_over_k_and_attains_it_at_ties(equal: bool) -> None:
    g = torch.ones(100) if equal else torch.randn(100, generator=torch.Generator().manual_seed(0))
    _, mask = run({"a": g}, methods.top_k(0.05))
    ratio = float(g.norm() / g[mask["a"]].norm())
    assert mask.count() == 5, "ties are broken: exactly k move"
    assert ratio <= math.sqrt(100 / 5) + 1e-5
    assert (ratio == pytest.approx(math.sqrt(20), rel=1e-5)) == equal


def test_double_precision_is_kept_and_empty_layers_are_left_out() -> None:
    _, mask = run({"a": 1e-60 * torch.arange(1.0, 7.0, dtype=torch.float64)}, methods.top_k(1 / 6))
    assert mask["a"].nonzero().flatten().tolist() == [5]
    run({"a": torch.ones(3), "b": torch.ones(0)}, methods.top_k(0.5, scope="layer"))
    assert run({"a": torch.randn(10)}, methods.top_k(0.001))[1].count() == 1, "at least one moves"
