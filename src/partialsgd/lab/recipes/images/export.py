"""Export of a level of an images run: the code in its README, and the source of the network."""

from __future__ import annotations

import inspect
from pathlib import Path
from string import Template

from partialsgd.lab.recipes.images import resnet
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.training.task import ExportDetails
from partialsgd.nested.switch import FULL

_INPUT_NOTES = """
`scores` takes pixels as they are in the data, (images, channels, height, width), and returns a number for each class.
"""


def details(
    settings: Images, format: str, blocks: tuple[int, ...], shape: tuple[int, ...], classes: int, *, is_full: bool
) -> ExportDetails:
    """Fill in the code for a level with this many blocks in each stage."""
    data = "scikit-learn's digits" if settings.data is None else f"the images in `{Path(settings.data).name}`"
    is_low_rank = settings.nest == "low-rank" and not (is_full and settings.alone in (None, FULL))
    code = Template(_SAFETENSORS if format == "safetensors" else _ONNX).substitute(
        blocks=blocks,
        width=settings.width,
        classes=classes,
        channels=shape[0],
        shape=", ".join(map(str, shape)),
        norm=", norm=False" if settings.norms == "none" else "",
        low_rank=_LOW_RANK if is_low_rank else "",
    )
    return ExportDetails(
        about=f"Classifies images; trained on {data}.",
        packages="torch safetensors" if format == "safetensors" else "onnxruntime numpy",
        code=code.strip("\n"),
        input_notes=_INPUT_NOTES,
        files={"network.py": inspect.getsource(resnet)} if format == "safetensors" else {},
    )


_LOW_RANK = """
for name, layer in list(network.named_modules()):
    if isinstance(layer, nn.Conv2d) and f"{name}.0.weight" in weights:  # a low-rank layer is two layers
        first = nn.Conv2d(1, 1, 1, layer.stride, layer.padding, bias=False)
        network.set_submodule(name, nn.Sequential(first, nn.Conv2d(1, 1, 1, bias=layer.bias is not None)))
"""

_SAFETENSORS = """
import json

import torch
from network import resnet
from safetensors.torch import load_file
from torch import nn

weights = load_file("model.safetensors")
network = resnet($blocks, width=$width, classes=$classes, channels=$channels$norm).eval()
$low_rank
for key, tensor in weights.items():
    name, _, leaf = key.rpartition(".")
    module = network.get_submodule(name)
    setattr(module, leaf, nn.Parameter(tensor) if leaf in module._parameters else tensor)
assert not network.state_dict().keys() - weights.keys()

with open("inputs.json") as file:
    inputs = json.load(file)
mean, deviation = (torch.tensor(inputs[name]).view(1, -1, 1, 1) for name in ("mean", "deviation"))


def scores(pixels):
    with torch.no_grad():
        return network((pixels - mean) / deviation)


print(inputs["classes"][scores(torch.zeros(1, $shape)).argmax()])
"""

_ONNX = """
import json

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
with open("inputs.json") as file:
    inputs = json.load(file)
mean, deviation = (np.array(inputs[name], np.float32).reshape(1, -1, 1, 1) for name in ("mean", "deviation"))


def scores(pixels):
    return session.run(None, {session.get_inputs()[0].name: (pixels - mean) / deviation})[0]


print(inputs["classes"][scores(np.zeros((1, $shape), np.float32)).argmax()])
"""
