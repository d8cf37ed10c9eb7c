"""Low-rank levels in a folder of the Hub: loaded by their own code, by plain torch, and by nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_model
from torch import nn
from transformers import dynamic_module_utils

from partialsgd import Depth, LowRank, Width, export, nest
from partialsgd.export import low_rank_class
from tests.nested.checks import output
from tests.zoo import ZOO, bert, tokens

AUTO = {
    "bert": "AutoModelForSequenceClassification",
    "gpt2": "AutoModelForCausalLM",
    "t5": "AutoModelForSeq2SeqLM",
    "vit": "AutoModelForImageClassification",
}


@pytest.fixture
def _modules_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own for the code that transformers copies, which it imports from there."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


@pytest.mark.usefixtures("_modules_of_the_hub")
@pytest.mark.parametrize("name", AUTO)
def test_the_auto_class_loads_it_by_the_code_in_the_folder(tmp_path: Path, name: str) -> None:
    network, folder, auto = ZOO[name], tmp_path / name, getattr(transformers, AUTO[name])
    nested = nest(network.build(), LowRank(1 / 4))
    export.export(nested, "core", folder, format="transformers_low_rank")
    assert "import partialsgd" not in (folder / "modeling_low_rank.py").read_text()
    small = auto.from_pretrained(folder, trust_remote_code=True).eval()
    small.save_pretrained(tmp_path / "again")
    again = auto.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    with nested.at("core"), torch.no_grad():
        expected = output(nested.eval(), network.inputs(3))
        for model in (small, again):
            assert type(model).__module__.startswith("transformers_modules")
            torch.testing.assert_close(output(model, network.inputs(3)), expected, rtol=1e-4, atol=1e-5)
    for plain in (auto, type(nested.model)):  # not another network, in silence
        with pytest.raises(OSError, match=r"no file named model\.safetensors"):
            plain.from_pretrained(folder, trust_remote_code=False)


def test_plain_torch_loads_it_without_that_code(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    nested = nest(bert(), levels={"core": (Depth("bert.encoder.layer", keep=2), LowRank(1 / 4))})
    export.export(nested, "core", tmp_path, format="transformers_low_rank")
    config = BertConfig.from_pretrained(tmp_path)
    small = BertForSequenceClassification(config).eval()
    for name, rank in config.low_rank.items():
        layer = small.get_submodule(name)
        pair = nn.Sequential(nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features))
        small.set_submodule(name, pair)
    load_model(small, tmp_path / "model.low_rank.safetensors")
    inputs = {"input_ids": tokens(2)}
    with nested.at("core"), torch.no_grad():
        torch.testing.assert_close(output(small, inputs), output(nested.eval(), inputs), rtol=1e-4, atol=1e-6)


def test_what_is_not_low_rank_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    plain = nest(nn.Sequential(nn.Linear(6, 3)), LowRank(1 / 2))
    with pytest.raises(ValueError, match=r"Sequential is not a model of transformers; use format=\"safetensors\""):
        export.export(plain, "core", tmp_path / "new", format="transformers_low_rank", example=torch.randn(3, 6))
    with pytest.raises(ValueError, match=r"no layer of low rank; use format=\"transformers\""):
        export.export(nest(bert(), Width(1 / 2)), "core", tmp_path / "new", format="transformers_low_rank")
    more = nest(bert(), LowRank(1 / 4)).extract("core")
    more.added = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"is more than a BertForSequenceClassification with layers of low rank"):
        low_rank_class.build(more, "core")
    assert not (tmp_path / "new").exists()
    native = nest(bert(), LowRank(1 / 4))
    export.export(native, "full", tmp_path / "full", format="transformers")
    with pytest.raises(ValueError, match="holds the weights of another model; export to another directory"):
        export.export(native, "core", tmp_path / "full", format="transformers_low_rank")
