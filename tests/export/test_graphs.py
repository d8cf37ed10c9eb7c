"""The ONNX file, run by onnxruntime, computes what torch computes, for any batch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from partialsgd import LowRank, Nested, OutputSum, Width, export, nest
from partialsgd.nested.examples import tensors_of
from tests.zoo import ZOO, specs_for


def family(name: str, kind: str) -> Nested:
    torch.manual_seed(0)
    network = ZOO[name]
    nested = nest(network.build(), **specs_for(network)[kind])
    for level in nested.levels:
        with nested.at(level), torch.no_grad():
            nested(**inputs_of(name, 4))
    return nested.eval()


def inputs_of(name: str, rows: int) -> dict[str, Tensor]:
    return {key: x.float() if x.is_floating_point() else x for key, x in ZOO[name].inputs(rows).items()}


def run(directory: Path, *given: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(directory / "model.onnx")
    names = [said.name for said in session.get_inputs()]
    fed = {name: value.numpy() for name, value in zip(names, given, strict=True)}
    return [torch.from_numpy(output) for output in session.run(None, fed)]


CASES = [
    ("mlp", "low_rank", "core"),
    ("mlp", "low_rank", "full"),
    ("resnet18", "width_separate", "core"),
    ("vit", "query_key", "1/4"),
    ("bert", "depth_and_rank", "small"),
    ("t5", "depth", "core"),
]


@pytest.mark.parametrize(("name", "kind", "level"), CASES)
def test_onnxruntime_agrees_with_torch(tmp_path: Path, name: str, kind: str, level: str) -> None:
    nested = family(name, kind)
    export.export(nested, level, tmp_path, format="onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    for rows in (1, 3):
        inputs = inputs_of(name, rows)
        with nested.at(level), torch.no_grad():
            expected = list(tensors_of(nested(**inputs, **({"use_cache": False} if name == "t5" else {}))))
        outputs = run(tmp_path, *inputs.values())
        assert len(outputs) == len(expected)
        for a, b in zip(outputs, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_the_core_of_a_sum_takes_its_own_inputs(tmp_path: Path) -> None:
    nested = nest(OutputSum(mlp(), nn.Linear(2, 3), inputs=((0,), (1,)))).eval()
    x, y = torch.ones(1, 6), torch.ones(1, 2)  # one row, and still any batch
    export.export(nested, "core", tmp_path, format="onnx", example=(x, y))
    with nested.at("core"), torch.no_grad():
        torch.testing.assert_close(run(tmp_path, torch.ones(3, 6))[0], nested(torch.ones(3, 6), torch.ones(3, 2)))


class Fixed(nn.Module):
    """A network that computes something else for a batch of two."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: Tensor) -> Any:
        y = self.layers(x)
        return 2 * y if len(x) == 2 else y


def test_a_batch_that_the_code_fixes_is_that_of_the_example(tmp_path: Path) -> None:
    nested = nest(Fixed(), LowRank(1 / 2, where="layers.0")).eval()
    x = torch.ones(7, 6)
    with pytest.warns(UserWarning, match="batches of the size of the example alone, for Fixed fixes it"):
        export.export(nested, "core", tmp_path, format="onnx", example=x)
    with nested.at("core"), torch.no_grad():
        torch.testing.assert_close(run(tmp_path, x)[0], nested(x))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: Tensor) -> Any:
        y = self.layers(x)
        return y if y.sum() > 0 else -y


def test_what_cannot_be_traced_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    nested = nest(Branching(), LowRank(1 / 2, where="layers.0"))
    with pytest.raises(RuntimeError, match=r"torch\.onnx cannot trace Branching .*data-dependent"):
        export.export(nested, "core", tmp_path / "new", format="onnx", example=torch.ones(2, 6))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["onnx", "onnxscript"])
def test_without_onnx_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"{name} is needed: pip install partialsgd\[export\]"):
        export.export(nest(mlp(), Width(1 / 2)), "core", tmp_path / "new", format="onnx", example=torch.ones(2, 6))
    assert not (tmp_path / "new").exists()
