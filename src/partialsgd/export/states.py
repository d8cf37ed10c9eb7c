"""The tensors of a model as a file holds them: each once, with a record of ties and dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from partialsgd._util import shards


def stored(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict on the CPU, with tied tensors once and no shared memory."""
    entries = _state_dict(model)
    ties = find_ties(entries)
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in entries.items():
        if name not in ties:
            values = tensor.detach().cpu().contiguous()
            storage = values.untyped_storage().data_ptr()
            tensors[name] = values.clone() if storage in storages else values
            storages.add(storage)
    return tensors


def describe(model: nn.Module) -> dict[str, Any]:
    """Return what a fresh model needs besides the tensors: ties, and dtypes of buffers outside the state dict."""
    entries = _state_dict(model)
    outside = {name: b for name, b in model.named_buffers() if name not in entries}
    return {
        "tied": find_ties(entries),
        # Rotary frequencies, for one, are in no state dict; a model that was cast has them rounded.
        "dtypes": {name: str(b.dtype).removeprefix("torch.") for name, b in outside.items() if b.is_floating_point()},
    }


def fill(model: nn.Module, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors, with their dtypes, into a fresh model; it must be the model that was saved."""
    entries, tied, saved = _state_dict(model), description["tied"], with_ties(tensors, description)
    _require_same_model(entries, saved, tied)
    for name, entry in entries.items():
        _cast(entry, saved[name].dtype)
    for name, buffer in model.named_buffers():
        if name in description["dtypes"]:
            _cast(buffer, getattr(torch, description["dtypes"][name]))
    model.load_state_dict(saved)


def with_ties(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the stored tensors under all of their names."""
    return {**tensors, **{alias: tensors[name] for alias, name in description["tied"].items()}}


def tie(model: nn.Module, tied: Mapping[str, str]) -> None:
    """Tie parameters that were tied when the model was saved, where its class does not do so itself."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for alias, name in tied.items():
        if alias in parameters and name in parameters and parameters[alias].shape == parameters[name].shape:
            owner, _, last = alias.rpartition(".")
            setattr(model.get_submodule(owner), last, parameters[name])


def find_ties(entries: Mapping[str, Tensor]) -> dict[str, str]:
    """Return for each further name of a tensor the first one."""
    first: dict[int, str] = {}
    named = {name: first.setdefault(id(tensor), name) for name, tensor in entries.items()}
    return {name: canonical for name, canonical in named.items() if name != canonical}


def other_model(why: str) -> ValueError:
    """Return the error for a model that is not the one that was saved."""
    return ValueError(f"the model given is not the one saved: {why}; build it as it was before `nest`")


def _state_dict(model: nn.Module) -> dict[str, Tensor]:
    entries = dict(model.state_dict(keep_vars=True))
    for name, value in entries.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name!r} of the state dict is a {type(value).__name__}, and a checkpoint holds tensors only: "
                "nothing is pickled; put it in a buffer, or save it yourself"
            )
        if shards.is_sharded(value):
            raise ValueError(
                f"{name!r} is sharded, and this rank has a part of it only; save the run by ps.distributed.save, or a "
                "level as nested.extract(level), which all ranks must call"
            )
        if value.is_meta:
            raise ValueError(f"{name!r} is on the meta device and has no values to save or to load into")
    return entries


def _require_same_model(entries: Mapping[str, Tensor], saved: Mapping[str, Tensor], tied: Mapping[str, str]) -> None:
    ties = find_ties(entries)
    for name, entry in entries.items():
        if name not in saved:
            raise other_model(f"{name!r} is in the model and not in the checkpoint")
        if entry.shape != saved[name].shape:
            raise other_model(f"{name!r} is {_shape(entry)} in the model and {_shape(saved[name])} in the checkpoint")
    for name in saved:
        if name not in entries:
            raise other_model(f"{name!r} is in the checkpoint and not in the model")
        if ties.get(name) != tied.get(name):
            one, two = ("checkpoint", "model") if name in tied else ("model", "checkpoint")
            other = tied.get(name) or ties[name]
            raise other_model(f"{name!r} and {other!r} are one tensor in the {one} and two in the {two}")


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"


def _cast(tensor: Tensor, dtype: torch.dtype) -> None:
    """Change the dtype in place, so that tied tensors stay one object."""
    if tensor.dtype != dtype:
        tensor.data = tensor.data.to(dtype)
