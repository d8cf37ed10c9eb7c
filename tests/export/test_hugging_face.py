"""Hugging Face models: rebuilt from a checkpoint, and exported for `from_pretrained`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from partialsgd import LayerSum, LowRank, Nested, export, nest
from partialsgd.export import hugging_face
from partialsgd.nested.example_inputs import tensors_of
from tests.nested.checks import built
from tests.zoo import ZOO, again

HUGGING_FACE = ("bert", "gpt2", "llama", "t5", "marian", "vit")


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_a_hugging_face_model_is_built_again(name: str) -> None:
    model = ZOO[name].build()
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.num_beams = 3
    said = json.loads(json.dumps(hugging_face.describe(model)))
    again = hugging_face.rebuild(said)
    assert type(again) is type(model)
    assert again.config.to_dict() == model.config.to_dict()
    shapes = [{name: value.shape for name, value in m.state_dict().items()} for m in (model, again)]
    assert shapes[0] == shapes[1]
    if getattr(model, "generation_config", None) is not None:
        assert again.generation_config.num_beams == 3
    assert hugging_face.versions(model).keys() == {"partialsgd", "torch", "transformers"}


def test_a_class_of_the_users_own_is_named_and_not_built() -> None:
    from transformers import BertModel

    class Mine(BertModel):
        pass

    for model in (Mine(ZOO["bert"].build().config), nn.Linear(2, 2)):
        said = hugging_face.describe(model)
        assert list(said) == ["class"]
        with pytest.raises(ValueError, match=rf"a .*{type(model).__name__}, which only its own code can build"):
            hugging_face.rebuild(said)


@pytest.mark.parametrize("name", ["pipeline", "BertConfig", "AutoModel", "os.system", "NoSuchModel"])
def test_a_name_in_a_file_reaches_model_classes_only(name: str) -> None:
    said = {"class": "x", "transformers": name, "config": {}, "generation": None}
    with pytest.raises(ValueError, match=f"no model class '{name}'"):
        hugging_face.rebuild(said)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"class": "x", "transformers": "BertModel", "config": {}, "generation": None}
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install .*\[lab\]"):
        hugging_face.rebuild(said)


@pytest.mark.parametrize("kind", ["width", "depth"])
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_a_native_level_is_read_by_from_pretrained(tmp_path: Path, name: str, kind: str) -> None:
    network, before, nested = built(name, kind)
    restore_tables(nested, name)
    export.export(nested, "core", tmp_path, format="transformers")
    small = type(before).from_pretrained(tmp_path)
    assert type(small) is type(before) and small.num_parameters() < before.num_parameters()
    inputs, plain = network.inputs(3), nested.extract("core").eval()
    assert all(torch.equal(small.state_dict()[name], values) for name, values in plain.state_dict().items())
    with torch.no_grad():
        pairs = [list(tensors_of(model(**inputs))) for model in (small.eval(), plain)]
    assert_one_function(*pairs)


def assert_one_function(a: list[Tensor], b: list[Tensor]) -> None:
    """from_pretrained leaves weights where they lie in the file; where that is, decides how some processors add."""
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-7)


@torch.no_grad()
def restore_tables(nested: Nested, name: str) -> None:
    """Marian's sinusoids are a table that nobody trains and its class does not store; `built` disturbs everything."""
    fresh = ZOO[name].build().double()
    for table, values in fresh.named_parameters():
        if not values.requires_grad:
            nested.model.get_parameter(table).copy_(values)


def test_a_table_that_the_class_does_not_store_is_not_lost_silently(tmp_path: Path) -> None:
    _, _, nested = built("marian", "width")
    message = r"embed_positions\.weight' changes by save_pretrained and from_pretrained: MarianMTModel"
    with pytest.raises(ValueError, match=message):
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


def test_the_full_level_of_another_class_of_transformers_is_native(tmp_path: Path) -> None:
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    nested = nest(RobertaModel(config).eval(), LowRank(1 / 2, where="*.query"))
    export.export(nested, "full", tmp_path / "full", format="transformers")
    ids = torch.arange(2, 9)[None]
    back = RobertaModel.from_pretrained(tmp_path / "full").eval()
    torch.testing.assert_close(back(ids).last_hidden_state, nested(ids).last_hidden_state)
    with pytest.raises(ValueError, match="RobertaModel is not one of the Hugging Face models"):
        export.export(nested, "core", tmp_path / "core", format="transformers")


def test_a_sum_that_no_class_has_is_not_lost_silently(tmp_path: Path) -> None:
    nested = nest(ZOO["bert"].build(), LayerSum("*.intermediate.dense", lambda old: nn.Sequential(again(old))))
    with pytest.raises(ValueError, match="changes by save_pretrained and from_pretrained: BertFor"):
        export.export(nested, "full", tmp_path / "new", format="transformers")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("kind", "told"), [("low_rank", "query.U0"), ("width", "intermediate.dense.rows0"), ("depth", "")]
)
def test_save_pretrained_of_a_nested_model_loses_it(tmp_path: Path, kind: str, told: str) -> None:
    """The warning of docs/export.md: the file has our names, and from_pretrained draws the missing weights anew."""
    network, before, nested = built("bert", kind)
    nested.eval()
    inputs = network.inputs(3)
    with nested.at("core"):
        nested.model.save_pretrained(tmp_path)
        core = nested(**inputs).logits
    back, report = type(before).from_pretrained(tmp_path, output_loading_info=True)
    logits, full = back.eval()(**inputs).logits, nested(**inputs).logits
    assert not torch.allclose(logits, core)
    if kind == "depth":  # blocks keep their names: all of them are there, whatever the level was
        assert not report["missing_keys"]
        assert_one_function([logits], [full])
    else:
        with safe_open(tmp_path / "model.safetensors", "pt") as file:
            assert any(key.endswith(told) for key in file.keys())  # noqa: SIM118  # no mapping
        assert report["missing_keys"] and report["unexpected_keys"]  # said in a log, and no error
        assert not torch.allclose(logits, full)


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
