"""Transformers by structure: hidden units, query and key, torch's fast path, and one function at any size."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from partialsgd import Depth, LayerSum, LowRank, Width, nest
from partialsgd.nested.example_inputs import Example, as_example
from partialsgd.nested.planning.dry_run import find_units
from partialsgd.nested.planning.groups import Producer
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import Switch
from tests.nested.checks import assert_one_function, few, shaken
from tests.zoo import ZOO, again, gpt2, llama, t5, tokens


def site(model: nn.Module, example: Example | None = None) -> NestPlan:
    return NestPlan(model, Switch(("core", "full")), example=example)


LAYERS = {"bert": 12, "gpt2": 9, "llama": 15, "t5": 30, "t5_gated": 36, "marian": 30, "vit": 12}


@pytest.mark.parametrize("name", LAYERS)
def test_every_feed_forward_network_query_and_key_is_narrowed(name: str) -> None:
    assert len(nest(ZOO[name].build(), Width(1 / 2, query_key=True)).nested_by) == LAYERS[name]


def test_a_transformer_of_torch_with_a_decoder() -> None:
    model = shaken(nn.Transformer(8, 2, 1, 2, 12, dropout=0.0, batch_first=True))
    assert [g.name for g in find_units(site(model)).feed_forward] == [
        "encoder.layers.0.linear1", "decoder.layers.0.linear1", "decoder.layers.1.linear1",
    ]  # fmt: skip
    before = copy.deepcopy(model)
    nested = nest(model, Width((1 / 4, 1 / 2), order="norm"))
    inputs = {"src": torch.randn(3, 5, 8, dtype=torch.float64), "tgt": torch.randn(3, 4, 8, dtype=torch.float64)}
    assert_one_function(before, nested, inputs)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("spec", [Width(1 / 2), LowRank(1 / 2, where=("linear1", "linear2")), Depth("layers", keep=1)])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torchs_fast_path_with_padding(spec: Any, norm_first: bool) -> None:
    """In evaluation torch reads weights without calling layers, and packs padded sequences."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=norm_first)
    model = shaken(nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)).float()
    x, padding = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    inputs = {"src": x, "src_key_padding_mask": padding}
    expected = model(**inputs)[~padding]
    with torch.no_grad():
        packed = model.eval()(**inputs)
    nested = nest(model, spec)
    torch.testing.assert_close(nested.train()(**inputs)[~padding], expected, rtol=1e-4, atol=1e-5)
    for level in nested.levels:
        plain = nested.extract(level, example=inputs).eval()
        with nested.at(level):
            slow = nested.train()(**inputs)[~padding]
            with torch.no_grad():
                fast = nested.eval()(**inputs)[~padding]
                theirs = plain(**inputs)
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(theirs[~padding], slow, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(theirs, packed, rtol=1e-4, atol=1e-5)  # the full level, padded places too


def test_query_key_with_attention_to_another_sequence_in_gpt2() -> None:
    model = shaken(gpt2(n_embd=12, n_layer=2, n_head=3, n_inner=10, add_cross_attention=True))
    before = copy.deepcopy(model)
    encoded = torch.randn(2, 4, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": tokens(2), "encoder_hidden_states": encoded}
    groups = find_units(site(model, as_example(inputs))).query_key
    assert [len(group.producers) for group in groups] == [1, 2, 1, 2]
    assert groups[1].producers[1] == Producer("transformer.h.0.crossattention.c_attn", 3, 12)
    nested = nest(model, Width(1 / 2, query_key=True, order="norm"), example=inputs)
    assert_one_function(before, nested, inputs)


ratios = st.lists(st.sampled_from([0.01, 0.2, 1 / 3, 0.5, 0.7, 1.0]), min_size=1, max_size=2, unique=True).map(sorted)


@st.composite
def widths(draw, query_key: bool = True) -> dict[str, Any]:
    narrow = draw(st.booleans()) and query_key
    order = draw(st.sampled_from(["first", "norm"]))
    return {f"l{i}": [Width(r, query_key=narrow, order=order)] for i, r in enumerate(draw(ratios))}


def plus_depth(draw, levels: dict[str, Any], layers: tuple[str, ...], total: int) -> dict[str, Any]:
    if not draw(st.booleans()):
        return levels
    keeps = sorted(draw(st.integers(1, total)) for _ in levels)
    return {name: [*specs, Depth(layers, keep=keep)] for (name, specs), keep in zip(levels.items(), keeps, strict=True)}


def check(data: st.DataObject, model: nn.Module, levels: dict[str, Any], **options: Any) -> None:
    model = shaken(model, seed=data.draw(st.integers(0, 9)))
    before = copy.deepcopy(model)
    inputs = {"input_ids": tokens(2)[:, :4]}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(3)[:2, :3]
    assert_one_function(before, nest(model, levels=levels), inputs, **options)


@few
@given(st.data())
def test_llama_is_one_function(data: st.DataObject) -> None:
    kv_heads, shared, width = data.draw(st.sampled_from([(1, 1, 2), (1, 3, 4), (2, 2, 2), (3, 1, 6), (2, 1, 4)]))
    layers, heads = data.draw(st.integers(1, 3)), kv_heads * shared
    model = llama(
        hidden_size=heads * data.draw(st.integers(2, 3)), num_hidden_layers=layers, head_dim=width,
        num_attention_heads=heads, num_key_value_heads=kv_heads, intermediate_size=data.draw(st.integers(2, 9)),
        attention_bias=data.draw(st.booleans()), mlp_bias=data.draw(st.booleans()),
        tie_word_embeddings=data.draw(st.booleans()), use_cache=False,
    )  # fmt: skip
    check(data, model, plus_depth(data.draw, data.draw(widths()), ("layers",), layers))


@few
@given(st.data())
def test_t5_is_one_function(data: st.DataObject) -> None:
    layers = data.draw(st.sampled_from([1, 1, 2]))
    model = t5(
        d_model=data.draw(st.integers(2, 7)), d_kv=data.draw(st.integers(2, 4)), d_ff=data.draw(st.integers(2, 9)),
        num_layers=layers, num_decoder_layers=layers, use_cache=False, num_heads=data.draw(st.integers(1, 3)),
        feed_forward_proj=data.draw(st.sampled_from(["relu", "gated-gelu"])),
        tie_word_embeddings=data.draw(st.booleans()),
    )  # fmt: skip
    check(data, model, plus_depth(data.draw, data.draw(widths()), ("encoder.block", "decoder.block"), layers))


@few
@given(st.data())
def test_gpt2_is_one_function(data: st.DataObject) -> None:
    layers, heads, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    inner = data.draw(st.one_of(st.none(), st.integers(2, 9)))
    model = gpt2(n_embd=heads * width, n_layer=layers, n_head=heads, n_inner=inner, use_cache=False)
    init = data.draw(st.sampled_from(["svd", "matched", "zero", None]))
    if init is None:
        levels: dict[str, Any] = data.draw(widths())
    else:
        levels = {"core": [LowRank(data.draw(st.floats(0.01, 1.0)), where="h", init=init)]}
    check(data, model, plus_depth(data.draw, levels, ("transformer.h",), layers), preserves=init != "zero")


LOW = LowRank(1 / 2, where=("linear1", "linear2"))


def flags(model: nn.TransformerEncoder) -> tuple[Any, ...]:
    return (*(layer.activation_relu_or_gelu for layer in model.layers), model.use_nested_tensor)


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("activation", ["relu", nn.GELU(), nn.Tanh(), "off"])
@pytest.mark.parametrize("spec", [LOW, LayerSum("linear1", again), Width(1 / 2)])
def test_an_extracted_encoder_takes_the_path_that_its_layers_allow(spec: Any, activation: Any, packs: bool) -> None:
    function = "relu" if activation == "off" else activation
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, activation=function)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=packs and activation in ("relu", "off"))
    for own in model.layers if activation == "off" else ():
        own.activation_relu_or_gelu = 0  # a path that was switched off stays off
    before = flags(model)
    nested, x = nest(model, spec), torch.randn(3, 5, 8)
    assert flags(model) == (before if isinstance(spec, Width) else (0, 0, False))
    assert flags(nested.extract("full", example=x)) == before
    core = nested.extract("core", example=x)
    assert flags(core) == ((0, 0, False) if spec is LOW else before), "two small layers have no one weight"


def test_a_small_level_of_low_rank_is_cheaper_in_evaluation_too() -> None:
    """On the fast path the dense product VU would be read."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 64, dropout=0.0, batch_first=True), 2).eval()
    nested, x = nest(model, LowRank(1 / 8, where=LOW.where)), torch.randn(30, 5, 8)
    core = nested.extract("core", example=x)
    counted = []
    for network in (core, nested):
        with nested.at("core"), FlopCounterMode(display=False) as counter, torch.no_grad():
            network(x)
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1] > 0
