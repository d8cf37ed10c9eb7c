"""Dropped weights and dropped neurons, against the network that is left."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd import methods
from partialsgd.testing.problems import Quadratic, SometimesUnused, Tied
from tests.methods.smaller import batch, cnn, mlp, places, ready, smaller
from tests.methods.training import backward, sgd_of

LAWS = {"": methods.dropout(0.7), "neurons": methods.dropout(0.7, unit="neurons")}
REFUSED_PROBLEMS = {"neurons": ("quadratic", "tied", "unused")}  # no hidden units, none of their own, not to be traced
IDENTITY = [methods.dropout(1.0), methods.dropout(1.0, unit="neurons")]
REFUSED_SETTINGS = [
    ({"unit": "channels"}, "unit must be one of weights, neurons; got 'channels'"),
    ({"keep": 0.0}, "keep must be in"),
]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def step(model, method):
    sgd = sgd_of(model, method)
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    seen = {}

    def closure():
        hidden = model[:2](x)
        seen["hidden"], seen["x"] = hidden.detach(), [p.detach().clone() for p in model.parameters()]
        loss = model[2:](hidden).square().mean()
        loss.backward()
        return loss

    return sgd.step(closure).mask, seen


def test_the_gradient_is_that_of_the_network_without_the_dropped_weights() -> None:
    model, twin = net(), net()
    before = [p.detach().clone() for p in model.parameters()]
    mask, seen = step(model, methods.dropout(0.5))
    for inside, p, x in zip(seen["x"], mask, before, strict=True):
        assert torch.equal(inside, x * torch.as_tensor(mask[p]))
    with torch.no_grad():
        for name, p in twin.named_parameters():
            p.mul_(torch.as_tensor(mask[name]))
    twin(torch.randn(4, 5, generator=torch.Generator().manual_seed(1))).square().mean().backward()
    for (name, p), g, x in zip(model.named_parameters(), twin.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), x - 0.1 * torch.as_tensor(mask[name]) * g.grad)


def test_biases_stay_when_weights_are_dropped_and_go_with_their_neurons() -> None:
    mask, _ = step(net(), methods.dropout(0.5))
    assert mask["0.bias"] is True and mask["0.weight"].float().mean() < 1
    mask, seen = step(net(), methods.dropout(0.5, unit="neurons"))
    units, after = mask["0.bias"], mask["2.bias"]
    assert torch.equal(mask["0.weight"], units.view(-1, 1).expand(8, 5))
    assert torch.equal(mask["2.weight"], after.view(-1, 1) & units.view(1, -1)), "both ends must stay"
    assert torch.equal(mask["4.weight"], after.view(1, -1).expand(3, 6))
    assert 0 < int(units.sum()) < 8
    assert not seen["hidden"][:, ~units].any(), "a dropped neuron is silent"
    assert mask["4.bias"] is True, "the outputs of the network are never dropped"


CASES = {
    "sigmoid": (lambda: ready(nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 3))), (5,)),
    "batchnorm": (lambda: ready(mlp()), (5,)),
    "convolutions": (lambda: ready(cnn()), (2, 6, 6)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_the_network_without_the_dropped_units_for_any_activation(case: str) -> None:
    """sigmoid(0) is not 0, a norm has a shift: the unit is gone all the same, and its statistics stay."""
    build, shape = CASES[case]
    model, layers = build(), [i for i, m in enumerate(build()) if isinstance(m, (nn.Linear, nn.Conv2d))][:-1]
    sgd = sgd_of(model, methods.dropout(0.5, unit="neurons"), 0.3, seed=3)
    dropped = 0
    for t in range(4):
        x, y = batch(t, *shape)
        before, seen = {k: v.clone() for k, v in model.state_dict().items()}, []

        def closure(x=x, y=y, seen=seen):
            seen.append(model(x))
            loss = nn.functional.cross_entropy(seen[0], y)
            loss.backward()
            return loss

        twin = build()
        twin.load_state_dict(before)
        mask = sgd.step(closure).mask
        kept = {i: torch.as_tensor(mask[f"{i}.bias"]).expand(len(twin[i].bias)) for i in layers}
        small = smaller(twin, kept)
        out = small(x)
        nn.functional.cross_entropy(out, y).backward()
        torch.testing.assert_close(seen[0], out)
        after = dict(small.named_parameters())
        for name, index in places(twin, kept).items():
            expected = before[name]
            expected[index] = after[name] - 0.3 * after[name].grad if name in after else small.state_dict()[name]
            torch.testing.assert_close(model.state_dict()[name], expected)
        dropped += sum(int((~k).sum()) for k in kept.values())
    assert dropped > 0


def test_one_unit_of_each_layer_stays_and_it_is_drawn() -> None:
    model = net()
    sgd, stays = sgd_of(model, methods.dropout(1e-6, unit="neurons")), set()
    for _ in range(40):
        mask = sgd.step(backward(lambda: model(torch.ones(2, 5)).sum())).mask
        assert int(mask["0.bias"].sum()) == 1 == int(mask["2.bias"].sum())
        stays.add(int(mask["0.bias"].nonzero()))
    assert len(stays) > 4, "not always the same one"


def test_where_limits_it_to_layers_and_the_others_stay_whole() -> None:
    mask, _ = step(net(), methods.dropout(0.5, unit="neurons", where=["2"]))
    assert mask["0.bias"] is True and mask["0.weight"] is True
    units = mask["2.bias"]
    assert torch.equal(mask["2.weight"], units.view(-1, 1).expand(6, 8)) and 0 < int(units.sum()) < 6
    with pytest.raises(
        ValueError, match="where names '4', which makes no hidden units; the layers that do are '0', '2'"
    ):
        step(net(), methods.dropout(0.5, unit="neurons", where=["4"]))


def test_layers_can_be_named_where_the_network_cannot_be_traced() -> None:
    def first_mask(method):
        model = SometimesUnused()
        return sgd_of(model, method).step(backward(lambda: model(torch.ones(2, 6), True).sum())).mask

    with pytest.raises(ValueError, match=r"dropout finds no hidden units in SometimesUnused.*hidden=\("):
        first_mask(methods.dropout(0.5, unit="neurons"))
    mask = first_mask(methods.dropout(0.5, unit="neurons", hidden=("detour", "head")))
    assert torch.equal(mask["head.weight"], mask["detour.bias"].view(1, -1).expand(3, 8)) and mask["stem.bias"] is True
    with pytest.raises(ValueError, match="hidden names layers whose neurons are dropped, and unit is 'weights'"):
        methods.dropout(0.5, hidden=("detour", "head"))


def test_a_model_without_hidden_units_of_its_own_is_refused_rather_than_left_alone() -> None:
    for model, message in (
        (Quadratic(), "Quadratic has no hidden units"),
        (Tied(), "Tied has no hidden units that could be fewer.*'hidden'"),
    ):
        sgd = sgd_of(model, methods.dropout(0.5, unit="neurons"))
        with pytest.raises(ValueError, match=message):
            sgd.step(lambda: None)
