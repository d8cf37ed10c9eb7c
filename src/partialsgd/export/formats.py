"""`export`: one level as files for other programs, in safetensors, ONNX, torch.export or Hugging Face formats."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from partialsgd._util import tensor_files
from partialsgd._util.files import json_text, staged
from partialsgd.export import files, hugging_face, low_rank_class, onnx_graph, states, torch_program
from partialsgd.nested.nested import unwrap_nested
from partialsgd.nested.specs import require_choice

Format = Literal["safetensors", "onnx", "pt2", "transformers", "transformers_low_rank"]


def export(
    nested: nn.Module,
    level: str,
    directory: str | PathLike[str],
    *,
    format: Format = "safetensors",
    example: Any = None,
    dynamic: onnx_graph.Dynamic | None = None,
) -> None:
    """Extract a level, checked as by `extract`, and write it in evaluation mode; all files are written or none.

    `"safetensors"` writes `model.safetensors`, the state dict with tied tensors once, and `config.json`. `"onnx"`
    writes `model.onnx`, and `"pt2"` writes `model.pt2`, which `torch.export.load` reads without the model's code; both
    take any batch size, and texts of any length, if the model's code allows it. `"transformers"` writes what
    `from_pretrained` reads, for levels that are a model of their own class; `"transformers_low_rank"` adds a file of
    code for layers of low rank, which `from_pretrained` runs with `trust_remote_code=True`. `example` is an input, as
    for `extract`.

    `dynamic` names the dimensions of a graph's inputs that must have any size, beside the batch:
    `{"input_ids": {1: "length"}, "attention_mask": {1: "length"}}`. In the example their size must be at least 2.
    """
    require_choice("format", format, get_args(Format))
    nested, path = unwrap_nested(nested), Path(directory)
    if files.is_nested_model(path):
        raise ValueError(
            f"{path / files.WEIGHTS} is a saved nested model and would be lost; export to another directory"
        )
    if format == "onnx":
        onnx_graph.require_onnx()
    extracted = nested.extract(level, example=example).eval()
    if format == "transformers":
        hugging_face.require_same_class(extracted, level)
    elif format == "transformers_low_rank":
        if (path / files.WEIGHTS).exists():  # from_pretrained would read them with the new config
            raise ValueError(f"{path} holds the weights of another model; export to another directory")
        extracted = low_rank_class.build(extracted, level)
    with staged(path, last=files.CONFIG) as stage:
        if format == "onnx":
            onnx_graph.write(nested, level, extracted, example, dynamic, stage / "model.onnx")
        elif format == "pt2":
            torch_program.write(nested, level, extracted, example, dynamic, stage / "model.pt2")
        elif format == "transformers":
            hugging_face.save_pretrained(extracted, stage)
        elif format == "transformers_low_rank":
            low_rank_class.write(extracted, stage)
        else:
            # Tools of transformers read "format" to learn which framework wrote the tensors.
            tensor_files.write(stage / files.WEIGHTS, states.stored(extracted), {"format": "pt"})
            config = {
                "level": level,
                "of": list(nested.levels),
                "parameters": sum(parameter.numel() for parameter in extracted.parameters()),
                "versions": hugging_face.versions(extracted),
                "model": hugging_face.describe(extracted),
                "tied": states.describe(extracted)["tied"],
            }
            (stage / files.CONFIG).write_text(json_text(config), encoding="utf-8")
