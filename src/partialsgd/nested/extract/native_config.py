"""A level of a Hugging Face model as a model of its own class: the configuration that says its sizes."""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch import nn

from partialsgd.nested.layers.kinds import form_of

# For each model_type the fields that say a size, and the layers that show it: the one that takes the hidden units
# of a feed-forward network, or the list of blocks.
_BART = {
    "encoder_ffn_dim": r"encoder\.layers\.\d+\.fc2",
    "decoder_ffn_dim": r"decoder\.layers\.\d+\.fc2",
    "encoder_layers": r"encoder\.layers",
    "decoder_layers": r"decoder\.layers",
}
_FIELDS = {
    "bert": {"intermediate_size": r"layer\.\d+\.output\.dense", "num_hidden_layers": r"encoder\.layer"},
    "gpt2": {"n_inner": r"mlp\.c_proj", "n_layer": r"h"},
    "llama": {"intermediate_size": r"mlp\.down_proj", "num_hidden_layers": r"layers"},
    "t5": {"d_ff": r"wo", "num_layers": r"encoder\.block", "num_decoder_layers": r"decoder\.block"},
    "marian": _BART,
    "mbart": _BART,
    "vit": {"intermediate_size": r"mlp\.fc2", "num_hidden_layers": r"layers"},
}


def adopt(plain: nn.Module) -> str | None:
    """Give an extracted Hugging Face model the configuration of its size; why its class has no such network, if so."""
    config = getattr(plain, "config", None)
    fields = _FIELDS.get(getattr(config, "model_type", ""))
    if fields is None:
        return f"{type(plain).__name__} is not one of the Hugging Face models {', '.join(_FIELDS)}"
    if _difference(plain, _built(plain, config)) is None:
        return None  # the whole network, or one that the configuration describes as it is
    smaller, reasons = copy.deepcopy(config), []
    for name, layers in fields.items():
        try:
            _set(smaller, name, _size(plain, layers))
        except ValueError as error:
            reasons.append(str(error))
    fresh = _built(plain, smaller)
    for name, module in fresh.named_modules() if fresh is not None else ():
        if getattr(module, "config", None) is not None:
            plain.get_submodule(name).config = module.config
    return reasons[0] if reasons else _difference(plain, fresh)


def _built(plain: nn.Module, config: Any) -> nn.Module | None:
    """A network of the class without numbers, or None where the class takes more than a configuration."""
    try:
        with torch.device("meta"):
            return type(plain)(config)
    except (TypeError, ValueError):
        return None


def _difference(plain: nn.Module, fresh: nn.Module | None) -> str | None:
    if fresh is None:
        return f"{type(plain).__name__} cannot be built from its configuration alone"
    ours, theirs = plain.state_dict(), fresh.state_dict()
    for key in {**ours, **theirs}:
        if key not in ours or key not in theirs or ours[key].shape != theirs[key].shape:
            which = "another size of" if key in ours and key in theirs else "no" if key in ours else "also"
            return f"a {type(plain).__name__} has {which} {key!r}: low rank and narrow heads have no class there"
    return None


def _set(config: Any, name: str, value: int | None) -> None:
    if value is not None and getattr(config, name) != value:
        setattr(config, name, value)


def _size(plain: nn.Module, layers: str) -> int | None:
    """The one size of all layers that the expression matches."""
    sizes = {}
    for name, module in plain.named_modules():
        if re.fullmatch(rf"(.*\.)?{layers}", name):
            form = form_of(module)
            sizes[name] = len(module) if isinstance(module, nn.ModuleList) else getattr(form, "inputs", None)
    if not sizes:
        return None
    if any(size is None for size in sizes.values()):
        kind = type(plain).__name__
        raise ValueError(f"low rank has no class of its own in {kind}: {next(iter(sizes))!r} is more than one layer")
    if len(set(sizes.values())) > 1:
        first, other = list({size: name for name, size in sizes.items()}.values())[:2]
        raise ValueError(f"layers of one size are needed, and {first!r} and {other!r} differ")
    return next(iter(sizes.values()))
