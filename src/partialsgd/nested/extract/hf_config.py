"""The Hugging Face config of an extracted level, where the level is a smaller model of the same class."""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch import nn

from partialsgd.nested.layers.linear_maps import linear_map_of

# For each model_type the config fields that hold a size, and a pattern for the modules that show it: the layer that
# takes the hidden units of a feed-forward network, or the list of blocks.
_BART = {
    "encoder_ffn_dim": r"encoder\.layers\.\d+\.fc2",
    "decoder_ffn_dim": r"decoder\.layers\.\d+\.fc2",
    "encoder_layers": r"encoder\.layers",
    "decoder_layers": r"decoder\.layers",
}
_SIZE_FIELDS = {
    "bert": {"intermediate_size": r"layer\.\d+\.output\.dense", "num_hidden_layers": r"encoder\.layer"},
    "gpt2": {"n_inner": r"mlp\.c_proj", "n_layer": r"h"},
    "llama": {"intermediate_size": r"mlp\.down_proj", "num_hidden_layers": r"layers"},
    "t5": {"d_ff": r"wo", "num_layers": r"encoder\.block", "num_decoder_layers": r"decoder\.block"},
    "marian": _BART,
    "mbart": _BART,
    "vit": {"intermediate_size": r"mlp\.fc2", "num_hidden_layers": r"layers"},
}


def fit_config(extracted: nn.Module) -> str | None:
    """Set the sizes in the config of an extracted model; return why its class has no such network, or None."""
    config = getattr(extracted, "config", None)
    fields = _SIZE_FIELDS.get(getattr(config, "model_type", ""))
    if fields is None:
        return f"{type(extracted).__name__} is not one of the Hugging Face models {', '.join(_SIZE_FIELDS)}"
    if _difference(extracted, _without_values(extracted, config)) is None:
        return None  # the config describes the level already
    smaller, reasons = copy.deepcopy(config), []
    for name, pattern in fields.items():
        try:
            size = _common_size(extracted, pattern)
        except ValueError as error:
            reasons.append(str(error))
            continue
        if size is not None and getattr(smaller, name) != size:
            setattr(smaller, name, size)
    fresh = _without_values(extracted, smaller)
    for name, module in fresh.named_modules() if fresh is not None else ():
        if getattr(module, "config", None) is not None:
            extracted.get_submodule(name).config = module.config
    return reasons[0] if reasons else _difference(extracted, fresh)


def _without_values(extracted: nn.Module, config: Any) -> nn.Module | None:
    """Build a model of the class on the meta device, or None if the class takes more than a config."""
    try:
        with torch.device("meta"):
            return type(extracted)(config)
    except (TypeError, ValueError):
        return None


def _difference(extracted: nn.Module, fresh: nn.Module | None) -> str | None:
    class_name = type(extracted).__name__
    if fresh is None:
        return f"{class_name} cannot be built from its config alone"
    own, expected = extracted.state_dict(), fresh.state_dict()
    for key in {**own, **expected}:
        if key not in own or key not in expected or own[key].shape != expected[key].shape:
            which = "another size of" if key in own and key in expected else "no" if key in own else "also"
            return f"a {class_name} has {which} {key!r}: no Hugging Face class has low rank or narrow heads"
    return None


def _common_size(extracted: nn.Module, pattern: str) -> int | None:
    """Return the size of all modules that match the pattern, which must be the same; None if none matches."""
    sizes: dict[str, int | None] = {}
    for name, module in extracted.named_modules():
        if re.fullmatch(rf"(.*\.)?{pattern}", name):
            is_list = isinstance(module, nn.ModuleList)
            sizes[name] = len(module) if is_list else getattr(linear_map_of(module), "inputs", None)
    if not sizes:
        return None
    if None in sizes.values():
        first = next(iter(sizes))
        raise ValueError(f"no Hugging Face class has low rank: {first!r} of {type(extracted).__name__} is two layers")
    if len(set(sizes.values())) > 1:
        first, other = list({size: name for name, size in sizes.items()}.values())[:2]
        raise ValueError(f"a config has one size for all layers, and those of {first!r} and {other!r} differ")
    return next(iter(sizes.values()))
