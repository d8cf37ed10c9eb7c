"""Low-rank levels for the Hugging Face Hub: a file of code in the folder, which `auto_map` of config.json names.

No class of transformers has layers of low rank, so the folder brings a subclass that replaces them. It needs torch and
transformers only. Its weights are in `model.low_rank.safetensors`: the class of transformers itself does not find them
there, and raises, where it would otherwise draw the weights that it misses at random.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partialsgd.export import hugging_face

CODE = "modeling_low_rank.py"
_OTHERS = 'format="safetensors" or "onnx"'
_TEMPLATE = '''"""{base} with layers of low rank. It needs torch and transformers only; partialsgd wrote it."""

from torch import nn
from transformers import {base}


class LowRank(nn.Sequential):
    """Two layers in the place of one: V(Ux) + b."""

    def __init__(self, layer, rank):
        outputs, has_bias = self.outputs_of(layer), layer.bias is not None
        if isinstance(layer, nn.Conv2d):
            options = dict(stride=layer.stride, padding=layer.padding, dilation=layer.dilation)
            first = nn.Conv2d(
                layer.in_channels, rank, layer.kernel_size, bias=False, padding_mode=layer.padding_mode, **options
            )
            super().__init__(first, nn.Conv2d(rank, outputs, 1, bias=has_bias))
        else:
            inputs = layer.in_features if isinstance(layer, nn.Linear) else layer.weight.shape[0]
            super().__init__(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=has_bias))
        # What other code reads of a layer, such as in_features and stride.
        vars(self).update({{name: value for name, value in vars(layer).items() if not name.startswith("_")}})

    @staticmethod
    def outputs_of(layer):
        if isinstance(layer, nn.Conv2d):
            return layer.out_channels
        return layer.out_features if isinstance(layer, nn.Linear) else layer.weight.shape[1]

    @property
    def weight(self):
        """For code that asks for the dtype or device of a layer's weight."""
        return self[0].weight

    @property
    def bias(self):
        return self[1].bias


class {name}({base}):
    """{base} whose layers that `config.low_rank` names have the rank that stands there."""

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        for name, rank in config.low_rank.items():
            self.set_submodule(name, LowRank(self.get_submodule(name), rank))

    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        return super().from_pretrained(*args, **{{"variant": "low_rank", **kwargs}})

    def save_pretrained(self, *args, **kwargs):
        return super().save_pretrained(*args, **{{"variant": "low_rank", **kwargs}})
'''


def build(extracted: nn.Module, level: str) -> Any:
    """Return the extracted level as a model of the class in the folder; refuse a level that is more than low rank."""
    if not hugging_face.is_hugging_face(extracted):
        raise ValueError(f"{type(extracted).__name__} is not a model of transformers; use {_OTHERS}")
    source: Any = extracted
    config = copy.deepcopy(source.config)
    with torch.device("meta"):
        base = type(source)(copy.deepcopy(config))
    layers = {name: layer for name, layer in base.named_modules() if not isinstance(layer, nn.Sequential)}
    pairs = {n: m for n, m in extracted.named_modules() if isinstance(m, nn.Sequential) and n in layers}
    config.low_rank = {name: _rank(pair) for name, pair in pairs.items()}
    if not config.low_rank:
        raise ValueError(f'the level {level!r} has no layer of low rank; use format="transformers"')
    low_rank_class = _class(type(source))
    config.auto_map = {auto: f"{Path(CODE).stem}.{low_rank_class.__name__}" for auto in _auto_classes(type(source))}
    with torch.random.fork_rng(devices=[]):  # the weights that it draws are overwritten
        model = low_rank_class(config).to(source.dtype)
    try:
        model.load_state_dict(extracted.state_dict())
    except RuntimeError as error:
        raise ValueError(
            f"the level {level!r} is more than a {type(source).__name__} with layers of low rank ({error}); "
            f"use {_OTHERS}"
        ) from error
    model.generation_config = copy.deepcopy(getattr(source, "generation_config", None))
    return model.eval()


def write(model: Any, directory: Path) -> None:
    """Write weights, config and code, and compare the weights with what `from_pretrained` reads."""
    base = type(model).__mro__[1].__name__
    (directory / CODE).write_text(_code(base), encoding="utf-8")
    hugging_face.save_pretrained(model, directory)


def _code(base: str) -> str:
    return _TEMPLATE.format(base=base, name=f"LowRank{base}")


def _class(base: type) -> Any:
    """Run the code that is written: only the name of a class that transformers has is filled in."""
    namespace: dict[str, Any] = {"__name__": Path(CODE).stem}
    exec(compile(_code(base.__name__), CODE, "exec"), namespace)
    return namespace[f"LowRank{base.__name__}"]


def _auto_classes(model_class: type) -> list[str]:
    """Return the names of the Auto classes that would build this class, such as AutoModelForCausalLM."""
    transformers = sys.modules["transformers"]
    names = [name for name in dir(transformers) if name.startswith("AutoModel")]
    mappings = {name: getattr(getattr(transformers, name), "_model_mapping", None) for name in names}
    return [name for name, mapping in mappings.items() if mapping and model_class.__name__ in _class_names(mapping)]


def _class_names(mapping: Any) -> set[str]:
    entries = mapping._model_mapping.values()
    return {name for entry in entries for name in (entry if isinstance(entry, (list, tuple)) else (entry,))}


def _rank(pair: nn.Sequential) -> int:
    weight = pair[0].weight
    assert isinstance(weight, torch.Tensor)
    return int(weight.shape[0])
