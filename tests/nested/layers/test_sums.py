"""Sums of layers and of networks: which term runs, and what comes out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from partialsgd import LayerSum, LowRank, OutputSum, nest
from partialsgd.nested.layers.sums import SumLayer
from tests.nested.checks import assert_one_function, shaken, untouched
from tests.zoo import again, gpt2, normal, tokens


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def bottleneck(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(layer.in_features, 2), nn.Tanh(), nn.Linear(2, layer.out_features)).double()


@pytest.mark.parametrize("core", ["old", "new"])
@pytest.mark.parametrize("make", [again, bottleneck])
def test_small_levels_run_one_term_and_the_full_one_both(make: Callable[[nn.Module], nn.Module], core: str) -> None:
    network, x = model(), normal(3, 4)
    nested = nest(network, LayerSum("2", make, core=core))
    layer = network[2]
    assert isinstance(layer, SumLayer)
    hidden = torch.tanh(network[0](x))
    terms = {"old": layer.old(hidden), "new": layer.new(hidden)}
    torch.testing.assert_close(nested(x), network[4](torch.tanh(terms["old"] + terms["new"])))
    with nested.at("core"):
        assert torch.equal(nested(x), network[4](torch.tanh(terms[core])))
    other = layer.new if core == "old" else layer.old
    assert set(nested.parameters()) - set(nested.parameters(level="core")) == set(other.parameters())


@pytest.mark.parametrize("core", ["old", "new"])
@pytest.mark.parametrize("kind", ["linear", "no bias", "one bias", "conv", "Conv1D"])
def test_two_linear_layers_come_out_as_one_of_their_class(kind: str, core: str) -> None:
    if kind == "Conv1D":
        network = shaken(gpt2())
        where, inputs = "transformer.h.1.mlp.c_fc", {"input_ids": tokens(2)}
    elif kind == "conv":
        network = shaken(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()))
        where, inputs = "0", {"input": normal(2, 3, 5, 5)}
    else:
        network = shaken(model())
        if kind == "no bias":
            network[2] = nn.Linear(6, 6, bias=False).double()
        where, inputs = "2", {"input": normal(3, 4)}
    make = again if kind != "one bias" else lambda old: nn.Linear(6, 6, bias=False).double()
    before = copy.deepcopy(network)
    nested = nest(network, LayerSum(where, make, core=core))
    assert_one_function(before, nested, inputs, is_mask=True, preserves=False)
    plain = nested.extract("full", example=inputs)
    assert type(plain.get_submodule(where)) is type(before.get_submodule(where))
    assert list(plain.state_dict()) == list(before.state_dict())
    layer = nested.model.get_submodule(where)
    weights = [term.weight for term in (layer.old, layer.new)]
    torch.testing.assert_close(plain.get_submodule(where).weight, weights[0] + weights[1])
    torch.testing.assert_close(layer.weight, weights[0] + weights[1])
    with nested.at("core"):
        assert torch.equal(layer.weight, weights[0 if core == "old" else 1])


def assert_copies(plain: nn.Module, x: Tensor, expected: Tensor) -> None:
    for other in (plain, copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert torch.equal(other(x), expected)
        assert list(other.state_dict()) == list(plain.state_dict())


def test_what_is_not_linear_comes_out_as_a_graph_that_copies_and_pickles() -> None:
    nested, x = nest(model(), LayerSum("2", bottleneck)), normal(3, 4)
    nested(x)
    plain = nested.extract("full")
    assert isinstance(plain[2], fx.GraphModule)
    assert_copies(plain, x, nested(x))
    assert type(nested.extract("core")[2]) is nn.Linear


def test_a_whole_block_may_be_a_term_and_levels_inside_it_count() -> None:
    network = nn.Sequential(model(), nn.ReLU(), nn.Linear(2, 2).double())
    nested = nest(network, [LayerSum("0", lambda old: nn.Linear(4, 2).double()), LowRank(1 / 2, where="0.2")])
    full, plain = (nested.extract(level, example=normal(3, 4)) for level in ("full", "core"))
    torch.testing.assert_close(full(normal(3, 4)), nested(normal(3, 4)))
    with nested.at("core"):
        torch.testing.assert_close(plain(normal(3, 4)), nested(normal(3, 4)))
    assert type(plain[0]) is nn.Sequential and len(plain[0][2]) == 2, "two small layers in the old block"


def test_trying_the_new_layer_leaves_no_trace() -> None:
    made = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).double()
    network = model()
    with untouched(made):
        nested = nest(network, LayerSum("2", lambda _: made), norms="shared")
    assert nested.model[2].new is made


# Output-wise sums


class Pair(nn.Module):
    """A network of a tensor, an optional mask and an optional scale by name only."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 3).double()

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        y: Tensor = self.linear(x) * scale
        return y if mask is None else y * mask


def test_both_networks_get_all_inputs_and_the_core_runs_alone() -> None:
    deep, wide = model(), nn.Linear(4, 2).double()
    nested, x = nest(OutputSum(core=deep, extension=wide)), normal(3, 4)
    assert nested.levels == ("core", "full")
    torch.testing.assert_close(nested(x), deep(x) + wide(x))
    with nested.at("core"):
        assert torch.equal(nested(x), deep(x))
    assert set(nested.parameters(level="core")) == set(deep.parameters())
    small, whole = nested.extract("core"), nested.extract("full")
    assert type(small) is nn.Sequential and list(small.state_dict()) == list(deep.state_dict())
    assert_copies(small, x, deep(x))
    assert_copies(whole, x, nested(x))


