"""Wide, deep and their sum."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import partialsgd as ps
from partialsgd.lab.recipes.tabular.features import UNKNOWN, Rows
from partialsgd.lab.recipes.tabular.network import Deep, Wide, inputs_of, wide_and_deep


def deep(categories: int = 2) -> Deep:
    torch.manual_seed(0)
    return Deep(3, categories, 7, embedding=4, hidden=5, layers=2)


def rows(categories: int = 2) -> Rows:
    torch.manual_seed(1)
    return Rows(torch.randn(6, 3), torch.randint(9, (6, 4)), torch.randint(7, (6, categories)), torch.zeros(6))


def test_the_deep_part_is_an_mlp_over_numbers_and_embeddings() -> None:
    network, r = deep(), rows()
    assert network.words is not None
    x = torch.cat([r.numbers, network.words(r.categories[:, 0]), network.words(r.categories[:, 1])], 1)
    torch.testing.assert_close(network(r.numbers, r.categories), network.mlp(x)[:, 0])
    shapes = [tuple(layer.weight.shape) for layer in network.mlp if isinstance(layer, nn.Linear)]
    assert shapes == [(5, 3 + 2 * 4), (5, 5), (1, 5)]


def test_the_wide_part_sums_a_weight_for_each_feature_and_starts_at_zero() -> None:
    network, r = Wide(3, 9), rows()
    assert not network(r.numbers, r.crosses).any()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    each = [
        sum(network.crosses.weight[k, 0] for k in crosses) + network.numbers.weight[0] @ numbers + network.numbers.bias
        for numbers, crosses in zip(r.numbers, r.crosses.tolist(), strict=True)
    ]
    torch.testing.assert_close(network(r.numbers, r.crosses), torch.cat(each))


def test_what_is_unknown_adds_nothing_and_is_not_learned() -> None:
    network, r = wide_and_deep(deep(), Wide(3, 9)), rows()
    unknown = r._replace(crosses=r.crosses * 0 + UNKNOWN, categories=r.categories * 0 + UNKNOWN)
    network(*inputs_of(unknown)).sum().backward()
    for table in (network.get_submodule("core.words"), network.get_submodule("extension.crosses")):
        assert isinstance(table, nn.Embedding)
        assert not table.weight[UNKNOWN].any() and table.weight.grad is not None and not table.weight.grad.any()


@pytest.mark.parametrize("categories", [0, 2])
def test_the_core_is_the_deep_part_and_takes_its_own_inputs(categories: int) -> None:
    parts, r = (deep(categories), Wide(3, 9)), rows(categories)
    nn.init.normal_(parts[1].crosses.weight)
    nested = ps.nest(wide_and_deep(*parts))
    inputs = inputs_of(r)
    assert len(inputs) == (3 if categories else 2) and nested.levels == ("core", "full")
    own = (r.numbers, r.categories) if categories else (r.numbers,)
    torch.testing.assert_close(nested(*inputs), parts[0](*own) + parts[1](r.numbers, r.crosses))
    with nested.at("core"):
        assert torch.equal(nested(*inputs), parts[0](*own))
    small, whole = nested.extract("core"), nested.extract("full")
    assert type(small) is Deep
    torch.testing.assert_close(small(*own), parts[0](*own))
    torch.testing.assert_close(whole(*inputs), nested(*inputs))
    (args, _) = nested.inputs_of("core", (inputs, {}))
    assert all(a is b for a, b in zip(args, own, strict=True))
