"""‖p ⊙ G‖², ‖p ⊙ G̃‖², ⟨p ⊙ G, p ⊙ G̃⟩ of each parameter: what the criteria are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from partialsgd.masks import Mask
from partialsgd.vectors import Vector, inner


class Squares(NamedTuple):
    """Of one parameter, or added up."""

    whole: float = 0.0
    masked: float = 0.0
    shared: float = 0.0
    perturbed: float = 0.0
    inner: float = 0.0
    left_out: int = 0


def added(numbers: Iterable[Squares]) -> Squares:
    columns = list(zip(*numbers, strict=True))
    return Squares(*(sum(column) for column in columns)) if columns else Squares()


@torch.no_grad()
def squares(
    mask: Mask, at_x: Vector, at_perturbed: Vector, group: dist.ProcessGroup | None = None
) -> dict[str, Squares]:
    """Added up in double precision, moved from the device once, and the same on all processes of the group."""
    names = [name for name in mask if name in at_x or (name in at_perturbed and mask[name] is not False)]
    if not names:
        return {}
    rows = [_row(mask, name, at_x, at_perturbed) for name in names]
    device = next((n.device for row in rows for n in row.values()), torch.device("cpu"))
    zero = torch.zeros((), dtype=torch.float64, device=device)
    order = ("whole", "masked", "perturbed", "inner")
    table = torch.stack([row.get(key, zero).to(device) for row in rows for key in order])
    if group is not None:
        dist.all_reduce(table, group=group)
        table /= dist.get_world_size(group)
    found: dict[str, Squares] = {}
    for name, (whole, masked, perturbed, product) in zip(names, table.view(-1, len(order)).tolist(), strict=True):
        both = name in at_x and name in at_perturbed
        left_out = 0 if both or mask[name] is False else _count(mask, name)
        found[name] = Squares(whole, masked, masked if both else 0.0, perturbed, product, left_out)
    return found


def _row(mask: Mask, name: str, at_x: Vector, at_perturbed: Vector) -> dict[str, Tensor]:
    """What there is of the four numbers; the others are zero."""
    entry, g, h = mask[name], at_x.get(name), at_perturbed.get(name)
    row: dict[str, Tensor] = {} if g is None else {"whole": inner(g, g)}
    if isinstance(entry, Tensor):
        return row | _inside(mask, name, g, h)
    if entry and g is not None:
        row["masked"] = row["whole"]
    if entry and g is not None and h is not None:
        row["perturbed"] = row["masked"] if g is h else inner(h, h)
        row["inner"] = row["masked"] if g is h else inner(g, h)
    return row


def _inside(mask: Mask, name: str, g: Tensor | None, h: Tensor | None) -> dict[str, Tensor]:
    """The same of a parameter that is masked in part, with one buffer for both p ⊙ G and p ⊙ G̃."""
    if g is None:
        return {}
    scratch, selection = mask.parameters.scratch, mask.selection(name)
    buffer = scratch.borrow(g)
    selection.keep_inside(buffer.copy_(g))
    row = {"masked": inner(buffer, buffer)}
    if h is g:
        row |= {"perturbed": row["masked"], "inner": row["masked"]}
    elif h is not None:
        row["inner"] = inner(buffer, h)
        selection.keep_inside(buffer.copy_(h))
        row["perturbed"] = inner(buffer, buffer)
    scratch.give_back(buffer)
    return row


def _count(mask: Mask, name: str) -> int:
    entry = mask[name]
    return int(entry.count_nonzero()) if isinstance(entry, Tensor) else mask.parameters[name].numel()
