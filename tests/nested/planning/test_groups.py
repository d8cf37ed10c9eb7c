"""Which units are the most important: a slow reference by loops, and a function that does not change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from partialsgd import Nested, Width, nest
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.nested.planning.groups import Cut, Producer, UnitGroup
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import Switch
from tests.nested.checks import output, shaken, untouched
from tests.zoo import ZOO, bert, gpt2, llama, marian, resnet18, tokens


def score(parameter: nn.Parameter | None, order: str) -> Tensor:
    """Its coordinates squared, or those of its gradient."""
    assert parameter is not None
    values = parameter.detach() if order == "norm" else parameter.grad
    assert values is not None
    return values.double().square()


def rows(layer: nn.Module, order: str) -> Tensor:
    """The score of each output: its row of the weight and its bias."""
    total = score(layer.weight, order).flatten(1).sum(1)
    return total if layer.bias is None else total + score(layer.bias, order)


def columns(layer: nn.Module, order: str) -> Tensor:
    return score(layer.weight, order).transpose(0, 1).flatten(1).sum(1)


def best(scores: Tensor) -> list[int]:
    return sorted(range(len(scores)), key=lambda unit: -float(scores[unit]))


def with_gradients(model: nn.Module, inputs: dict[str, Tensor]) -> nn.Module:
    y = output(model, inputs)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return model


def layer(nested: Nested, name: str) -> NarrowLayer:
    made = nested.model.get_submodule(name)
    assert isinstance(made, NarrowLayer)
    return made


def ordered(model: nn.Module, inputs: dict[str, Tensor], spec: Width) -> tuple[nn.Module, Nested]:
    """The model as it was, with gradients, and the nested model, which is the same function."""
    model = with_gradients(shaken(model), inputs)
    before, expected = copy.deepcopy(model), output(copy.deepcopy(model), inputs)
    for ours, theirs in zip(before.parameters(), model.parameters(), strict=True):
        ours.grad = theirs.grad
    nested = nest(model, spec)
    torch.testing.assert_close(output(nested, inputs), expected)
    return before, nested


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.sigmoid(self.gate(x)) * self.up(x))
        return y


ORDERS = pytest.mark.parametrize("order", ["norm", "gradient"])


@ORDERS
def test_a_unit_weighs_what_its_rows_biases_and_columns_weigh(order: str) -> None:
    spec = Width((1 / 6, 1 / 2), hidden=("gate", "up", "down"), order=order)
    before, nested = ordered(Gated(), {"x": torch.randn(5, 4, dtype=torch.float64)}, spec)
    units = best(rows(before.gate, order) + rows(before.up, order) + columns(before.down, order))
    for name in ("gate", "up"):
        assert torch.equal(layer(nested, name).weight, before.get_submodule(name).weight[units])
        assert torch.equal(layer(nested, name).weight_at("1/2"), before.get_submodule(name).weight[units[:3]])
    assert torch.equal(layer(nested, "down").weight, before.down.weight[:, units])
    assert torch.equal(layer(nested, "down").weight_at("1/6"), before.down.weight[:, units[:1]])


@ORDERS
def test_channels_weigh_what_all_layers_that_make_or_take_them_and_the_norms_weigh(order: str) -> None:
    before, nested = ordered(resnet18(width=4), ZOO["resnet18"].inputs(3), Width(1 / 2, order=order))
    makers = ("conv1", "stages.0.0.conv2", "stages.0.1.conv2")
    takers = ("stages.0.0.conv1", "stages.0.1.conv1", "stages.1.0.conv1", "stages.1.0.shortcut.0")
    scores = sum(rows(before.get_submodule(name), order) for name in makers)
    scores = scores + sum(columns(before.get_submodule(name), order) for name in takers)
    for name in ("bn1", "stages.0.0.bn2", "stages.0.1.bn2"):
        scores = scores + sum(score(p, order) for p in before.get_submodule(name).parameters())
    for name in makers:  # the best rows as they were, in the order that their inputs have now and cut as at the core
        axis = layer(nested, name).columns
        expected = axis.permuted(before.get_submodule(name).weight[best(scores)[:2]], 1)
        assert torch.equal(layer(nested, name).rows0[:2], axis.between(expected, 1, 0, axis.units("core")))


@ORDERS
def test_a_channel_of_a_flattened_image_weighs_all_of_its_places(order: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 4, 3))
    inputs = {"input": torch.randn(4, 2, 4, 4, dtype=torch.float64)}
    before, nested = ordered(model, inputs, Width(2 / 5, order=order))
    units = best(rows(before[0], order) + columns(before[3], order).view(5, 4).sum(1))[:2]
    assert torch.equal(layer(nested, "0").weight_at("core"), before[0].weight[units])
    places = [4 * unit + place for unit in units for place in range(4)]
    assert torch.equal(layer(nested, "3").weight_at("core"), before[3].weight[:, places])


@ORDERS
def test_query_and_key_keep_the_best_units_of_each_head_and_the_same_in_both(order: str) -> None:
    before, nested = ordered(bert(), {"input_ids": tokens(3)}, Width(1 / 4, query_key=True, order=order))
    names = [f"bert.encoder.layer.1.attention.self.{part}" for part in ("query", "key")]
    scores = sum(rows(before.get_submodule(name), order) for name in names).view(2, 8)
    kept = [8 * head + unit for head in range(2) for unit in best(scores[head])[:2]]
    for name in names:
        assert torch.equal(layer(nested, name).weight_at("core"), before.get_submodule(name).weight[kept])
        assert torch.equal(layer(nested, name).bias_at("core"), before.get_submodule(name).bias[kept])


@ORDERS
def test_packed_query_key_and_value(order: str) -> None:
    """GPT-2 has one layer for the three: the units of query and key are ordered alike, those of value stay."""
    before, nested = ordered(gpt2(), {"input_ids": tokens(3)}, Width(1 / 4, query_key=True, order=order))
    name = "transformer.h.2.attn.c_attn"
    old = before.get_submodule(name)
    scores = (score(old.weight, order).sum(0) + score(old.bias, order))[:32].view(2, 2, 8).sum(0)
    query = [8 * head + unit for head in range(2) for unit in best(scores[head])[:2]]
    kept = [*query, *(16 + unit for unit in query), *range(32, 48)]
    assert torch.equal(layer(nested, name).weight_at("core"), old.weight[:, kept])
    assert torch.equal(layer(nested, name).bias_at("core"), old.bias[kept])


def test_several_queries_of_one_key_keep_the_same_units() -> None:
    """Grouped-query attention has one head of keys for two of queries."""
    model = shaken(nn.ModuleDict({"q": nn.Linear(3, 8, bias=False), "k": nn.Linear(3, 4, bias=False)}))
    cut = Cut(UnitGroup(2, (Producer("q", 4), Producer("k", 2)), pads=True), {"core": 1}, "norm")
    scores = rows(model["k"], "norm").view(2, 2) + rows(model["q"], "norm").view(2, 2, 2).sum(1)
    plan = NestPlan(model, Switch(("core", "full")))
    for producer, heads in zip(cut.group.producers, (2, 1), strict=True):
        order = cut.producer_part(plan, producer).axis.order
        expected = [2 * head + unit for head in range(2 * heads) for unit in best(scores[head // heads])]
        assert order is not None and order.tolist() == expected


def test_rotary_embeddings_tie_a_unit_to_its_place() -> None:
    model = shaken(llama())
    expected = output(model, {"input_ids": tokens(3)})
    query = model.model.layers[0].self_attn.q_proj.weight.detach().clone()
    nested = nest(model, Width(1 / 2, query_key=True, order="norm"))
    torch.testing.assert_close(output(nested, {"input_ids": tokens(3)}), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(layer(nested, "model.layers.0.self_attn.q_proj").weight, query)
    assert layer(nested, "model.layers.0.mlp.up_proj").rows.order is not None


def test_importance_is_added_in_double_precision() -> None:
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).bfloat16()
    with torch.no_grad():
        model[0].weight.fill_(16.0)
        model[2].weight.copy_(torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0]]))
    order = layer(nest(model, Width(1 / 2, order="norm")), "0").rows.order
    assert order is not None and order.tolist() == [3, 2, 1, 0], "in bfloat16 768 + 9 is 768"


@pytest.mark.parametrize("missing", ["model.encoder.layers.0.fc1.bias", "model.decoder.layers.1.fc2.weight"])
def test_gradients_that_are_not_there_are_named(missing: str) -> None:
    model = marian()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.get_parameter(missing).grad = None
    with untouched(model), pytest.raises(ValueError, match=f"{missing.rpartition('.')[0]}' has none: run loss.backw"):
        nest(model, Width(1 / 2, order="gradient"))
