"""The tensors of a network, each once, and what else its state dict does not say: ties and dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Said = dict[str, Any]


def stored(model: nn.Module) -> dict[str, Tensor]:
    """The state dict as a file holds it: on the CPU, each tensor once, none sharing memory."""
    entries = _entries(model)
    tied = ties(entries)
    once: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in entries.items():
        if name not in tied:
            values = tensor.detach().cpu().contiguous()
            place = values.untyped_storage().data_ptr()
            once[name] = values.clone() if place in seen else values
            seen.add(place)
    return once


def describe(model: nn.Module) -> Said:
    """What a fresh network must be told besides its tensors."""
    entries = _entries(model)
    outside = {name: b for name, b in model.named_buffers() if name not in entries}
    return {
        "tied": ties(entries),
        # Rotary frequencies, for one, are in no state dict; a model that was cast has them rounded.
        "dtypes": {name: str(b.dtype).removeprefix("torch.") for name, b in outside.items() if b.is_floating_point()},
    }


def fill(model: nn.Module, said: Said, tensors: Mapping[str, Tensor]) -> None:
    """Give a fresh network the tensors, in the dtypes that they have. It must be the network that was saved."""
    entries = _entries(model)
    whole = {**tensors, **{alias: tensors[name] for alias, name in said["tied"].items()}}
    _require_same(entries, whole, said["tied"])
    for name, entry in entries.items():
        _cast(entry, whole[name].dtype)
    for name, buffer in model.named_buffers():
        if name in said["dtypes"]:
            _cast(buffer, getattr(torch, said["dtypes"][name]))
    model.load_state_dict(whole)


def tie(model: nn.Module, tied: Mapping[str, str]) -> None:
    """Make one parameter of those that were one, where a fresh network has several: they were tied by hand."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for alias, name in tied.items():
        if alias in parameters and name in parameters and parameters[alias].shape == parameters[name].shape:
            owner, _, last = alias.rpartition(".")
            setattr(model.get_submodule(owner), last, parameters[name])


def ties(entries: Mapping[str, Tensor]) -> dict[str, str]:
    """For each further name of a tensor the first one."""
    first: dict[int, str] = {}
    named = {name: first.setdefault(id(tensor), name) for name, tensor in entries.items()}
    return {name: canonical for name, canonical in named.items() if name != canonical}


def _entries(model: nn.Module) -> dict[str, Tensor]:
    entries = dict(model.state_dict(keep_vars=True))
    for name, value in entries.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name!r} of the state dict is a {type(value).__name__}, and a checkpoint holds tensors only: "
                "nothing is pickled; keep it in a buffer, or save it yourself"
            )
        if value.is_meta:
            raise ValueError(f"{name!r} is on the meta device and has no values to save or to load into")
    return entries


def other_model(why: str) -> ValueError:
    """The error for a module that is not the one that was saved."""
    return ValueError(f"the model given is not the one saved: {why}; build it as it was before `nest`")


def _require_same(entries: Mapping[str, Tensor], saved: Mapping[str, Tensor], tied: Mapping[str, str]) -> None:
    for name, entry in entries.items():
        if name not in saved:
            raise other_model(f"{name!r} is in the model and not in the checkpoint")
        if entry.shape != saved[name].shape:
            raise other_model(f"{name!r} is {_size(entry)} in the model and {_size(saved[name])} in the checkpoint")
    for name in saved:
        if name not in entries:
            raise other_model(f"{name!r} is in the checkpoint and not in the model")
    here = ties(entries)
    for name in entries:
        if here.get(name) != tied.get(name):
            one, two = ("checkpoint", "model") if name in tied else ("model", "checkpoint")
            other = tied.get(name) or here[name]
            raise other_model(f"{name!r} and {other!r} are one tensor in the {one} and two in the {two}")


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"


def _cast(tensor: Tensor, dtype: torch.dtype) -> None:
    """The tensor stays the same object, so that ties stay ties."""
    if tensor.dtype != dtype:
        tensor.data = tensor.data.to(dtype)
