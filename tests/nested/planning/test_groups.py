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


def with_gradients(model: nn.Module, inputs: dict[str, Tensor]) -> nn.Module:
    y = output(model, inputs)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return model


def layer(nested: Nested, name: str) -> NarrowLayer:
    made = nested.model.get_submodule(name)
    assert isinstance(made, NarrowLayer)
    return made


def best(scores: list[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda unit: -scores[unit])


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.sigmoid(self.gate(x)) * self.up(x))
        return y


@pytest.mark.parametrize("order", ["norm", "gradient"])
def test_a_unit_weighs_what_its_rows_biases_and_columns_weigh(order: str) -> None:
    x = torch.randn(5, 4, dtype=torch.float64)
    model = with_gradients(shaken(Gated()), {"x": x})
    before, expected = copy.deepcopy(model), model(x)
    scores = []
    for unit in range(6):
        total = 0.0
        for maker in (model.gate, model.up):
            total += float(score(maker.weight, order)[unit].sum() + score(maker.bias, order)[unit])
        scores.append(total + float(score(model.down.weight, order)[:, unit].sum()))
    nested = nest(model, Width((1 / 6, 1 / 2), hidden=("gate", "up", "down"), order=order))
    torch.testing.assert_close(nested(x), expected)
    units = best(scores)
    for name in ("gate", "up"):
        assert torch.equal(layer(nested, name).weight, before.get_submodule(name).weight[units])
        assert torch.equal(layer(nested, name).weight_at("1/2"), before.get_submodule(name).weight[units[:3]])
    assert torch.equal(layer(nested, "down").weight, before.down.weight[:, units])
    assert torch.equal(layer(nested, "down").weight_at("1/6"), before.down.weight[:, units[:1]])


@pytest.mark.parametrize("order", ["norm", "gradient"])
def test_channels_weigh_what_all_layers_that_make_or_take_them_and_the_norms_weigh(order: str) -> None:
    model = with_gradients(shaken(resnet18(width=4)), ZOO["resnet18"].inputs(3))
    before, expected = copy.deepcopy(model), output(copy.deepcopy(model), ZOO["resnet18"].inputs(3))
    makers = ("conv1", "stages.0.0.conv2", "stages.0.1.conv2")
    takers = ("stages.0.0.conv1", "stages.0.1.conv1", "stages.1.0.conv1", "stages.1.0.shortcut.0")
    norms = ("bn1", "stages.0.0.bn2", "stages.0.1.bn2")
    scores = []
    for unit in range(4):
        total = sum(float(score(model.get_submodule(n).weight, order)[unit].sum()) for n in makers)
        total += sum(float(score(model.get_submodule(n).weight, order)[:, unit].sum()) for n in takers)
        for n in norms:
            total += sum(float(score(p, order)[unit]) for p in model.get_submodule(n).parameters())
        scores.append(total)
    nested = nest(model, Width(1 / 2, order=order))
    torch.testing.assert_close(output(nested, ZOO["resnet18"].inputs(3)), expected)
    for name in makers:
        assert torch.equal(layer(nested, name).rows0[:2], _corner(before, nested, name, best(scores)[:2]))


def _corner(before: nn.Module, nested: Nested, name: str, units: list[int]) -> Tensor:
    """The best rows of the layer as it was, in the order that its inputs have now and cut as at the core."""
    weight: Tensor = before.get_submodule(name).weight[units]
    columns = layer(nested, name).columns
    return columns.between(columns.permuted(weight, 1), 1, 0, columns.units("core"))


@pytest.mark.parametrize("order", ["norm", "gradient"])
def test_a_channel_of_a_flattened_image_weighs_all_of_its_places(order: str) -> None:
    model = shaken(nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 4, 3)))
    inputs = {"input": torch.randn(4, 2, 4, 4, dtype=torch.float64)}
    with_gradients(model, inputs)
    before, expected = copy.deepcopy(model), output(model, inputs)
    scores = []
    for unit in range(5):
        own = score(model[0].weight, order)[unit].sum() + score(model[0].bias, order)[unit]
        scores.append(float(own + score(model[3].weight, order)[:, 4 * unit : 4 * unit + 4].sum()))
    nested = nest(model, Width(2 / 5, order=order))
    torch.testing.assert_close(output(nested, inputs), expected)
    units = best(scores)[:2]
    assert torch.equal(layer(nested, "0").weight_at("core"), before[0].weight[units])
    columns = [4 * unit + place for unit in units for place in range(4)]
    assert torch.equal(layer(nested, "3").weight_at("core"), before[3].weight[:, columns])


