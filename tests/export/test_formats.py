"""One level in a file: what is in it, what reads it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

import partialsgd as ps
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


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("level", ["core", "full"])
def test_a_level_runs_with_any_batch(tmp_path: Path, level: str, rows: int) -> None:
    torch.manual_seed(0)
    nested = ps.nest(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)), ps.Width(1 / 4))
    export.export(nested, level, tmp_path, format="pt2", example=torch.randn(3, 8))
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]
    program = torch.export.load(tmp_path / "model.pt2").module()
    x = torch.randn(rows, 8)
    with torch.no_grad(), nested.at(level):
        torch.testing.assert_close(program(x), nested(x))


@pytest.mark.parametrize("format", ["pt2", "onnx"])
def test_a_text_model_takes_any_batch_and_length_without_being_told(tmp_path: Path, format: str) -> None:
    from tests.integrations import bert

    nested = bert.family().eval()
    export.export(nested, "core", tmp_path, format=format)
    for shape in ((1, 5), (3, 8), (4, 1)):
        tokens = torch.randint(16, shape)
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if format == "pt2":
            logits = run_program(tmp_path / "model.pt2", inputs)
        else:
            logits = run_onnx(tmp_path / "model.onnx", inputs)
        with torch.no_grad(), nested.at("core"):
            torch.testing.assert_close(logits, nested(**inputs).logits, atol=1e-5, rtol=1e-4)


def run_program(path: Path, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    program = torch.export.load(path)
    names = [node.name for node in program.graph.nodes if node.name in inputs]
    outputs = program.module()(**{name: inputs[name] for name in names})
    return outputs["logits"]


def run_onnx(path: Path, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    onnxruntime = pytest.importorskip("onnxruntime", reason="of the extra [export]")
    session = onnxruntime.InferenceSession(path)
    names = [given.name for given in session.get_inputs()]
    (logits,) = session.run(["logits"], {name: inputs[name].numpy() for name in names})
    return torch.from_numpy(logits)


class FixedRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.layer(x)) + torch.zeros(2, 1))


def test_a_model_that_fixes_the_batch_says_so(tmp_path: Path) -> None:
    nested = ps.nest(FixedRows(), ps.LowRank(1 / 4, where="layer"))
    with pytest.warns(UserWarning, match="accepts only batches of 2 examples, which FixedRows fixes"):
        export.export(nested, "core", tmp_path, format="pt2", example=torch.randn(2, 8))
    with pytest.raises(RuntimeError, match=r"torch\.export cannot trace FixedRows"):
        export.export(
            nested, "core", tmp_path / "asked", format="pt2", example=torch.randn(2, 8), dynamic={"x": {0: "rows"}}
        )
    assert not (tmp_path / "asked").exists()
