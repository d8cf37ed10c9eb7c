"""A Hugging Face model that `extract` returns is saved and loaded as itself, or refuses to be saved."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partialsgd import Depth, LowRank, Nested, Width, nest
from tests.nested.checks import output
from tests.zoo import HUGGING_FACE, bert, gpt2, hugging_face, llama, t5, tokens

# Hidden layers that are not found by themselves.
HIDDEN = {
    "distilbert": ("lin1", "lin2"),
    "gpt_neox": ("dense_h_to_4h", "dense_4h_to_h"),
    "bloom": ("dense_h_to_4h", "dense_4h_to_h"),
}
# The config has no number for it (a ratio, four times the width), or says which layers attend to a few tokens only.
REFUSED = {("bloom", "width"), ("dinov2", "width"), ("dinov2", "depth"), ("gpt_neo", "depth"), ("gemma2", "depth")}
REFUSAL = r"from_pretrained would load another network: .*; write the level with partialsgd\.export\.export\(nested, "
FIELDS: dict[tuple[str, str], dict[str, Any]] = {
    ("bert", "width"): {"intermediate_size": 12},
    ("bert", "depth"): {"num_hidden_layers": 2},
    ("gpt2", "width"): {"n_inner": 12},
    ("gpt2", "depth"): {"n_layer": 2},
    ("t5", "width"): {"d_ff": 12},
    ("t5", "depth"): {"num_layers": 2, "num_decoder_layers": 2},
    ("marian", "width"): {"encoder_ffn_dim": 12, "decoder_ffn_dim": 10},
    ("marian", "depth"): {"encoder_layers": 2, "decoder_layers": 2},
    ("qwen3", "depth"): {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2},
    ("gpt_neox", "width"): {"intermediate_size": 12},
    ("distilbert", "width"): {"hidden_dim": 12},
    ("distilbert", "depth"): {"n_layers": 2},
    ("opt", "width"): {"ffn_dim": 12},
}


def lists(model: nn.Module) -> list[str]:
    modules = ((name, module) for name, module in model.named_modules() if not re.search(r"\.\d+\b", name))
    return [name for name, module in modules if isinstance(module, nn.ModuleList)]


def spec_for(name: str, kind: str, model: nn.Module) -> Any:
    if kind == "rank":
        return LowRank(1 / 4)
    return Width(1 / 2, hidden=HIDDEN.get(name)) if kind == "width" else Depth(lists(model), keep=2, pick=PICK[kind])


PICK = {"depth": "even", "first": "first"}
CASES = [
    *((name, kind) for name in HUGGING_FACE for kind in ("rank", "width", "depth")),
    *((name, "first") for name in ("gpt_neo", "gemma2")),
]


def assert_loads_as_itself(plain: Any, path: Path) -> None:
    plain.save_pretrained(path)
    loaded, report = type(plain).from_pretrained(path, output_loading_info=True)
    assert not any(report.values()), report
    ours, theirs = plain.state_dict(), loaded.state_dict()
    assert list(ours) == list(theirs) and all(torch.equal(value, theirs[key]) for key, value in ours.items())


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_level_loads_as_itself_or_refuses_to_be_saved(name: str, kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = hugging_face(name).eval()
    before = model.config.to_dict()
    nested = nest(model, spec_for(name, kind, model))
    random = torch.get_rng_state()
    plain, whole = nested.extract("core"), nested.extract("full")
    assert torch.equal(torch.get_rng_state(), random), "building models to compare with draws nothing"
    assert type(plain) is type(whole) is type(model)
    assert whole.config.to_dict() == nested.model.config.to_dict() == before
    assert_loads_as_itself(whole, tmp_path / "full")
    if kind == "rank" or (name, kind) in REFUSED:
        with pytest.raises(ValueError, match=REFUSAL + "'core'"):
            plain.save_pretrained(tmp_path / "core")
        assert not (tmp_path / "core").exists()
        return
    if (name, kind) in FIELDS:
        now = plain.config.to_dict()
        assert {key: value for key, value in now.items() if before[key] != value} == FIELDS[name, kind], "nothing else"
    assert "save_pretrained" not in vars(plain)
    assert_loads_as_itself(plain, tmp_path / "core")
    loaded = type(plain).from_pretrained(tmp_path / "core").eval()
    _, kwargs = nested.example().call
    with torch.no_grad(), nested.at("core"):
        # from_pretrained leaves weights where they lie in the file, and that decides how some processors add.
        torch.testing.assert_close(output(loaded, kwargs), output(nested, kwargs), rtol=1e-4, atol=1e-5)


def refused(spec: Any) -> nn.Module:
    return nest(llama(), spec).extract("core")


FIRST = tuple(f"layers.0.mlp.{part}_proj" for part in ("gate", "up", "down"))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (LowRank(1 / 4, where="mlp"), r"a LlamaForCausalLM has no '.*mlp\.gate_proj\.0\.weight'"),
        (Width(1 / 2, hidden=FIRST, query_key=True, exclude="mlp"), r"has no '.*q_proj\.0\.weight'"),
        (Width(1 / 2, exclude="layers.1"), r"another size of 'model\.layers\.1\.mlp\.gate_proj\.weight'"),
        ([Width(1 / 2, exclude="layers.0"), Width(1 / 5, hidden=FIRST)], r"another size of 'model\.layers\.0"),
    ],
)
def test_the_refusal_says_why_and_stays_with_copies_and_the_models_inside(spec: Any, why: str, tmp_path: Path) -> None:
    plain = refused(spec)
    for other in (plain, copy.deepcopy(plain), pickle.loads(pickle.dumps(plain)), plain.model):
        for save in (other.save_pretrained, other.push_to_hub):
            with pytest.raises(ValueError, match=why):
                save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert output(plain, {"input_ids": tokens(2)}).shape == (2, 7, 50), "it is a model all the same"


def test_what_has_no_config_still_has_the_sizes_that_it_can() -> None:
    plain = refused([Width(1 / 2, query_key=True), Depth("layers", keep=2)])
    assert (plain.config.intermediate_size, plain.config.num_hidden_layers) == (12, 2)


def test_a_nested_model_refuses_to_be_saved_as_a_plain_one(tmp_path: Path) -> None:
    """Its layers have other parameters: from_pretrained would draw the missing ones at random."""
    for spec in (LowRank(1 / 4, where="*.query"), Width(1 / 2), Depth("encoder.layer", keep=1)):
        nested = nest(bert(), spec)
        for model in (nested.model, copy.deepcopy(nested).model, nested.model.bert):
            with pytest.raises(ValueError, match=r"nested\.save_pretrained\(directory\), or one with nested\.ext"):
                model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    nest(bert(), levels={}).model.save_pretrained(tmp_path / "plain")  # nothing in it is nested


class Larger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = bert(), nn.Linear(2, 3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(input_ids=input_ids).logits)
        return y


def test_a_hugging_face_model_inside_of_another_module(tmp_path: Path) -> None:
    def body(spec: Any) -> Any:
        return nest(Larger(), spec).extract("core", example=tokens(2)).body

    assert_loads_as_itself(body([Width(1 / 2), Depth("encoder.layer", keep=2)]), tmp_path)
    with pytest.raises(ValueError, match=REFUSAL):
        body(LowRank(1 / 4)).save_pretrained(tmp_path)


def test_a_class_that_takes_more_than_a_config_is_saved_whole_only(tmp_path: Path) -> None:
    from transformers import BertForSequenceClassification

    class Mine(BertForSequenceClassification):
        def __init__(self, config: Any, note: str) -> None:
            super().__init__(config)
            self.note = note

    nested = nest(Mine(bert().config, "kept"), Width(1 / 2))
    core = nested.extract("core")
    assert type(core) is Mine and core.note == "kept"
    with pytest.raises(ValueError, match="a Mine cannot be built from a config alone"):
        core.save_pretrained(tmp_path / "core")
    nested.extract("full").save_pretrained(tmp_path)
    assert type(Mine.from_pretrained(tmp_path, note="again")) is Mine


def test_a_size_that_the_config_leaves_open_stays_open_for_the_whole() -> None:
    nested = nest(gpt2(n_inner=None), Width(1 / 4))
    assert nested.extract("core").config.n_inner == 16 and nested.extract("full").config.n_inner is None


def test_stacks_have_configs_of_their_own() -> None:
    plain = nest(t5(), [Depth("decoder.block", keep=1), Width(1 / 5)]).extract("core")
    assert (plain.encoder.config.num_layers, plain.decoder.config.num_layers) == (3, 1)
    assert plain.encoder.config.d_ff == plain.decoder.config.d_ff == plain.config.d_ff == 5


@pytest.mark.parametrize("kind", ["BertModel", "T5EncoderModel", "LlamaForSequenceClassification", "GPT2Model"])
def test_other_heads_of_the_same_models(kind: str, tmp_path: Path) -> None:
    import transformers

    config = hugging_face({"B": "bert", "T": "t5", "L": "llama", "G": "gpt2"}[kind[0]]).config
    config.pad_token_id = 0
    nested: Nested = nest(getattr(transformers, kind)(config).eval(), Width(1 / 2))
    assert_loads_as_itself(nested.extract("core", example={"input_ids": tokens(2)}), tmp_path)
