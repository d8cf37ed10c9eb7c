"""One level as files that others read: safetensors, ONNX, or a Hugging Face model."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors.torch import save_file
from torch import nn

from partialsgd._util.files import json_text
from partialsgd.export import files, graphs, models, pretrained, states
from partialsgd.nested import Nested
from partialsgd.nested.nested import family_of
from partialsgd.nested.specs import require_choice

Format = Literal["safetensors", "onnx", "transformers"]


def export(
    nested: nn.Module,
    level: str,
    directory: str | PathLike[str],
    *,
    format: Format = "safetensors",
    example: Any = None,
    dynamic: graphs.Dynamic | None = None,
) -> None:
    """Take a level out, checked as `extract` checks it, and write it for evaluation; all of it or nothing.

    `"safetensors"`: `model.safetensors`, the state dict with tied tensors once, and `config.json`. `"onnx"`:
    `model.onnx`, for any batch size where the model's code allows it. `"transformers"`: what `from_pretrained`
    reads, for levels that are again a model of their own class. `example` is an input, as for `extract`.

    `dynamic` says which dimensions of an ONNX graph's inputs may have any size beside the batch, with a name for
    each: `{"input_ids": {1: "length"}, "attention_mask": {1: "length"}}`. In the example they are at least 2.
    """
    require_choice("format", format, get_args(Format))
    family, place = family_of(nested), Path(directory)
    if files.is_nested_model(place):
        raise ValueError(f"{place / files.WEIGHTS} is a whole family and would be lost; export to another directory")
    if format == "onnx":
        graphs.require_onnx()
    plain = family.extract(level, example=example).eval()
    if format == "transformers":
        pretrained.require_native(plain, level)
    with files.staged(place, last=files.CONFIG) as stage:
        if format == "onnx":
            graphs.write(plain, graphs.inputs_for(family, level, example, dynamic), stage / "model.onnx")
        elif format == "transformers":
            pretrained.write(plain, stage)
        else:
            _write_safetensors(family, plain, level, stage)


def _write_safetensors(family: Nested, plain: nn.Module, level: str, stage: Path) -> None:
    # Tools of transformers ask who wrote the tensors.
    save_file(states.stored(plain), stage / files.WEIGHTS, metadata={"format": "pt"})
    config = {
        "level": level,
        "of": list(family.levels),
        "parameters": sum(parameter.numel() for parameter in plain.parameters()),
        "versions": models.versions(plain),
        "model": models.describe(plain),
        "tied": states.describe(plain)["tied"],
    }
    (stage / files.CONFIG).write_text(json_text(config), encoding="utf-8")
