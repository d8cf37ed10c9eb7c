"""One level in a file: what is in it, what reads it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

from partialsgd import Width, export, nest
from tests.nested.checks import built
from tests.zoo import ZOO

X = torch.linspace(-1, 1, 12).view(2, 6)


def mlp(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


def keys_of(directory: Path) -> set[str]:
    with safe_open(directory / "model.safetensors", "pt") as file:
        return set(file.keys())


def test_a_narrow_level_is_read_by_a_narrow_network(tmp_path: Path) -> None:
    nested = nest(mlp(), Width(1 / 2))
    export.export(nested, "core", tmp_path, example=X)
    small = mlp(4)
    assert load_model(small, tmp_path / "model.safetensors") == (set(), [])
    with nested.at("core"):
        torch.testing.assert_close(small(X), nested(X))
    said = json.loads((tmp_path / "config.json").read_text())
    assert (said["level"], said["of"]) == ("core", ["core", "full"])
    assert said["parameters"] == sum(p.numel() for p in small.parameters())
    assert said["model"] == {"class": "torch.nn.modules.container.Sequential"}


def test_a_tied_tensor_is_in_the_file_once(tmp_path: Path) -> None:
    _, before, nested = built("t5", "low_rank")
    export.export(nested, "full", tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["tied"]["lm_head.weight"] == "shared.weight"
    assert keys_of(tmp_path) == set(before.state_dict()) - set(said["tied"])
    fresh = ZOO["t5"].build().double()
    load_model(fresh, tmp_path / "model.safetensors")
    inputs = ZOO["t5"].inputs(2)
    torch.testing.assert_close(fresh.eval()(**inputs).logits, nested.eval()(**inputs).logits)
    assert said["model"]["config"]["d_ff"] == 25


def test_a_second_export_takes_the_place_of_the_first_but_a_nested_model_is_not_lost(tmp_path: Path) -> None:
    nested = nest(mlp(), Width(1 / 2))
    export.save(nested, tmp_path)
    with pytest.raises(ValueError, match="is a saved nested model and would be lost; export to another directory"):
        export.export(nested, "core", tmp_path, example=X)
    export.load(tmp_path, mlp())
    place = tmp_path / "level"
    for level in nested.levels:
        export.export(nested, level, place, example=X)
    assert json.loads((place / "config.json").read_text())["level"] == "full"
    assert load_file(place / "model.safetensors")["0.weight"].shape == (8, 6)
    assert {file.name for file in place.iterdir()} == {"config.json", "model.safetensors"}
    with pytest.raises(ValueError, match="is not a saved nested model"):
        export.load(place, mlp())


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    nested = nest(mlp(), Width(1 / 2))
    for model, level, options, error, message in (
        (nested, "core", {}, ValueError, "checked on an input: call"),
        (
            nested,
            "core",
            {"format": "pickle"},
            ValueError,
            "one of 'safetensors', 'onnx', 'pt2', 'transformers', 'transformers_low_rank'; got 'pickle'",
        ),
        (nested, "small", {"example": X}, ValueError, "no level 'small'; there are 'core', 'full'"),
        (nested.model, "core", {}, TypeError, "got a Sequential"),
    ):
        with pytest.raises(error, match=message):
            export.export(model, level, tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()
