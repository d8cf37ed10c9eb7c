"""A Hugging Face model is built again from its record, and nothing else is."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from partialsgd.export import models
from tests.zoo import ZOO

FAMILIES = ("bert", "gpt2", "llama", "t5", "marian", "vit")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_hugging_face_model_is_built_again(name: str) -> None:
    model = ZOO[name].build()
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.num_beams = 3
    said = json.loads(json.dumps(models.describe(model)))
    again = models.rebuild(said)
    assert type(again) is type(model)
    assert again.config.to_dict() == model.config.to_dict()
    shapes = [{name: value.shape for name, value in m.state_dict().items()} for m in (model, again)]
    assert shapes[0] == shapes[1]
    if getattr(model, "generation_config", None) is not None:
        assert again.generation_config.num_beams == 3
    assert models.versions(model).keys() == {"partialsgd", "torch", "transformers"}


def test_building_draws_nothing_from_the_global_generator() -> None:
    said = models.describe(ZOO["bert"].build())
    before = torch.get_rng_state()
    models.rebuild(said)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_class_of_the_users_own_is_named_and_not_built() -> None:
    from transformers import BertConfig, BertModel

    class Mine(BertModel):
        pass

    config = BertConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
    )  # fmt: skip
    for model in (Mine(config), nn.Linear(2, 2)):
        said = models.describe(model)
        assert list(said) == ["class"]
        with pytest.raises(ValueError, match=rf"a .*{type(model).__name__}, which only its own code can build"):
            models.rebuild(said)


@pytest.mark.parametrize("name", ["pipeline", "BertConfig", "AutoModel", "os.system", "NoSuchModel"])
def test_a_name_in_a_file_reaches_model_classes_only(name: str) -> None:
    said = {"class": "x", "transformers": name, "config": {}, "generation": None}
    with pytest.raises(ValueError, match=f"no model class '{name}'"):
        models.rebuild(said)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"class": "x", "transformers": "BertModel", "config": {}, "generation": None}
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install partialsgd\[lab\]"):
        models.rebuild(said)
