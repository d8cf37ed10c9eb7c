"""Levels as programs of torch.export: any batch, any length of text, and what a model fixes is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import partialsgd as ps
from partialsgd import export

# torch.export.load of torch 2.10 to 2.12 reads weights from bytes, and warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")


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
    onnxruntime = pytest.importorskip("onnxruntime")
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
