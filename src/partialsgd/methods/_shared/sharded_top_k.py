"""The largest coordinates of tensors that are sharded over ranks: the same ones that a single process would choose."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from partialsgd._util import shards

_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_DIGIT = 16
"""Bits of a magnitude that are counted at a time, by a table of 2¹⁶ numbers that the ranks add up."""


@torch.no_grad()
def largest_sharded(scores: Mapping[str, Tensor], k: int) -> dict[str, Tensor]:
    """Return True at the k largest magnitudes of all tensors together, in the layout of each; of equal ones the first.

    A float that is not negative orders as its bits do. So the k-th largest is found by its bits, the highest first.
    """
    group = shards.one_group(scores.values())
    assert group is not None  # the caller has looked
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    total = sum(score.numel() for score in scores.values())
    for score in scores.values():
        shards.first_index(score)  # raises if its parts do not follow each other in the order of the ranks
    parts = shards.locals_of(scores.values())
    if not 0 < k < total:
        chosen = [torch.full_like(part, k > 0, dtype=torch.bool) for part in parts]
    else:
        bits = _magnitude_bits(parts)
        # A tensor that every rank holds whole is counted by the first rank.
        is_counted = [rank == 0 or shards.is_sharded(score) for score in scores.values()]
        counted = torch.cat([b for b, counts in zip(bits, is_counted, strict=True) if counts] or [bits[0][:0]])
        threshold = _kth_largest(counted, k, group)
        counts = torch.stack([torch.stack([(b >= threshold).sum(), (b == threshold).sum()]) for b in bits])
        counts *= torch.tensor(is_counted, device=counts.device)[:, None]
        of_ranks = [torch.empty_like(counts) for _ in range(ranks)]
        dist.all_gather(of_ranks, counts, group=group)
        every = torch.stack(of_ranks)
        surplus = int(every[..., 0].sum()) - k
        equal = every[..., 1].t().flatten()  # in the order of the coordinates: tensor by tensor, rank by rank
        later = (equal.sum() - equal.cumsum(0)).view(-1, ranks).tolist()
        chosen = []
        for number, (b, score) in enumerate(zip(bits, scores.values(), strict=True)):
            is_equal = b == threshold
            after = later[number][rank if shards.is_sharded(score) else 0] + is_equal.sum() - is_equal.cumsum(0)
            chosen.append((b > threshold) | (is_equal & (after >= surplus)))
    shaped = (inside.view(part.shape) for inside, part in zip(chosen, parts, strict=True))
    return {name: shards.from_part(score, part) for (name, score), part in zip(scores.items(), shaped, strict=True)}


def _magnitude_bits(parts: list[Tensor]) -> list[Tensor]:
    """Return magnitudes as integers of the same order; a NaN is the largest."""
    kind = parts[0].dtype
    for part in parts[1:]:
        kind = torch.promote_types(kind, part.dtype)
    magnitudes = [part.reshape(-1).abs().to(kind).contiguous() for part in parts]
    return [m.view(_INTEGER[m.element_size()]).to(torch.int64) for m in magnitudes]


def _kth_largest(values: Tensor, k: int, group: dist.ProcessGroup) -> int:
    """Return the k-th largest of the integers that the ranks hold; none is negative."""
    digits = 0
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        table = torch.bincount((values >> shift) & ((1 << _DIGIT) - 1), minlength=1 << _DIGIT)
        dist.all_reduce(table, group=group)
        at_least = table.flip(0).cumsum(0)  # how many have the largest digit, one of the two largest, …
        place = int((at_least < k).sum())
        k -= int(at_least[place - 1]) if place else 0
        digit = (1 << _DIGIT) - 1 - place
        digits = (digits << _DIGIT) | digit
        values = values[(values >> shift) & ((1 << _DIGIT) - 1) == digit]
    return digits
