"""Code for the README of an exported level. It runs in the directory of the files, without this package."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any


def code(recipe: str, format: str, smaller: str, values: Mapping[str, Any]) -> str:
    """The code that loads a level; `smaller` says how its layers differ from the whole network's."""
    pieces = {"smaller": SMALLER.get((recipe, smaller), ""), "numbers": NUMBERS}
    return Template(LOADERS[recipe, format]).substitute(pieces, **values).strip("\n")


NUMBERS = """
for key, tensor in weights.items():
    place, _, leaf = key.rpartition(".")
    module = network.get_submodule(place)
    setattr(module, leaf, nn.Parameter(tensor) if leaf in module._parameters else tensor)
assert not network.state_dict().keys() - weights.keys()
"""

SMALLER = {
    ("translation", "low-rank"): """
for name, layer in list(network.named_modules()):
    if isinstance(layer, nn.Linear) and f"{name}.0.weight" in weights:  # a layer of low rank is two
        factors = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=layer.bias is not None)
        network.set_submodule(name, nn.Sequential(*factors))
""",
    ("translation", "width"): """
heads = network.config.encoder_attention_heads
for name, layer in list(network.named_modules()):
    if isinstance(layer, nn.Linear) and f"{name}.0.weight" in weights:  # fewer units in each head, then zeros
        units = len(weights[f"{name}.0.weight"]) // heads
        zeros = nn.ConstantPad1d((0, layer.out_features // heads - units), 0.0)
        split = nn.Unflatten(-1, (heads, units))
        network.set_submodule(name, nn.Sequential(nn.Linear(1, 1), split, zeros, nn.Flatten(-2)))
""",
    ("images", "low-rank"): """
for name, layer in list(network.named_modules()):
    if isinstance(layer, nn.Conv2d) and f"{name}.0.weight" in weights:  # a layer of low rank is two
        first = nn.Conv2d(1, 1, 1, layer.stride, layer.padding, bias=False)
        network.set_submodule(name, nn.Sequential(first, nn.Conv2d(1, 1, 1, bias=layer.bias is not None)))
""",
}

LOADERS = {
    ("translation", "safetensors"): """
import json

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn

with open("config.json") as file:
    said = json.load(file)
weights = load_file("model.safetensors")
weights |= {name: weights[first] for name, first in said["tied"].items()}
kind = getattr(transformers, said["model"]["transformers"])
network = kind(kind.config_class.from_dict(said["model"]["config"])).eval()
network.generation_config = transformers.GenerationConfig.from_dict(said["model"]["generation"])
$smaller$numbers
tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.encode_special_tokens = True  # "</s>" in a text is text


def translate(text, **options):
    ids = network.generate(torch.tensor([tokenizer.encode(text).ids]), **options)
    return tokenizer.decode(ids[0].tolist())


print(translate($text))
""",
    ("translation", "onnx"): """
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.encode_special_tokens = True  # "</s>" in a text is text
session = onnxruntime.InferenceSession("model.onnx")
END = tokenizer.token_to_id("</s>")  # with which a target begins, too


def translate(text, longest=$longest):
    source = np.array([tokenizer.encode(text).ids])
    inputs = {"input_ids": source, "attention_mask": np.ones_like(source)}
    target = [END]
    while len(target) < longest:  # the most probable token, again and again
        [logits] = session.run(["logits"], {**inputs, "decoder_input_ids": np.array([target])})
        target.append(int(logits[0, -1].argmax()))
        if target[-1] == END:
            break
    return tokenizer.decode(target)


print(translate($text))
""",
    ("translation", "transformers"): """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".", split_special_tokens=True)  # "</s>" in a text is text
network = AutoModelForSeq2SeqLM.from_pretrained(".").eval()


def translate(text, **options):
    ids = network.generate(**tokenizer(text, return_tensors="pt"), **options)
    return tokenizer.decode(ids[0], skip_special_tokens=True)


print(translate($text))
""",
    ("images", "safetensors"): """
import json

import torch
from network import resnet
from safetensors.torch import load_file
from torch import nn

weights = load_file("model.safetensors")
network = resnet($blocks, width=$width, classes=$classes, channels=$channels$norm).eval()
$smaller$numbers
with open("inputs.json") as file:
    said = json.load(file)
mean, deviation = (torch.tensor(said[name]).view(1, -1, 1, 1) for name in ("mean", "deviation"))


def scores(pixels):
    with torch.no_grad():
        return network((pixels - mean) / deviation)


print(said["classes"][scores(torch.zeros(1, $shape)).argmax()])
""",
    ("images", "onnx"): """
import json

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
with open("inputs.json") as file:
    said = json.load(file)
mean, deviation = (np.array(said[name], np.float32).reshape(1, -1, 1, 1) for name in ("mean", "deviation"))


def scores(pixels):
    return session.run(None, {session.get_inputs()[0].name: (pixels - mean) / deviation})[0]


print(said["classes"][scores(np.zeros((1, $shape), np.float32)).argmax()])
""",
    ("tabular", "safetensors"): """
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

weights = load_file("model.safetensors")
deep = {name.removeprefix("core."): tensor for name, tensor in weights.items() if "extension." not in name}


def scores(numbers, crosses=None, categories=None):
    x = numbers
    if categories is not None:
        x = torch.cat([x, F.embedding(categories, deep["words.weight"]).flatten(1)], 1)
    for k in range(0, $layers, 2):
        x = F.linear(x.relu() if k else x, deep[f"mlp.{k}.weight"], deep[f"mlp.{k}.bias"])
    if "extension.numbers.weight" in weights:
        x = x + F.linear(numbers, weights["extension.numbers.weight"], weights["extension.numbers.bias"])
        x = x + F.embedding(crosses, weights["extension.crosses.weight"]).sum(1)
    return torch.sigmoid(x.squeeze(1))


print(scores($inputs))
""",
    ("tabular", "onnx"): """
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")


def scores(*inputs):
    names = [said.name for said in session.get_inputs()]
    [logits] = session.run(None, dict(zip(names, inputs)))
    return 1 / (1 + np.exp(-logits))


print(scores($inputs))
""",
}
