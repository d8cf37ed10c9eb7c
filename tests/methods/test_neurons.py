"""Which hidden units a network has, and the coordinates that go with them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from partialsgd.lab.recipes.images.resnet import resnet18
from partialsgd.methods._shared import neurons
from partialsgd.nested import nest
from partialsgd.parameters import Parameters
from partialsgd.testing.problems import Tied
from tests import zoo
from tests.methods.smaller import batch, cnn, mlp, ready
from tests.nested.checks import untouched


def drawn(found: tuple[neurons.Units, ...], seed: int = 0) -> list[tuple[neurons.Units, Tensor]]:
    """Some units of each layer, at least one and not all."""
    generator = torch.Generator().manual_seed(seed)
    return [(u, torch.randperm(u.count, generator=generator) < max(1, u.count // 2)) for u in found]


@pytest.mark.parametrize("build", [mlp, cnn])
def test_statistics_of_units_that_are_out_stay_and_those_of_the_others_move(build) -> None:
    model = ready(build())
    chosen = drawn(neurons.hidden_units(model, caller="test"))
    before = {name: b.clone() for name, b in model.named_buffers()}
    x, _ = batch(0, *((5,) if build is mlp else (2, 6, 6)))
    with pytest.raises(ZeroDivisionError), neurons.statistics_kept(model, chosen):
        model(x)
        raise ZeroDivisionError
    for units, kept in chosen:
        for name in (place.parameter.rpartition(".")[0] for place in units.norms):
            for leaf in ("running_mean", "running_var"):
                old, now = before[f"{name}.{leaf}"], model.get_buffer(f"{name}.{leaf}")
                assert torch.equal(old[~kept], now[~kept]) and not (old == now)[kept].any()
            assert int(model.get_buffer(f"{name}.num_batches_tracked")) == 1


def test_layers_that_are_stored_transposed() -> None:
    """Hugging Face's Conv1D holds (inputs, outputs)."""
    torch.manual_seed(0)
    model = zoo.gpt2().double().eval()
    found = neurons.hidden_units(model, caller="test")
    assert [u.layers for u in found] == [(f"transformer.h.{i}.mlp.c_fc",) for i in range(3)]
    chosen, small = [(u, torch.randperm(u.count) < max(1, u.count // 2)) for u in found], copy.deepcopy(model)
    for i, (_, kept) in enumerate(chosen):
        layers = small.transformer.h[i].mlp
        layers.c_fc.weight = nn.Parameter(layers.c_fc.weight[:, kept])
        layers.c_fc.bias, layers.c_fc.nf = nn.Parameter(layers.c_fc.bias[kept]), int(kept.sum())
        layers.c_proj.weight = nn.Parameter(layers.c_proj.weight[kept])
    with torch.no_grad():
        for name, inside in neurons.attached(Parameters(model), chosen).items():
            model.get_parameter(name).mul_(inside)
    torch.testing.assert_close(model(zoo.tokens(2)).logits, small(zoo.tokens(2)).logits)


def under(units: neurons.Units) -> neurons.Units:
    """The same in a nested model, which holds the network as `model`."""
    places, norms = (
        tuple(place._replace(parameter=f"model.{place.parameter}") for place in part)
        for part in (units.places, units.norms)
    )
    return neurons.Units(units.count, tuple(f"model.{name}" for name in units.layers), places, norms)


def test_in_a_family_of_one_the_units_are_those_of_the_network_inside() -> None:
    found = neurons.hidden_units(mlp(), caller="test")
    family = nest(mlp(), levels={}, norms="shared")
    assert neurons.hidden_units(family, caller="test") == tuple(under(units) for units in found)
    parameters = Parameters(family)
    assert all(place.parameter in parameters for units in found for place in under(units).places)


def test_residual_sums_are_one_layer_of_units() -> None:
    found = neurons.hidden_units(resnet18(width=4), caller="test")
    stem = next(u for u in found if "conv1" in u.layers)
    assert set(stem.layers) == {"conv1", "stages.0.0.conv2", "stages.0.1.conv2"} and len(found) == 12
    dimensions = {p.parameter: p.dimension for p in stem.places}
    assert dimensions["stages.0.0.bn2.bias"] == 0 and dimensions["stages.1.0.shortcut.0.weight"] == 1
    assert "fc.weight" not in dimensions


def test_named_layers_and_the_norm_between_them() -> None:
    chosen = neurons.hidden_units(mlp(), ("2", "3", "5"), caller="test")
    names = (("2.weight", 0), ("2.bias", 0), ("3.weight", 0), ("3.bias", 0), ("5.weight", 1))
    places = tuple(neurons.Place(*place) for place in names)
    assert chosen == (neurons.Units(7, ("2",), places, (neurons.Place("3.running_mean", 0),)),)
    with pytest.raises(ValueError, match="'0' makes 8 units and '3' normalises 7"):
        neurons.hidden_units(mlp(), ("0", "3", "2"), caller="test")
    with pytest.raises(ValueError, match="'3', '5'; it must name a layer that makes units"):
        neurons.hidden_units(mlp(), ("3", "5"), caller="test")
    with pytest.raises(ValueError, match="'0' belongs to two groups of hidden units"):
        neurons.hidden_units(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), [("0", "1"), ("0", "1")], caller="test")


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu() if x.sum() > 0 else self.a(x))


class Noisy(Branching):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x + torch.randn(3))))


def test_what_cannot_be_found_out_says_to_name_the_layers() -> None:
    with pytest.raises(ValueError, match=r"Branching has no hidden units.*hidden=\("):
        neurons.hidden_units(Branching(), caller="sieve")
    assert neurons.hidden_units(Branching(), ("a", "b"), caller="sieve")[0].count == 4
    with pytest.raises(ValueError, match=r"hidden must name layers that make units"):
        neurons.hidden_units(Branching(), "a", caller="sieve")
    gated = nn.Sequential(nn.Linear(3, 4), nn.GLU(), nn.Linear(2, 2))
    assert [units.count for units in neurons.hidden_units(gated, caller="sieve")] == [2], "a gate and what it lets pass"


def test_tied_parameters_and_computed_ones_are_not_cut() -> None:
    with pytest.raises(ValueError, match="Tied has no hidden units that could be fewer"):
        neurons.hidden_units(Tied(), caller="sieve")
    both = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
    )
    both[2].weight = both[0].weight
    assert [u.layers for u in neurons.hidden_units(both, caller="sieve")] == [("4",)]
    normed = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    prune.identity(normed[0], "weight")
    with pytest.raises(ValueError, match="Sequential has no hidden units that could be fewer"):
        neurons.hidden_units(normed, caller="sieve")


def test_finding_units_leaves_the_model_and_the_generator_alone() -> None:
    for model in (mlp(), Noisy(), resnet18(width=4).eval()):
        with untouched(model):
            neurons.hidden_units(model, caller="test")
