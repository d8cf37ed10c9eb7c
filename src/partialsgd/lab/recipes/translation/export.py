"""Export of a level of a translation run: the code in its README, and the tokenizer of transformers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.training.task import ExportDetails
from partialsgd.nested.switch import FULL

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PACKAGES = {
    "safetensors": "torch transformers tokenizers safetensors",
    "onnx": "onnxruntime tokenizers numpy",
    "transformers": "torch transformers",
}
_DYNAMIC = {"input_ids": {1: "source"}, "attention_mask": {1: "source"}, "decoder_input_ids": {1: "target"}}


def details(settings: Translation, format: str, tokenizer: Tokenizer, example: str, *, is_full: bool) -> ExportDetails:
    """Fill in the code for a level; `example` is a sentence to translate."""
    data = "phrases generated from the Unicode locale data"
    if settings.data is not None:
        data = f"the sentences in `{Path(settings.data).name}`"
    is_original = is_full and settings.alone in (None, FULL)
    code = Template({"safetensors": _SAFETENSORS, "onnx": _ONNX, "transformers": _TRANSFORMERS}[format]).substitute(
        text=repr(example),
        longest=settings.longest,
        smaller="" if is_original else _SMALLER.get(settings.nest, ""),
    )
    return ExportDetails(
        about=f"Translates {settings.source} to {settings.target}; trained on {data}.",
        packages=_PACKAGES[format],
        code=code.strip("\n"),
        files=_auto_tokenizer(tokenizer) if format == "transformers" else {},
        dynamic=_DYNAMIC,
    )


def _auto_tokenizer(tokenizer: Tokenizer) -> dict[str, str]:
    """The files from which `AutoTokenizer.from_pretrained` loads the tokenizer."""
    transformers: Any = import_module("transformers")
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )
    with TemporaryDirectory() as folder:
        wrapped.save_pretrained(folder)
        return {file.name: file.read_text(encoding="utf-8") for file in Path(folder).iterdir()}


_SMALLER = {
    "low-rank": """
for name, layer in list(network.named_modules()):
    if isinstance(layer, nn.Linear) and f"{name}.0.weight" in weights:  # a low-rank layer is two layers
        factors = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=layer.bias is not None)
        network.set_submodule(name, nn.Sequential(*factors))
""",
    "width": """
heads = network.config.encoder_attention_heads
for name, layer in list(network.named_modules()):
    if isinstance(layer, nn.Linear) and f"{name}.0.weight" in weights:  # fewer units in each head, padded with zeros
        units = len(weights[f"{name}.0.weight"]) // heads
        zeros = nn.ConstantPad1d((0, layer.out_features // heads - units), 0.0)
        split = nn.Unflatten(-1, (heads, units))
        network.set_submodule(name, nn.Sequential(nn.Linear(1, 1), split, zeros, nn.Flatten(-2)))
""",
}

_SAFETENSORS = """
import json

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn

with open("config.json") as file:
    config = json.load(file)
weights = load_file("model.safetensors")
weights |= {name: weights[first] for name, first in config["tied"].items()}
kind = getattr(transformers, config["model"]["transformers"])
network = kind(kind.config_class.from_dict(config["model"]["config"])).eval()
network.generation_config = transformers.GenerationConfig.from_dict(config["model"]["generation"])
$smaller
for key, tensor in weights.items():
    name, _, leaf = key.rpartition(".")
    module = network.get_submodule(name)
    setattr(module, leaf, nn.Parameter(tensor) if leaf in module._parameters else tensor)
assert not network.state_dict().keys() - weights.keys()

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.encode_special_tokens = True  # "</s>" in a text is text


def translate(text, **options):
    ids = network.generate(torch.tensor([tokenizer.encode(text).ids]), **options)
    return tokenizer.decode(ids[0].tolist())


print(translate($text))
"""

_ONNX = """
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.encode_special_tokens = True  # "</s>" in a text is text
session = onnxruntime.InferenceSession("model.onnx")
END = tokenizer.token_to_id("</s>")  # a target also begins with it


def translate(text, longest=$longest):
    source = np.array([tokenizer.encode(text).ids])
    inputs = {"input_ids": source, "attention_mask": np.ones_like(source)}
    target = [END]
    while len(target) < longest:  # greedy search
        [logits] = session.run(["logits"], {**inputs, "decoder_input_ids": np.array([target])})
        target.append(int(logits[0, -1].argmax()))
        if target[-1] == END:
            break
    return tokenizer.decode(target)


print(translate($text))
"""

_TRANSFORMERS = """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".", split_special_tokens=True)  # "</s>" in a text is text
network = AutoModelForSeq2SeqLM.from_pretrained(".").eval()


def translate(text, **options):
    ids = network.generate(**tokenizer(text, return_tensors="pt"), **options)
    return tokenizer.decode(ids[0], skip_special_tokens=True)


print(translate($text))
"""
