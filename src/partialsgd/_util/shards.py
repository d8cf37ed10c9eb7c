"""Tensors of which each rank holds a part: DTensors, as `torch.distributed.fsdp.fully_shard` makes of parameters.

Coordinate-wise arithmetic is done on the parts; sums over coordinates are added up over the ranks. A mask, a gradient
or a remembered tensor of a sharded parameter is a DTensor of the parameter's layout, so its shape is the whole one.
Other tensors are returned as they are. Nothing here imports `torch.distributed.tensor` before there is a DTensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

_PLAIN = frozenset({Tensor, nn.Parameter})


def is_sharded(tensor: object) -> bool:
    """True for a DTensor."""
    return type(tensor) not in _PLAIN and isinstance(tensor, Tensor) and hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """The part that this rank holds, without a graph: what is written into it is written into the tensor."""
    return _part(tensor) if is_sharded(tensor) else tensor


def locals_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [local(tensor) for tensor in tensors]


def local_values(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts that this rank holds, by name; one tensor under two names stays one."""
    parts = {id(tensor): local(tensor) for tensor in tensors.values()}
    return {name: parts[id(tensor)] for name, tensor in tensors.items()}


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that has the shape of `like`: whole on this rank, or sharded as `like` is."""
    return local(whole) if is_sharded(whole) or not is_sharded(like) else whole[_slices(like)]


def sharded_like(like: Tensor, whole: Tensor) -> Tensor:
    """A tensor of the shape of `like` in the layout of `like`: sharded if that is, and whole if that is."""
    if is_sharded(like):
        return whole if is_sharded(whole) else from_part(like, part_of(whole, like))
    return gathered(whole)


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor, on every rank; all of them must call it."""
    with torch.no_grad():
        return tensor.detach().full_tensor() if _is_dtensor(tensor) else tensor


def from_part(like: Tensor, part: Tensor) -> Tensor:
    """Return the tensor in the layout of `like` whose part on this rank is `part`; it may have one number a row."""
    if not _is_dtensor(like):
        return part
    from torch.distributed.tensor import DTensor

    shape = like.shape[: part.ndim]
    strides = torch.empty(shape, device="meta").stride()
    tensor: Tensor = DTensor.from_local(part, like.device_mesh, like.placements, shape=shape, stride=strides)
    return tensor


def elementwise(operation: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply an operation that works coordinate by coordinate, or row by row, to tensors of one layout."""
    return from_part(tensors[0], operation(*locals_of(tensors)))


def drawn(like: Tensor, draw: Callable[[torch.Size, int], Tensor]) -> Tensor:
    """A tensor that `draw(shape, start)` fills as a function of the coordinate's index, the first being `start`.

    Each rank draws its own part only, and the tensor is the same however it is sharded.
    """
    if not is_sharded(like):
        return draw(like.shape, 0)
    return from_part(like, draw(local(like).shape, first_index(like)))


def first_index(like: Tensor) -> int:
    """The index, in the flat tensor, of the first coordinate of this rank's part."""
    if not is_sharded(like):
        return 0
    _, offsets = _layout(like)
    if any(offsets[1:]) or local(like).shape[1:] != like.shape[1:]:
        raise NotImplementedError(
            f"a parameter of shape {tuple(like.shape)} is sharded as {_placements(like)}, so that a rank's part is not "
            "one piece of it; masks of single coordinates need parameters that are sharded by rows, Shard(0)"
        )
    return offsets[0] * math.prod(like.shape[1:])


def add_up(numbers: Tensor, of: Sequence[Tensor]) -> Tensor:
    """Add row k of `numbers`, which each rank computed from its part of the k-th tensor, over the ranks that share it.

    Every rank gets the same sums. Rows of tensors that are not sharded stay as they are.
    """
    rows_of_group: dict[dist.ProcessGroup, list[int]] = {}
    for k, tensor in enumerate(of):
        for group in groups_of(tensor):
            rows_of_group.setdefault(group, []).append(k)
    for group, rows in rows_of_group.items():
        part = numbers[rows]
        dist.all_reduce(part, group=group)
        numbers[rows] = part
    return numbers


def groups_of(tensor: Tensor) -> list[dist.ProcessGroup]:
    """The groups of ranks that hold different parts of the tensor; none if each rank holds all of it."""
    if not _is_dtensor(tensor):
        return []
    mesh = tensor.device_mesh
    return [mesh.get_group(dim) for dim, placement in enumerate(tensor.placements) if placement.is_shard()]


def mesh_groups(tensors: Iterable[Tensor]) -> list[dist.ProcessGroup]:
    """The groups of ranks along every dimension of the meshes of sharded tensors, those of copies included."""
    meshes = dict.fromkeys(tensor.device_mesh for tensor in tensors if _is_dtensor(tensor))
    return [mesh.get_group(dim) for mesh in meshes for dim in range(mesh.ndim)]


def one_group(tensors: Iterable[Tensor]) -> dist.ProcessGroup | None:
    """The group of ranks that share the tensors; None if none is sharded. Raise if they are shared differently."""
    layouts = {tuple(groups) for tensor in tensors if (groups := groups_of(tensor))}
    if len(layouts) > 1 or any(len(groups) > 1 for groups in layouts):
        raise NotImplementedError(
            "the parameters are sharded over different groups of ranks, and the largest coordinates are found in one "
            "group only: call fully_shard with the same mesh for all modules, with one dimension that shards"
        )
    return next(iter(layouts))[0] if layouts else None


def fsdp_roots(model: nn.Module) -> list[Any]:
    """The outermost modules of the model that `fully_shard` was applied to."""
    inside: set[nn.Module] = set()
    roots = []
    for module in model.modules():
        if hasattr(module, "reset_iter_state") and module not in inside:
            roots.append(module)
            inside.update(module.modules())
    return roots


def class_of(module: nn.Module) -> type[nn.Module]:
    """The class of a module, as it was before `fully_shard` gave it a class of its own."""
    kind = type(module)
    original: type[nn.Module] = kind.__mro__[getattr(kind, "_orig_cls_mro_index", 0)]
    return original


def reset(root: Any) -> None:
    """Make `fully_shard` drop the whole parameters that it holds, and what is left of a pass that raised."""
    is_root = root._get_fsdp_state()._is_root  # None before the first pass, when there is nothing to drop
    if is_root:
        root.reset_iter_state()
    elif is_root is False:  # the model is a part of a larger one
        for module in root.modules():
            if hasattr(module, "reset_iter_state"):
                module.reshard()


def _is_dtensor(tensor: Any) -> TypeGuard[Any]:
    return is_sharded(tensor)


def _part(tensor: Any) -> Tensor:
    with torch.no_grad():
        part: Tensor = tensor.detach().to_local()
    return part


def _layout(tensor: Any) -> tuple[Sequence[int], Sequence[int]]:
    """The shape of this rank's part, and its place in the whole tensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)


def _slices(tensor: Tensor) -> tuple[slice, ...]:
    shape, offsets = _layout(tensor)
    return tuple(slice(offset, offset + length) for offset, length in zip(offsets, shape, strict=True))


def _placements(tensor: Any) -> str:
    return ", ".join(map(str, tensor.placements))
