"""Layers without their numbers: applied, stored and built again as the class would."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of, parameter_like


def conv1d(outputs: int, inputs: int) -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    layer = Conv1D(outputs, inputs)
    nn.init.normal_(layer.bias)
    return layer


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
def test_applying_the_form_to_the_weight_is_the_layer(name: str) -> None:
    build, shape = LAYERS[name]
    layer, x = build(), torch.randn(shape)
    form = linear_map_of(layer)
    assert isinstance(form, LinearMap) and (form.outputs, form.inputs) == (7, 5)
    weight = form.weight_of(layer)
    assert weight.shape[:2] == (7, 5)
    torch.testing.assert_close(form.apply(x, weight, layer.bias), layer(x))


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


@pytest.mark.parametrize("name", LAYERS)
def test_as_stored_is_the_weight_as_the_class_holds_it(name: str) -> None:
    layer = LAYERS[name][0]()
    form = linear_map_of(layer)
    assert isinstance(form, LinearMap) and torch.equal(form.stored(form.weight_of(layer)), layer.weight)


@pytest.mark.parametrize("name", LAYERS)
def test_pointwise_is_a_matrix_in_each_place(name: str) -> None:
    form = linear_map_of(LAYERS[name][0]())
    assert isinstance(form, LinearMap)
    matrix, bias = torch.randn(4, 3), torch.randn(4)
    x = torch.randn(2, 3, 6, 6) if form.kernel else torch.randn(2, 6, 3)
    dim = 1 if form.kernel else -1
    by_hand = (x.movedim(dim, -1) @ matrix.t() + bias).movedim(-1, dim)
    torch.testing.assert_close(form.apply_pointwise(x, matrix, bias), by_hand)
    torch.testing.assert_close(form.build_pointwise(matrix, bias)(x), by_hand)
    torch.testing.assert_close(form.build_pointwise(matrix, None)(x), form.apply_pointwise(x, matrix, None))


@pytest.mark.parametrize("trained", [True, False])
def test_a_plain_layer_is_trained_if_its_numbers_were(trained: bool) -> None:
    layer = nn.Linear(5, 7)
    layer.weight.requires_grad_(trained)
    form = linear_map_of(layer)
    assert isinstance(form, LinearMap)
    plain = form.build(layer.weight, layer.bias)
    assert plain.weight.requires_grad is trained and plain.bias.requires_grad
    assert parameter_like(layer.weight, torch.zeros(2)).requires_grad is trained


def test_like_has_the_dtype_and_memory_of_its_own() -> None:
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    values = torch.arange(12.0).view(3, 4)
    made = parameter_like(parameter, values.t())
    assert made.dtype is torch.bfloat16 and made.is_contiguous() and torch.equal(made.float(), values.t())
    values.zero_()
    assert float(made.detach().abs().sum()) == 66


class MyLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: nn.Conv2d(4, 6, 3, groups=2), r"grouped convolution \(groups=2\)"),
        (lambda: MyLinear(2, 2), "MyLinear, a subclass that may compute more"),
        (
            lambda: nn.MultiheadAttention(4, 2).out_proj,
            "NonDynamicallyQuantizableLinear, a subclass that",
        ),
        (lambda: nn.LayerNorm(3), "LayerNorm; only Linear, Conv2d and Hugging Face's Conv1D"),
        (lambda: nn.ConvTranspose2d(3, 3, 1), "ConvTranspose2d; only"),
        (lambda: nn.Conv1d(3, 3, 1), "Conv1d; only"),
        (lambda: nn.Bilinear(3, 3, 1), "Bilinear; only"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "ParametrizedLinear, a subclass that may"),
    ],
)
def test_what_cannot_be_nested_says_why(layer, reason: str) -> None:
    import re

    why = linear_map_of(layer())
    assert isinstance(why, str) and re.search(reason, why)


@pytest.mark.parametrize(("places", "many"), [(4, False), (5, True)])
def test_one_weight_is_worth_making_for_many_places(places: int, many: bool) -> None:
    """places · (in + out) > in · out: with 6 inputs and 12 outputs from the fifth place on."""
    linear, conv = linear_map_of(nn.Linear(6, 12)), linear_map_of(nn.Conv2d(6, 12, 1))
    assert isinstance(linear, LinearMap) and isinstance(conv, LinearMap)
    assert linear.is_worth_merging(torch.zeros(places, 6)) is many
    assert linear.is_worth_merging(torch.zeros(1, places, 6)) is many
    assert conv.is_worth_merging(torch.zeros(1, 6, 1, places)) is many
