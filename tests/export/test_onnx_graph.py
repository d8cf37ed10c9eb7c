"""The ONNX file, run by onnxruntime, computes what torch computes, for any batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import transformers
from torch import Tensor, nn

from partialsgd import LowRank, Nested, OutputSum, Width, export, nest
from partialsgd.nested.example_inputs import tensors_of
from tests.zoo import ZOO, specs_for


def nested_model(name: str, kind: str) -> Nested:
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
    nested = nested_model(name, kind)
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


class After(nn.Module):
    """A network, and a function of its inputs and outputs."""

    def __init__(self, after: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.after = mlp(), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x, self.layers(x))


def test_a_batch_that_the_code_fixes_is_that_of_the_example(tmp_path: Path) -> None:
    fixed = After(lambda x, y: 2 * y if len(x) == 2 else y)  # another function for a batch of two
    nested, x = nest(fixed, LowRank(1 / 2, where="layers.0")).eval(), torch.ones(7, 6)
    with pytest.warns(UserWarning, match="batches of the example.s size, which After fixes"):
        export.export(nested, "core", tmp_path, format="onnx", example=x)
    with nested.at("core"), torch.no_grad():
        torch.testing.assert_close(run(tmp_path, x)[0], nested(x))


def test_what_cannot_be_traced_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    nested = nest(After(lambda x, y: y if y.sum() > 0 else -y), LowRank(1 / 2, where="layers.0"))
    with pytest.raises(RuntimeError, match=r"torch\.onnx cannot trace After .*data-dependent"):
        export.export(nested, "core", tmp_path / "new", format="onnx", example=torch.ones(2, 6))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["onnx", "onnxscript"])
def test_without_onnx_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"{name} is needed: pip install .*\[export\]"):
        export.export(nest(mlp(), Width(1 / 2)), "core", tmp_path / "new", format="onnx", example=torch.ones(2, 6))
    assert not (tmp_path / "new").exists()


def seq2seq(kind: str) -> Nested:
    torch.manual_seed(0)
    shape = dict(vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, max_position_embeddings=32)
    heads = dict(encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24)
    tokens = dict(pad_token_id=0, eos_token_id=1, bos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=None)
    config = getattr(transformers, f"{kind}Config")(**shape, **heads, **tokens)
    classes = {"Marian": transformers.MarianMTModel, "MBart": transformers.MBartForConditionalGeneration}
    return nest(classes[kind](config), LowRank(1 / 4, where=("*.fc1", "*.fc2", "*.q_proj"))).eval()


def sentences(rows: int, source: int, target: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(rows)
    mask = torch.ones(rows, source, dtype=torch.long)
    mask[0, source // 2 + 1 :] = 0
    return {
        "input_ids": torch.randint(3, 40, (rows, source), generator=draw),
        "attention_mask": mask,
        "decoder_input_ids": torch.randint(3, 40, (rows, target), generator=draw),
    }


LENGTHS = {"input_ids": {1: "source"}, "attention_mask": {1: "source"}, "decoder_input_ids": {1: "target"}}


@pytest.mark.parametrize("kind", ["Marian", pytest.param("MBart", marks=pytest.mark.slow)])
def test_lengths_that_are_dynamic_may_be_any(tmp_path: Path, kind: str) -> None:
    nested = seq2seq(kind)
    export.export(nested, "core", tmp_path, format="onnx", example=sentences(2, 7, 5), dynamic=LENGTHS)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [said.name for said in session.get_outputs()] == ["logits", "encoder_last_hidden_state"]
    for rows, source, target in [(1, 1, 1), (1, 9, 1), (3, 2, 8), (4, 5, 5), (2, 30, 31)]:
        inputs = sentences(rows, source, target)
        with nested.at("core"), torch.no_grad():
            expected = nested(**inputs).logits
        [logits] = session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-5)


def small() -> Nested:
    return nest(mlp(), LowRank(1 / 2, where="0"))


TWO_ROWS = torch.ones(2, 6)
BAD_DYNAMIC: list[tuple[Callable[[], Nested], Any, Any, type[Exception], str]] = [
    (small, TWO_ROWS, {"x": {1: "width"}}, ValueError, r"there is no argument 'x'; there are 'input'"),
    (small, TWO_ROWS, {"input": {2: "depth"}}, ValueError, r"dimension 2 of 'input' .*its shape is \(2, 6\)"),
    (
        small,
        TWO_ROWS,
        {"input": {1: "width"}},
        RuntimeError,
        r"(?s)cannot trace Sequential .*'width'.* leave out the dim",
    ),
    (partial(seq2seq, "Marian"), sentences(2, 1, 5), LENGTHS, ValueError, r"dimension 1 of 'input_ids'.* at least 2 "),
]


@pytest.mark.parametrize(("build", "example", "dynamic", "error", "message"), BAD_DYNAMIC)
def test_dynamic_names_arguments_and_dimensions_that_there_are(
    tmp_path: Path, build: Callable[[], Nested], example: Any, dynamic: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export.export(build(), "core", tmp_path, format="onnx", example=example, dynamic=dynamic)
