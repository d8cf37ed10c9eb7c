"""`save` and `load`: a run as a `torch.distributed.checkpoint`, which any number of ranks, sharded or not, can load.

Every tensor is stored by name, so that optimizer state and memories find their parameters again; parameters that never
had a gradient have no optimizer state, neither before nor after. Numbers and texts are stored together as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from partialsgd._util import shards
from partialsgd.engine.partial_sgd import PartialSGD
from partialsgd.engine.saved_state import check_state, parameter_in

_REST = "partialsgd"


def save(directory: str | os.PathLike[str], sgd: PartialSGD, *, extra: Mapping[str, Any] | None = None) -> None:
    """Save the model, the optimizers and the state of a `PartialSGD` to a directory that all ranks can write to.

    `extra` has numbers, texts and tensors of your own, such as the epoch and the state of a schedule. All ranks must
    call it. torch's random generators are yours to save.
    """
    import torch.distributed.checkpoint as dcp

    tree = {
        "model": sgd.parameters.model.state_dict(),
        "optimizers": {str(k): _optimizer_state(sgd, o) for k, o in enumerate(sgd.optimizers)},
        "sgd": sgd.state_dict(),
        "extra": dict(extra or {}),
    }
    tensors: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for path, value in _leaves(tree, ()):
        if isinstance(value, Tensor):
            tensors[json.dumps(path)] = shards.elementwise(lambda t: t.detach().contiguous(), value)
        else:
            rest[json.dumps(path)] = _checked(path, value)
    dcp.save({**tensors, _REST: json.dumps(rest)}, checkpoint_id=directory)


def load(directory: str | os.PathLike[str], sgd: PartialSGD) -> dict[str, Any]:
    """Load what `save` has saved, and return its `extra`.

    The model may be sharded otherwise than it was, or not at all. A checkpoint of another model, method or optimizer
    raises and changes nothing. All ranks must call it. Load only checkpoints that you trust: torch stores their index
    as a pickle.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = dcp.FileSystemReader(directory)
    stored = dict(reader.read_metadata().state_dict_metadata)
    if stored.pop(_REST, None) is None:
        raise ValueError(f"{os.fspath(directory)} was not written by ps.distributed.save")
    rest: dict[str, Any] = {_REST: ""}
    dcp.load(rest, checkpoint_id=directory)
    sizes = {
        tuple(json.loads(name)): (entry.size, entry.properties.dtype)
        for name, entry in stored.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    model = _require_same_model(sgd, {path[1]: size for path, (size, _) in sizes.items() if path[0] == "model"})
    empty = {path: _empty(sgd, path, *of) for path, of in sizes.items() if path[0] != "model"}
    tensors = {json.dumps(path): tensor for path, tensor in empty.items()}
    if tensors:
        dcp.load(tensors, checkpoint_id=directory)
    tree = _tree({**empty, **{tuple(json.loads(name)): value for name, value in json.loads(rest[_REST]).items()}})
    check_state(tree["sgd"], sgd.state_dict())
    optimizers = [_packed(sgd, k, o, tree["optimizers"]) for k, o in enumerate(sgd.optimizers)]
    sgd.load_state_dict(tree["sgd"])
    for optimizer, state in zip(sgd.optimizers, optimizers, strict=True):
        optimizer.load_state_dict(state)
    dcp.load({json.dumps(["model", name]): tensor for name, tensor in model.items()}, checkpoint_id=directory)
    sgd.zero_grad()  # with sharded models, whole parameters that were gathered before are dropped
    extra: dict[str, Any] = tree["extra"]
    return extra


def _optimizer_state(sgd: PartialSGD, optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer by the names of the parameters."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in sgd.parameters.items()}
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {
        "state": {names[p]: dict(state) for p, state in optimizer.state.items() if state},
        "names": [sorted(names[p] for p in group["params"]) for group in optimizer.param_groups],
        "options": [{key: _number(value) for key, value in group.items()} for group in options],
    }


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, Tensor) else value


def _packed(sgd: PartialSGD, k: int, optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The saved state as `Optimizer.load_state_dict` takes it, with parameters by number instead of by name."""
    own = _optimizer_state(sgd, optimizer)
    if str(k) not in saved or len(saved) != len(sgd.optimizers) or saved[str(k)]["names"] != own["names"]:
        raise ValueError("the checkpoint was saved with optimizers that have other parameters in their groups")
    names = {parameter: name for name, parameter in sgd.parameters.items()}
    listed = [names[p] for group in optimizer.param_groups for p in group["params"]]
    groups, first = [], 0
    for group, options in zip(optimizer.param_groups, saved[str(k)]["options"], strict=True):
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        values |= {key: torch.as_tensor(values[key]) for key in values if isinstance(group.get(key), Tensor)}
        groups.append({**values, "params": list(range(first, first + len(group["params"])))})
        first += len(group["params"])
    state = saved[str(k)].get("state", {})
    return {"state": {i: state[name] for i, name in enumerate(listed) if name in state}, "param_groups": groups}


def _require_same_model(sgd: PartialSGD, saved: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The state dict of the model, whose tensors are those of the model; raise if another one was saved."""
    own: dict[str, Tensor] = sgd.parameters.model.state_dict()
    for name in own.keys() | saved.keys():
        here, there = own[name].shape if name in own else None, saved.get(name)
        if here != there:
            raise ValueError(f"the checkpoint is of another model: {name!r} has shape {there} there, {here} here")
    return own


def _empty(sgd: PartialSGD, path: tuple[str, ...], size: torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor to load into, in the layout of its parameter if it has one number for each coordinate of it."""
    if path[0] == "optimizers":
        name = path[3] if path[4] != "step" and path[3] in sgd.parameters else None
    else:
        name = parameter_in(sgd.parameters, path[-1], size) if path[0] == "sgd" else None
    if name is None or sgd.parameters[name].shape != size:
        return torch.empty(size, dtype=dtype)
    return torch.empty_like(sgd.parameters[name].detach(), dtype=dtype)


def _leaves(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of nested dicts, each with its path; an empty dict is a value."""
    if not isinstance(tree, Mapping) or not tree:
        yield path, tree
        return
    for key, value in tree.items():
        if not isinstance(key, str):
            raise TypeError(f"the keys of a checkpoint must be strings; {'/'.join(path)} has the key {key!r}")
        yield from _leaves(value, (*path, key))


def _tree(values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return tree


def _checked(path: tuple[str, ...], value: Any) -> Any:
    try:
        json.dumps(value)
    except TypeError:
        raise TypeError(f"{'/'.join(path)} is {value!r}; a checkpoint holds tensors, numbers and texts") from None
    return value
