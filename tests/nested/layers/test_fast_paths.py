"""torch's fast path through a Transformer: left where a layer is two products, and taken again where it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from partialsgd import LayerSum, LowRank, Width, nest
from tests.zoo import again


def encoder(activation: Any = "relu", *, packs: bool = True) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, activation=activation)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=packs and not isinstance(activation, nn.Tanh))


def flags(model: nn.TransformerEncoder) -> tuple[Any, ...]:
    return (*(layer.activation_relu_or_gelu for layer in model.layers), model.use_nested_tensor)


LOW = LowRank(1 / 2, where=("linear1", "linear2"))


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("activation", ["relu", nn.GELU(), nn.Tanh()])
@pytest.mark.parametrize("spec", [LOW, LayerSum("linear1", again), Width(1 / 2)])
def test_an_extracted_encoder_takes_the_path_that_its_layers_allow(spec: Any, activation: Any, packs: bool) -> None:
    model = encoder(activation, packs=packs)
    before = flags(model)
    nested, x = nest(model, spec), torch.randn(3, 5, 8)
    assert flags(model) == (before if isinstance(spec, Width) else (0, 0, False))
    assert flags(nested.extract("full", example=x)) == before
    core = nested.extract("core", example=x)
    assert flags(core) == ((0, 0, False) if spec is LOW else before), "two small layers have no one weight"


def test_a_path_that_was_switched_off_stays_off() -> None:
    for spec in (Width(1 / 2), LOW):
        model = encoder(packs=False)
        for layer in model.layers:
            layer.activation_relu_or_gelu = 0
        assert flags(nest(model, spec).extract("full", example=torch.randn(3, 5, 8))) == (0, 0, False)


def test_a_small_level_of_low_rank_is_cheaper_in_evaluation_too() -> None:
    """On the fast path the dense product VU would be read."""
    from torch.utils.flop_counter import FlopCounterMode

    def flops(network: nn.Module) -> int:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(x)
        return counter.get_total_flops()

    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 64, dropout=0.0, batch_first=True), 2)
    nested, x = nest(model, LowRank(1 / 8, where=("linear1", "linear2"))), torch.randn(30, 5, 8)
    core = nested.extract("core", example=x)
    nested.eval()
    core.eval()
    with nested.at("core"):
        assert flops(nested) == flops(core)
