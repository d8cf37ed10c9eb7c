"""Hugging Face models: rebuilt from a checkpoint, and exported for `from_pretrained`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partialsgd import LayerSum, LowRank, Nested, Width, export, nest
from partialsgd.export import files, hugging_face
from tests.nested.checks import built, output
from tests.zoo import ZOO, again, bert, tokens


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "marian", "vit"])
def test_a_hugging_face_model_is_built_again(name: str) -> None:
    model = ZOO[name].build()
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.num_beams = 3
    again = hugging_face.rebuild(json.loads(json.dumps(hugging_face.describe(model))), model.state_dict())
    assert type(again) is type(model)
    assert again.config.to_dict() == model.config.to_dict()
    shapes = [{name: value.shape for name, value in m.state_dict().items()} for m in (model, again)]
    assert shapes[0] == shapes[1]
    if getattr(model, "generation_config", None) is not None:
        assert again.generation_config.num_beams == 3
    assert hugging_face.versions(model).keys() == {"partialsgd", "torch", "transformers"}


def edited(directory: Path, **changes: Any) -> Path:
    """Save a nested model with another config, as somebody else could who can compute checksums."""
    nested = nest(bert(), Width(1 / 2))
    export.save(nested, directory)
    record, tensors = files.read(directory)
    record.pop("digest")
    record["model"]["config"] |= changes
    files.write(directory, record, tensors)
    return directory


@pytest.mark.parametrize(
    "changes",
    [
        {"_attn_implementation": "somebody/kernel"},
        {"attn_implementation": "somebody/kernel"},
        {"experts_implementation": "somebody/kernel", "auto_map": {"AutoModel": "somebody/model--code.Model"}},
        {"quantization_config": {"quant_method": "somebody"}, "trust_remote_code": True},
    ],
)
def test_a_config_in_a_file_chooses_no_code(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = export.load(edited(tmp_path, **changes)).model.config
    assert "somebody" not in config.to_json_string(use_diff=False)
    assert config._attn_implementation == bert().config._attn_implementation


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 10**15},
        {"vocab_size": 10**6},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 10**6},
        {"num_hidden_layers": 4},
        {"intermediate_size": 26},
        {"max_position_embeddings": 10**7},
        {"hidden_size": 2**20},
    ],
)
def test_sizes_beyond_the_weights_are_refused_before_anything_is_built(tmp_path: Path, changes: dict[str, int]) -> None:
    edited(tmp_path, **changes)
    began = time.monotonic()
    with pytest.raises(ValueError, match="the config in the checkpoint does not belong to its weights, which have"):
        export.load(tmp_path)
    assert time.monotonic() - began < 30, "nothing large was built"


def test_a_class_of_the_users_own_is_named_and_not_built() -> None:
    from transformers import BertModel

    class Mine(BertModel):
        pass

    for model in (Mine(bert().config), nn.Linear(2, 2)):
        said = hugging_face.describe(model)
        assert list(said) == ["class"]
        with pytest.raises(ValueError, match=rf"a .*{type(model).__name__}, which only its own code can build"):
            hugging_face.rebuild(said, {})


@pytest.mark.parametrize("name", ["pipeline", "BertConfig", "AutoModel", "os.system", "NoSuchModel"])
def test_a_name_in_a_file_reaches_model_classes_only(name: str) -> None:
    said = {"class": "x", "transformers": name, "config": {}, "generation": None}
    with pytest.raises(ValueError, match=f"no model class '{name}'"):
        hugging_face.rebuild(said, {})


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"class": "x", "transformers": "BertModel", "config": {}, "generation": None}
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install .*\[lab\]"):
        hugging_face.rebuild(said, {})


@pytest.mark.parametrize(("name", "kind"), [("bert", "width"), ("t5", "depth"), ("marian", "width")])
def test_a_native_level_is_read_by_from_pretrained(tmp_path: Path, name: str, kind: str) -> None:
    network, before, nested = built(name, kind)
    restore_tables(nested, name)
    export.export(nested, "core", tmp_path, format="transformers")
    small = type(before).from_pretrained(tmp_path)
    assert type(small) is type(before) and small.num_parameters() < before.num_parameters()
    inputs, plain = network.inputs(3), nested.extract("core").eval()
    assert all(torch.equal(small.state_dict()[name], values) for name, values in plain.state_dict().items())
    with torch.no_grad():  # from_pretrained leaves weights in the file's memory, which decides how processors add
        torch.testing.assert_close(output(small.eval(), inputs), output(plain, inputs), rtol=1e-5, atol=1e-7)


@torch.no_grad()
def restore_tables(nested: Nested, name: str) -> None:
    """Marian's sinusoids are a table that nobody trains and its class does not store; `built` disturbs everything."""
    fresh = ZOO[name].build().double()
    for table, values in fresh.named_parameters():
        if not values.requires_grad:
            nested.model.get_parameter(table).copy_(values)


def test_a_table_that_the_class_does_not_store_is_not_lost_silently(tmp_path: Path) -> None:
    _, _, nested = built("marian", "width")
    with pytest.raises(ValueError, match=r"embed_positions\.weight' changes: MarianMTModel does not store it"):
        export.export(nested, "core", tmp_path / "new", format="transformers")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["low_rank", "query_key"])
def test_what_has_no_class_there_is_refused(tmp_path: Path, kind: str) -> None:
    _, _, nested = built("bert", kind)
    smallest = nested.levels[0]
    with pytest.raises(ValueError, match=rf"level '{smallest}' cannot be loaded by from_pretrained: .*safetensors"):
        export.export(nested, smallest, tmp_path / "new", format="transformers")
    assert not (tmp_path / "new").exists()
    export.export(nested, "full", tmp_path / "new", format="transformers")  # merged, it is native again
    type(nested.model).from_pretrained(tmp_path / "new")


def test_what_no_class_has_is_not_lost_silently(tmp_path: Path) -> None:
    summed = nest(bert(), LayerSum("*.intermediate.dense", lambda old: nn.Sequential(again(old))))
    for nested, example, message in (
        (summed, {"input_ids": tokens(2)}, ".* and a BertForSequenceClassification has no"),
        (
            nest(nn.Sequential(nn.Linear(6, 3)), LowRank(1 / 2)),
            torch.randn(3, 6),
            "Sequential is not a Hugging Face model",
        ),
    ):
        with pytest.raises(ValueError, match=f"level 'full' cannot be loaded by from_pretrained: {message}"):
            export.export(nested, "full", tmp_path / "new", format="transformers", example=example)
    assert not (tmp_path / "new").exists()


def test_a_failure_on_the_way_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, nested = built("bert", "width")
    export.export(nested, "full", tmp_path, format="transformers")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def half(self: nn.Module, directory: Path) -> None:
        (Path(directory) / "config.json").write_text("{")
        raise OSError("no space left on device")

    monkeypatch.setattr(type(nested.model), "save_pretrained", half)
    with pytest.raises(OSError, match="no space"):
        export.export(nested, "core", tmp_path, format="transformers")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
