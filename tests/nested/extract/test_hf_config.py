"""Levels that are smaller models of their own Hugging Face class, and levels that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partialsgd import Depth, LowRank, Width, nest
from partialsgd.nested.extract.hf_config import fit_config
from tests.nested.checks import output
from tests.zoo import ZOO, llama, mlp, t5, tokens

WIDTH: dict[str, dict[str, int]] = {
    "bert": {"intermediate_size": 12},
    "gpt2": {"n_inner": 12},
    "llama": {"intermediate_size": 12},
    "t5": {"d_ff": 12},
    "t5_gated": {"d_ff": 12},
    "marian": {"encoder_ffn_dim": 12, "decoder_ffn_dim": 10},
    "vit": {"intermediate_size": 12},
}
DEPTH: dict[str, dict[str, int]] = {
    "bert": {"num_hidden_layers": 2},
    "gpt2": {"n_layer": 2, "num_hidden_layers": 2},
    "llama": {"num_hidden_layers": 2},
    "t5": {"num_layers": 2, "num_decoder_layers": 2},
    "marian": {"encoder_layers": 2, "decoder_layers": 2, "num_hidden_layers": 2},
    "vit": {"num_hidden_layers": 2},
}


FIRST = tuple(f"layers.0.mlp.{part}_proj" for part in ("gate", "up", "down"))


def single(inputs: dict[str, Any]) -> dict[str, Any]:
    return {key: value.float() if value.is_floating_point() else value for key, value in inputs.items()}


def loaded(plain: nn.Module, path: Path) -> nn.Module:
    plain.save_pretrained(path)
    model, info = type(plain).from_pretrained(path, output_loading_info=True)
    assert not any(info.values()), info
    assert isinstance(model, nn.Module)
    return model.eval()


CASES = [
    *((name, Width(1 / 2, order="norm"), fields) for name, fields in WIDTH.items()),
    *((name, Depth(ZOO[name].lists, keep=2, pick="even"), fields) for name, fields in DEPTH.items()),
    ("marian", [Depth(ZOO["marian"].lists, keep=2), Width(1 / 2)], WIDTH["marian"] | DEPTH["marian"]),
]


@pytest.mark.parametrize(("name", "spec", "fields"), CASES)
def test_a_smaller_level_is_a_smaller_configuration(
    name: str, spec: Any, fields: dict[str, int], tmp_path: Path
) -> None:
    network = ZOO[name]
    torch.manual_seed(0)
    original = network.build().eval()
    kind, said = type(original), original.config.to_dict()
    nested = nest(original, spec)
    random = torch.get_rng_state()
    plain = nested.extract("core")
    assert torch.equal(torch.get_rng_state(), random), "building a model to compare with draws nothing"
    assert type(plain) is kind
    changed = {key: value for key, value in plain.config.to_dict().items() if said.get(key) != value}
    assert {k: v for k, v in fields.items() if getattr(plain.config, k) != v} == {}
    assert changed.keys() <= fields.keys(), "nothing else"
    inputs = single(network.inputs(2))
    with torch.no_grad(), nested.at("core"):
        expected = output(nested, inputs)
        assert torch.equal(output(loaded(plain, tmp_path), inputs), output(plain, inputs))
        torch.testing.assert_close(output(plain, inputs), expected)
    fresh = kind(plain.config)
    assert {k: v.shape for k, v in fresh.state_dict().items()} == {k: v.shape for k, v in plain.state_dict().items()}
    assert nested.model.config.to_dict() == said, "the nested model keeps the configuration of the whole"


@pytest.mark.parametrize("name", WIDTH)
def test_the_whole_model_is_native_and_says_what_it_said(name: str) -> None:
    original = ZOO[name].build()
    said = original.config.to_dict()
    whole = nest(original, LowRank(1 / 4, where=ZOO[name].low_rank)).extract("full")
    assert fit_config(whole) is None
    assert whole.config.to_dict() == said


def test_a_size_that_the_configuration_leaves_open_stays_open_for_the_whole() -> None:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=1)
    nested = nest(GPT2Model(config), Width(1 / 4))
    assert nested.extract("core").config.n_inner == 8
    assert nested.extract("full").config.to_dict() == config.to_dict() and config.n_inner is None


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (LowRank(1 / 4, where="mlp"), "no Hugging Face class has low rank:"),
        (LowRank(1 / 4, where="self_attn"), "class has low rank or narrow heads"),
        (
            Width(1 / 2, hidden=FIRST, query_key=True, exclude="mlp"),
            "class has low rank or narrow heads",
        ),
        (Width(1 / 2, exclude="layers.1"), "a config has one size for all layers"),
        ([Width(1 / 2, exclude="layers.0"), Width(1 / 5, hidden=FIRST)], "a config has one size for all layers"),
    ],
)
def test_what_has_no_configuration_says_why(spec: Any, why: str) -> None:
    plain = nest(llama(), spec).extract("core")
    assert why in str(fit_config(plain))
    assert isinstance(plain, nn.Module) and output(plain, {"input_ids": tokens(2)}).shape == (2, 7, 50)


def test_what_has_no_configuration_still_says_the_sizes_that_it_can() -> None:
    plain = nest(llama(), [Width(1 / 2, query_key=True), Depth("layers", keep=2)]).extract("core")
    assert fit_config(plain) is not None
    assert (plain.config.intermediate_size, plain.config.num_hidden_layers) == (12, 2)


def test_other_models_are_not_of_a_known_type() -> None:
    assert "Sequential is not one of the Hugging Face models bert, gpt2" in str(fit_config(mlp()))


def test_stacks_have_configurations_of_their_own() -> None:
    plain = nest(t5(), [Depth("decoder.block", keep=1), Width(1 / 5)]).extract("core")
    assert (plain.encoder.config.num_layers, plain.decoder.config.num_layers) == (3, 1)
    assert plain.encoder.config.d_ff == plain.decoder.config.d_ff == plain.config.d_ff == 5


@pytest.mark.parametrize("kind", ["BertModel", "T5EncoderModel", "LlamaForSequenceClassification", "GPT2Model"])
def test_other_heads_of_the_same_models(kind: str, tmp_path: Path) -> None:
    import transformers

    name = {"B": "bert", "T": "t5", "L": "llama", "G": "gpt2"}[kind[0]]
    config = ZOO[name].build().config
    config.pad_token_id = 0
    original = getattr(transformers, kind)(config).eval()
    nested = nest(original, Width(1 / 2))
    plain = nested.extract("core", example={"input_ids": tokens(2)})
    ids = {"input_ids": tokens(3)}
    with torch.no_grad():
        assert torch.equal(output(loaded(plain, tmp_path), ids), output(plain, ids))