@pytest.mark.parametrize(
    ("parts", "args", "kwargs"),
    [
        (((0,), (1,)), (normal(3, 4), normal(3, 5)), {}),
        (((1,), (0,)), (normal(3, 5), normal(3, 4)), {}),
        ((("x",), (0,)), (normal(3, 5),), {"x": normal(3, 4)}),
        (((0, "mask"), (1, "scale")), (normal(3, 4), normal(3, 5)), {"mask": normal(3, 3), "scale": 2.0}),
        (((0, 2), (1,)), (normal(3, 4), normal(3, 5), normal(3, 3)), {}),
    ],
)
def test_each_network_gets_its_own_part_of_the_inputs(parts, args, kwargs) -> None:
    core, extension = Pair(4), Pair(5)
    nested = nest(OutputSum(core, extension, inputs=parts))

    def run(network: nn.Module, taken) -> Tensor:
        positional = [args[i] for i in taken if isinstance(i, int)]
        y: Tensor = network(*positional, **{i: kwargs[i] for i in taken if isinstance(i, str)})
        return y

    torch.testing.assert_close(nested(*args, **kwargs), run(core, parts[0]) + run(extension, parts[1]))
    whole, small = nested.extract("full"), nested.extract("core")
    torch.testing.assert_close(whole(*args, **kwargs), nested(*args, **kwargs))
    assert type(small) is Pair, "the core alone takes its own part"
    torch.testing.assert_close(run(small, parts[0]), run(core, parts[0]))


def test_optional_and_named_arguments_go_to_those_who_take_them() -> None:
    """A network that takes only x cannot be given a mask; the extracted sum is as strict as the nested model."""
    x, optional = normal(3, 4), ({}, {"mask": normal(3, 3)}, {"scale": 3.0})
    nested, strict = nest(OutputSum(Pair(4), Pair(4))), nest(OutputSum(Pair(4), nn.Linear(4, 3).double()))
    whole = nested.extract("full", example=x)
    for kwargs in optional:
        torch.testing.assert_close(whole(x, **kwargs), nested(x, **kwargs))
    torch.testing.assert_close(strict.extract("full", example=x)(x), strict(x))
    for kwargs in optional[1:]:
        with pytest.raises(TypeError):
            strict(x, **kwargs)


def test_a_sum_inside_a_larger_network_keeps_the_inputs_that_it_is_called_with() -> None:
    class Larger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sum, self.head = OutputSum(Pair(4), Pair(5), inputs=((0,), (1,))), nn.Linear(3, 2).double()

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            z: Tensor = self.head(torch.tanh(self.sum(x, y)))
            return z

    nested, inputs = nest(Larger()), (normal(3, 4), normal(3, 5))
    nested(*inputs)
    for level in nested.levels:
        plain = nested.extract(level)
        with nested.at(level):
            torch.testing.assert_close(plain(*inputs), nested(*inputs))
        assert not any("partialsgd" in type(module).__module__ for module in plain.modules())


def test_a_missing_argument_and_unequal_outputs_are_named() -> None:
    nested = nest(OutputSum(Pair(4), Pair(5), inputs=((0,), (1, "mask"))))
    with pytest.raises(ValueError, match="the extension takes argument 'mask', which was not given"):
        nested(normal(3, 4), normal(3, 5))
    with pytest.raises(ValueError, match="the extension takes argument 1, which was not given"):
        nested(normal(3, 4), mask=normal(3, 3))
    with pytest.raises(ValueError, match="inputs must be two lists"):
        OutputSum(Pair(4), Pair(5), inputs=((0,),))
    with pytest.raises(ValueError, match="inputs must be two lists"):
        OutputSum(Pair(4), Pair(5), inputs=(0, 1))
    with pytest.raises(TypeError, match="terms of a sum must be tensors, got tuple and Tensor"):
        nest(OutputSum(nn.LSTM(4, 3).double(), Pair(4)))(normal(3, 4))
    for extension in (nn.Linear(4, 3), nn.Linear(4, 1)):
        unequal = nest(OutputSum(model(), extension.double()))
        with (
            untouched(unequal),
            pytest.raises(ValueError, match=r"shapes \(3, 2\) and \(3, [13]\); they must be equal"),
        ):
            unequal(normal(3, 4))


def test_low_rank_is_a_special_case() -> None:
    """With W old and VU new, and new the core."""
    network = model()
    low = nest(copy.deepcopy(network), LowRank(1 / 3, where="2"))
    inner = low.model[2]

    def factors(_: nn.Module) -> nn.Module:
        pair = nn.Sequential(nn.Linear(6, 2, bias=False), nn.Linear(2, 6)).double()
        with torch.no_grad():
            pair[0].weight.copy_(inner.U0)
            pair[1].weight.copy_(inner.V0)
            pair[1].bias.copy_(inner.bias)
        return pair

    network[2].bias = None
    with torch.no_grad():
        network[2].weight.copy_(inner.W)
    summed, x = nest(network, LayerSum("2", factors, core="new")), normal(3, 4)
    for level in ("core", "full"):
        with low.at(level), summed.at(level):
            torch.testing.assert_close(low(x), summed(x))
