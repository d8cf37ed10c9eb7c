"""Dropped weights and dropped neurons, against the network that is left."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd import PartialSGD, methods
from partialsgd.testing.problems import Quadratic, Tied


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def step(model, method):
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)
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
    units = mask["0.bias"]
    assert torch.equal(mask["0.weight"], units.view(-1, 1).expand(8, 5))
    assert 0 < int(units.sum()) < 8
    assert not seen["hidden"][:, ~units].any(), "a dropped neuron is silent"
    assert mask["4.weight"] is True and mask["4.bias"] is True, "the outputs of the network are never dropped"


def test_convolutions_have_channels_and_other_layers_are_named() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Flatten(), nn.Linear(6 * 4, 2))
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), methods.dropout(0.5, unit="neurons"))

    def closure():
        loss = model(torch.ones(2, 1, 4, 4)).sum()
        loss.backward()
        return loss

    mask = sgd.step(closure).mask
    assert torch.equal(mask["0.weight"], mask["0.bias"].view(6, 1, 1, 1).expand(6, 1, 3, 3))
    tied = Tied()
    sgd = PartialSGD(
        tied, torch.optim.SGD(tied.parameters(), 0.1), methods.dropout(0.5, unit="neurons", where=["embedding"])
    )
    with pytest.raises(ValueError, match=r"'embedding\.weight' belongs to a Embedding"):
        sgd.step(lambda: None)


def test_one_mask_serves_the_batch_and_nothing_is_rescaled() -> None:
    model = net()
    mask, seen = step(model, methods.dropout(0.5))
    kept = [x[torch.as_tensor(mask[n]).expand_as(x)] for n, x in zip(mask, seen["x"], strict=True)]
    original = [p[torch.as_tensor(mask[n]).expand_as(p)] for n, p in net().named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(kept, original, strict=True))


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="weights, neurons; got 'channels'"):
        methods.dropout(unit="channels")
    with pytest.raises(ValueError, match="keep must be in"):
        methods.dropout(0.0)


def test_a_model_without_neurons_is_refused_rather_than_left_alone() -> None:
    model = Quadratic()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), methods.dropout(0.5, unit="neurons"))
    with pytest.raises(ValueError, match="no layer has neurons to drop"):
        sgd.step(lambda: None)


def test_the_outputs_of_a_tied_head_stay_and_the_hidden_layer_is_dropped() -> None:
    tied = Tied()
    sgd = PartialSGD(tied, torch.optim.SGD(tied.parameters(), 0.1), methods.dropout(0.5, unit="neurons"))

    def closure():
        loss = tied(torch.arange(5)).sum()
        loss.backward()
        return loss

    mask = sgd.step(closure).mask
    assert mask["head.weight"] is True and 0 < int(mask["hidden.bias"].sum()) < 8