@pytest.mark.parametrize("order", ["norm", "gradient"])
def test_query_and_key_keep_the_best_units_of_each_head_and_the_same_in_both(order: str) -> None:
    model = with_gradients(shaken(bert()), {"input_ids": tokens(3)})
    expected = output(model, {"input_ids": tokens(3)})
    name = "bert.encoder.layer.1.attention.self"
    query, key = (model.get_submodule(f"{name}.{part}") for part in ("query", "key"))
    nested = nest(model, Width(1 / 4, query_key=True, order=order))
    torch.testing.assert_close(output(nested, {"input_ids": tokens(3)}), expected)
    kept = []
    for head in range(2):
        units = range(8 * head, 8 * head + 8)
        scores = [
            float(sum(score(p.weight, order)[unit].sum() + score(p.bias, order)[unit] for p in (query, key)))
            for unit in units
        ]
        kept += [units[unit] for unit in best(scores)[:2]]
    for part, old in (("query", query), ("key", key)):
        assert torch.equal(layer(nested, f"{name}.{part}").weight_at("core"), old.weight[kept])
        assert torch.equal(layer(nested, f"{name}.{part}").bias_at("core"), old.bias[kept])


@pytest.mark.parametrize("order", ["norm", "gradient"])
def test_packed_query_key_and_value(order: str) -> None:
    """GPT-2 has one layer for the three: the units of query and key are ordered alike, those of value stay."""
    model = with_gradients(shaken(gpt2()), {"input_ids": tokens(3)})
    expected, name = output(model, {"input_ids": tokens(3)}), "transformer.h.2.attn.c_attn"
    old = model.get_submodule(name)
    nested = nest(model, Width(1 / 4, query_key=True, order=order))
    torch.testing.assert_close(output(nested, {"input_ids": tokens(3)}), expected)
    weights = score(old.weight, order).sum(0) + score(old.bias, order)
    query, key = [], []
    for head in range(2):
        scores = [float(weights[8 * head + unit] + weights[16 + 8 * head + unit]) for unit in range(8)]
        query += [8 * head + unit for unit in best(scores)[:2]]
        key += [16 + 8 * head + unit for unit in best(scores)[:2]]
    columns = [*query, *key, *range(32, 48)]
    assert torch.equal(layer(nested, name).weight_at("core"), old.weight[:, columns])
    assert torch.equal(layer(nested, name).bias_at("core"), old.bias[columns])


def test_several_queries_of_one_key_keep_the_same_units() -> None:
    """Grouped-query attention has one head of keys for two of queries."""
    model = shaken(nn.ModuleDict({"q": nn.Linear(3, 8, bias=False), "k": nn.Linear(3, 4, bias=False)}))
    cut = Cut(UnitGroup(2, (Producer("q", 4), Producer("k", 2)), pads=True), {"core": 1}, "norm")
    site = NestPlan(model, Switch(("core", "full")))
    q, k = (model[name].weight.detach().square().sum(1) for name in ("q", "k"))
    expected_q, expected_k = [], []
    for head in range(2):
        scores = [float(k[2 * head + u] + q[4 * head + u] + q[4 * head + 2 + u]) for u in range(2)]
        expected_k += [2 * head + u for u in best(scores)]
        expected_q += [2 * h + u for h in (2 * head, 2 * head + 1) for u in best(scores)]
    axes = [cut.producer_axis(site, producer) for producer in cut.group.producers]
    assert axes[0].order is not None and axes[0].order.tolist() == expected_q
    assert axes[1].order is not None and axes[1].order.tolist() == expected_k


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


@pytest.mark.parametrize("order", ["first", "norm", "gradient"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "t5_gated", "marian", "vit", "encoder", "mlp"])
def test_the_whole_network_is_the_function_that_it_was(name: str, order: str) -> None:
    network = ZOO[name]
    model = with_gradients(shaken(network.build()), network.inputs(3)).eval()
    expected = output(model, network.inputs(3))
    nested = nest(model, Width((1 / 4, 1 / 2), order=order, query_key=network.query_key))
    torch.testing.assert_close(output(nested, network.inputs(3)), expected, rtol=1e-5, atol=1e-6)
