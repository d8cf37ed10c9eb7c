"""Nested modules: what a level of a network uses, and what a nested layer says of itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from partialsgd import LowRank, Width, nest
from partialsgd.nested.layers.base import NestedModule, level_modules, level_parameters
from tests.zoo import gpt2, tokens


class Either(NestedModule):
    """The first of its two parameters at core, both at full."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2))

    def members(self, level: str) -> Iterator[nn.Parameter]:
        yield from (self.a,) if level == "core" else (self.a, self.b)


def test_a_level_has_what_its_nested_modules_say_and_all_else_each_once() -> None:
    either, linear = Either(), nn.Linear(2, 2)
    model = nn.ModuleDict({"x": nn.Sequential(either, linear), "y": linear, "z": either})
    assert list(level_parameters(model, "core")) == [either.a, linear.weight, linear.bias]
    assert list(level_parameters(model, "full")) == [either.a, either.b, linear.weight, linear.bias]
    assert list(level_modules(model, "core")) == list(model.modules())


@pytest.mark.parametrize("spec", [LowRank((1 / 4, 1 / 2), where="0"), Width((1 / 4, 1 / 2))])
def test_a_nested_layer_answers_for_the_level_and_has_no_parameter_named_weight(spec: LowRank | Width) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    nested = nest(model, spec)
    layer, x = model[0], torch.randn(5, 6)
    assert "weight" not in dict(layer.named_parameters())
    shapes = []
    for level in nested.levels:
        with nested.at(level):
            assert layer.weight.shape == (layer.out_features, layer.in_features)
            torch.testing.assert_close(layer(x), x @ layer.weight.t() + layer.bias)
            shapes.append(tuple(layer.weight.shape))
    assert shapes == ([(8, 6)] * 3 if isinstance(spec, LowRank) else [(2, 6), (4, 6), (8, 6)])


@pytest.mark.parametrize("spec", [LowRank((1 / 4, 1 / 2), where=("c_fc", "c_proj")), Width((1 / 4, 1 / 2))])
def test_a_conv1d_of_hugging_face_shows_its_weight_as_it_stored_it(spec: LowRank | Width) -> None:
    model = gpt2()
    nested = nest(model, spec)
    for layer in (model.transformer.h[1].mlp.c_fc, model.transformer.h[1].mlp.c_proj):
        for level in nested.levels:
            with nested.at(level), torch.no_grad():
                x = torch.randn(4, layer.in_features)
                assert layer.weight.shape == (layer.in_features, layer.out_features)
                torch.testing.assert_close(layer(x), x @ layer.weight + layer.bias)


def test_gradients_reach_the_blocks_through_the_weight_that_is_read() -> None:
    """T5 and torch's Transformer read `.weight` without calling the layer."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    nested = nest(model, LowRank(1 / 2, where="0"))
    with nested.at("core"):
        read = torch.autograd.grad(model[0].weight.sum(), list(level_parameters(model[0], "core")), allow_unused=True)
    assert [g is not None and bool(g.any()) for g in read] == [True, True, False], "U and V, not the bias"


def test_what_a_level_uses_is_what_gets_a_gradient_there() -> None:
    model = gpt2()
    nested = nest(model, [LowRank(1 / 4, where="c_attn"), Width(1 / 2)])
    for level in nested.levels:
        nested.zero_grad()
        with nested.at(level):
            nested(input_ids=tokens(2)).logits.square().sum().backward()
        got = {p for p in nested.parameters() if p.grad is not None}
        assert got == set(nested.parameters(level=level))
