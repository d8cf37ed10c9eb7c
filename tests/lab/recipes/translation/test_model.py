"""The network has the sizes, ties, dropout and start that fairseq means by its settings; it is nested and saved."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partialsgd import export
from partialsgd.lab.recipes.translation import model
from partialsgd.lab.recipes.translation.losses import TranslationFlops
from partialsgd.lab.recipes.translation.settings import PRESETS, Translation
from partialsgd.nested.inspect import flops
from tests.lab.recipes.translation.tiny import VOCABULARY, family, inputs, settings


def built(told: Translation, vocabulary: int = VOCABULARY) -> Any:
    torch.manual_seed(0)
    return model.build(told, vocabulary)


def expected_parameters(told: Translation, vocabulary: int) -> int:
    """By hand: what a post-norm Transformer has that is trained."""
    d, f = told.d_model, told.ffn
    attention, feed_forward, norm = 4 * (d * d + d), d * f + f + f * d + d, 2 * d
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    tables = 2 if told.tie else 3
    return told.layers * (encoder_layer + decoder_layer) + tables * vocabulary * d


@pytest.mark.parametrize(("preset", "vocabulary", "millions"), [("iwslt14", 10_000, 41.8), ("wmt17", 40_000, 105.6)])
def test_the_papers_networks_have_the_parameters_of_fairseqs(preset: str, vocabulary: int, millions: float) -> None:
    told = PRESETS[preset]
    with torch.device("meta"):
        network = model.marian(told, vocabulary)
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert trained == expected_parameters(told, vocabulary)
    assert round(trained / 1e6, 1) == millions


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_activation_and_scale_are_those_of_fairseq(norm: str) -> None:
    network = built(settings(norm=norm, dropout=0.3))
    config = network.config
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0.0, 0.0)
    assert (config.encoder_layerdrop, config.decoder_layerdrop) == (0.0, 0.0)
    layers = [*network.model.encoder.layers, *network.model.decoder.layers]
    assert {layer.dropout for layer in layers} == {0.3} and {layer.activation_dropout for layer in layers} == {0.0}
    assert {layer.self_attn.dropout for layer in layers} == {0.0}
    assert all(isinstance(layer.activation_fn, nn.ReLU) for layer in layers)
    for stack in (network.model.encoder, network.model.decoder):
        scale = stack.embed_scale if norm == "post" else stack.embed_tokens.embed_scale
        assert scale == math.sqrt(32)


def test_the_classes_normalise_where_they_should() -> None:
    """Normalised after the sum, a block puts out vectors of mean 0; before it, the sum goes on as it is."""
    means = {}
    for norm in ("post", "pre"):
        network = built(settings(norm=norm)).eval()
        layer, x = network.model.encoder.layers[0], torch.randn(2, 5, 32) + 3
        means[norm] = float(layer(x, None).detach().mean(-1).abs().max())
    assert means["post"] < 1e-5 < 1 < means["pre"]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_layers_start_by_xavier_and_embeddings_with_one_over_d(norm: str) -> None:
    network = built(settings(norm=norm, d_model=128, ffn=512, tie=False), 1000)
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            bound = math.sqrt(6 / sum(module.weight.shape))
            if name.rpartition(".")[2] in ("q_proj", "k_proj", "v_proj"):
                bound /= math.sqrt(2)
            assert 0.97 * bound < float(module.weight.detach().abs().max()) <= bound, name
            assert float(module.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
            assert not module.bias.any()
    for table in (network.model.encoder.embed_tokens, network.model.decoder.embed_tokens):
        assert not table.weight[0].any() and table.padding_idx == 0
        assert float(table.weight[1:].detach().std()) == pytest.approx(128**-0.5, rel=0.02)
    assert float(network.lm_head.weight.detach().std()) == pytest.approx(128**-0.5, rel=0.02)
    assert not network.final_logits_bias.any()


@pytest.mark.parametrize(
    ("nest", "layers"),
    [
        ("low-rank", {"fc1", "fc2", "q_proj", "k_proj"}),
        ("width", {"fc1", "fc2", "q_proj", "k_proj"}),
        ("depth", {"layers"}),
    ],
)
def test_the_papers_layers_are_nested_and_no_others(nest: str, layers: set[str]) -> None:
    nested = family(nest=nest, ratio=("1/4",) if nest != "depth" else ("1/2",))
    found = list(nested.nested_modules())
    assert {name.rpartition(".")[2] for name in found} == layers
    if nest != "depth":  # 2 + 2 layers: an attention and a feed-forward network in each, and 2 cross attentions
        assert len(found) == 4 * (2 + 2) + 2 * 2
    else:
        assert found == ["model.encoder.layers", "model.decoder.layers"]


def test_from_zero_the_whole_network_starts_as_its_core() -> None:
    nested = family(init="zero").eval()
    whole = nested(**inputs()).logits
    with nested.at("core"):
        torch.testing.assert_close(nested(**inputs()).logits, whole)
    other = family(init="svd").eval()
    with other.at("core"):
        assert not torch.allclose(other(**inputs()).logits, other.extract("full")(**inputs()).logits)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_family_is_saved_and_loaded_and_its_whole_is_the_class_again(tmp_path: Path, norm: str, tie: bool) -> None:
    nested = family(norm=norm, tie=tie).eval()
    keys = set(built(settings(norm=norm, tie=tie)).state_dict())
    export.save(nested, tmp_path / "family")
    again = export.load(tmp_path / "family").eval()
    assert _size(again) == _size(nested)
    for level in nested.levels:
        with nested.at(level), again.at(level):
            assert torch.equal(nested(**inputs()).logits, again(**inputs()).logits)
    whole = nested.extract("full")
    assert type(whole) is type(nested.model) and set(whole.state_dict()) == keys and _size(whole) < _size(nested)


def _size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


# A layer of 32 × 32 makes W + VU from 17 places on, one of 32 × 48 from 20: both sides of each are here, on each side.
SHAPES = [(1, 16, 17), (1, 19, 16), (2, 10, 8), (1, 4, 20), (6, 5, 3)]
FAMILIES: dict[str, dict[str, Any]] = {
    "low rank, three levels": {"ratio": ("1/8", "1/4")},
    "low rank, pre-norm": {"norm": "pre"},
    "width": {"nest": "width"},
    "depth": {"nest": "depth", "ratio": ("1/2",)},
    "alone, not tied": {"nest": "none", "tie": False},
}


@pytest.mark.parametrize("told", FAMILIES.values(), ids=FAMILIES)
def test_it_is_what_counting_gives(told: dict[str, Any]) -> None:
    nested = family(**told, layers=1 if told.get("nest") != "depth" else 2)
    work, forward = TranslationFlops(nested.train()), TranslationFlops(nested, "forward")
    noise = torch.get_rng_state()
    for level in nested.levels:
        for shape in SHAPES if level == "full" else SHAPES[-1:]:
            with nested.at(level):
                counted = flops.count(nested.model, **inputs(*shape), use_cache=False)
            assert work(level, shape) == counted.training, (level, shape)
            assert forward(level, shape) == counted.forward, (level, shape)
    assert all(work(level, (9, 9, 9)) < work("full", (9, 9, 9)) for level in nested.levels[:-1])
    assert nested.level == "full" and nested.training and all(p.grad is None for p in nested.parameters())
    assert torch.equal(torch.get_rng_state(), noise), "counting leaves the network and the noise alone"


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_decoder_reads_and_writes_with_one_table_if_told_and_the_encoder_has_its_own(norm: str, tie: bool) -> None:
    network = built(settings(norm=norm, tie=tie))
    encoder, decoder = network.model.encoder.embed_tokens.weight, network.model.decoder.embed_tokens.weight
    assert (network.lm_head.weight is decoder) == tie
    assert encoder is not decoder and encoder is not network.lm_head.weight
    tables = {id(p) for p in network.parameters() if p.shape == (VOCABULARY, 32)}
    assert len(tables) == (2 if tie else 3)  # none is left over that nobody reads
    assert network.get_input_embeddings().weight is encoder
    network(**inputs()).logits.square().sum().backward()
    assert [name for name, p in network.named_parameters() if p.requires_grad and p.grad is None] == []
    twin: Any = copy.deepcopy(family(norm=norm, tie=tie)).model
    assert (twin.lm_head.weight is twin.model.decoder.embed_tokens.weight) == tie, "a copy keeps the ties"


def test_marians_positions_are_sinusoids_that_reach_as_far_as_the_longest_sentence() -> None:
    positions = built(settings()).model.encoder.embed_positions.weight
    place, pairs = torch.arange(32, dtype=torch.float64)[:, None], torch.arange(16, dtype=torch.float64)
    angles = place / 10_000 ** (2 * pairs / 32)
    torch.testing.assert_close(positions.double(), torch.cat([angles.sin(), angles.cos()], 1), rtol=0, atol=1e-5)
    assert not positions.requires_grad
    network = built(settings(longest=7, beam=3, lenpen=0.6))
    network(**inputs(2, 7, 7))
    with pytest.raises(IndexError):
        network(**inputs(2, 8, 7))
    config = network.generation_config
    assert config.max_length == 7 + 1  # with the start
    assert (config.num_beams, config.length_penalty, config.early_stopping) == (3, 0.6, True)
    assert (config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (0, 1, 1)
    assert config.forced_eos_token_id is None and config.forced_bos_token_id is None
