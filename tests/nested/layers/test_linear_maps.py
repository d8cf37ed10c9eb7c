"""Layers that can be nested, and the `weight` that a nested layer shows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partialsgd import LowRank, Width, nest
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.layers.low_rank import LazyWeight
from tests.zoo import conv1d

LAYERS = {
    "linear": (lambda: nn.Linear(5, 7), (3, 5)),
    "linear without bias": (lambda: nn.Linear(5, 7, bias=False), (3, 5)),
    "conv": (lambda: nn.Conv2d(5, 7, 3), (2, 5, 9, 9)),
    "conv with everything": (lambda: nn.Conv2d(5, 7, (3, 5), (2, 1), (1, 2), (2, 1), bias=False), (2, 5, 9, 9)),
    "conv same": (lambda: nn.Conv2d(5, 7, (5, 3), padding="same"), (2, 5, 9, 9)),
    "conv circular": (lambda: nn.Conv2d(5, 7, (3, 5), padding=(1, 2), padding_mode="circular"), (2, 5, 9, 9)),
    "conv reflect same": (lambda: nn.Conv2d(5, 7, 3, padding="same", padding_mode="reflect"), (2, 5, 9, 9)),
    "conv unbatched": (lambda: nn.Conv2d(5, 7, 3), (5, 9, 9)),
    "Conv1D": (lambda: conv1d(7, 5), (2, 3, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_plain_layer_is_the_layer_again_to_the_bit_with_numbers_of_its_own(name: str) -> None:
    build, shape = LAYERS[name]
    layer, x = build(), torch.randn(shape)
    form = linear_map_of(layer)
    assert isinstance(form, LinearMap)
    random = torch.get_rng_state()
    plain = form.build(form.weight_of(layer), layer.bias)
    assert torch.equal(torch.get_rng_state(), random)
    assert type(plain) is type(layer) and repr(plain) == repr(layer)
    assert plain.state_dict().keys() == layer.state_dict().keys()
    for key, value in layer.state_dict().items():
        ours = plain.state_dict()[key]
        assert torch.equal(ours, value) and ours.data_ptr() != value.data_ptr()
    assert torch.equal(plain(x), layer(x)) and plain.weight.is_contiguous()


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


class Made:
    """Counts how often the weight is made."""

    def __init__(self, *shape: int) -> None:
        self.values, self.count = torch.randn(*shape, requires_grad=True), 0

    def __call__(self) -> Tensor:
        self.count += 1
        return self.values * 1

    def weight(self) -> LazyWeight:
        return LazyWeight(self.values, self.values.shape, self)


def test_what_is_known_is_said_without_making_it() -> None:
    made = Made(3, 4)
    weight = made.weight()
    assert isinstance(weight, Tensor)
    assert weight.dtype is torch.float32 and weight.shape == weight.size() == (3, 4) and weight.size(1) == 4
    assert weight.device == made.values.device and weight.ndim == weight.dim() == 2 and weight.numel() == 12
    assert weight.is_floating_point() and not weight.is_cuda
    assert made.count == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w + 1,
        lambda w: 1 - w,
        lambda w: w @ torch.ones(4),
        lambda w: w.t(),
        lambda w: w[0],
        lambda w: F.linear(torch.ones(2, 4), w),
        lambda w: torch.cat([w, w]),
        lambda w: w.clone(),
        lambda w: w.double(),
        lambda w: torch.stack([w.sum()]),
    ],
)
def test_whatever_uses_it_gets_the_numbers_and_gives_the_gradient(use) -> None:
    made = Made(3, 4)
    ours, theirs = use(made.weight()), use(made.values)
    assert type(ours) is Tensor and torch.equal(ours, theirs)
    (a,) = torch.autograd.grad(ours.sum(), made.values)
    (b,) = torch.autograd.grad(theirs.sum(), made.values)
    assert torch.equal(a, b)


@pytest.mark.parametrize("trained", [True, False])
def test_it_is_the_weight_of_the_level_at_which_it_was_asked_for_and_says_whether_it_is_trained(trained: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].weight.requires_grad_(trained)
    nested = nest(model, LowRank(1 / 2, where="0"))
    layer, full = model[0], model[0].weight
    with nested.at("core"):
        weight = layer.weight
    assert weight.requires_grad is full.requires_grad is trained
    assert torch.equal(weight.detach(), layer.weight_at("core"))
    assert not torch.equal(full.detach(), layer.weight_at("core"))
