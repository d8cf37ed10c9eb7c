"""Outputs that a step keeps for the next one, which repeats its batch: a teacher that costs no further pass.

They lie in the memory of the run, so that a run that is stopped in between goes on with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor

from partialsgd.method import Remembered

Batch: TypeAlias = Tensor | int | str
"""A batch, or a number or text that names it."""

_PREFIX = "cached."
_LEVEL, _RANK, _COUNT = f"{_PREFIX}level", f"{_PREFIX}rank", f"{_PREFIX}micro_batches"
_BATCH, _OUTPUTS = f"{_PREFIX}batch.", f"{_PREFIX}outputs."


class CachedOutputs(NamedTuple):
    """A batch, or one of several micro-batches, and the outputs of the level that was trained on it."""

    batch: Batch
    outputs: Tensor


def cached_level(memory: Mapping[str, Remembered]) -> str | None:
    """The level whose outputs are kept, or None."""
    level = memory.get(_LEVEL)
    return None if level is None else str(level)


def read(memory: Mapping[str, Remembered], device: torch.device) -> list[CachedOutputs]:
    """The outputs of the step before this one. Those of another process are of other data, and raise."""
    if memory.get(_RANK) != _rank():
        raise RuntimeError(
            f"the cached outputs are those of rank {memory.get(_RANK)}, and this is rank {_rank()}: save the state "
            "where sgd.repeats_batch is False, or load on each rank the state that it has saved"
        )
    batches = [cast(Batch, memory[f"{_BATCH}{number}"]) for number in range(int(cast(int, memory[_COUNT])))]
    outputs = [cast(Tensor, memory[f"{_OUTPUTS}{number}"]).to(device) for number in range(len(batches))]
    return [CachedOutputs(*pair) for pair in zip(batches, outputs, strict=True)]


def write(memory: MutableMapping[str, Remembered], level: str | None, cached: Sequence[CachedOutputs]) -> None:
    """Keep these outputs in place of those that were kept; without any, keep nothing."""
    for key in [key for key in memory if key.startswith(_PREFIX)]:
        del memory[key]
    if not cached:
        return
    memory[_LEVEL], memory[_RANK], memory[_COUNT] = level or "", _rank(), len(cached)
    for number, (batch, outputs) in enumerate(cached):
        memory[f"{_BATCH}{number}"], memory[f"{_OUTPUTS}{number}"] = batch, outputs


def require_same(cached: Sequence[CachedOutputs], number: int, batch: Batch) -> None:
    """Raise if this is not the batch that the outputs with this number are of."""
    if number < len(cached) and _are_equal(cached[number].batch, batch):
        return
    raise RuntimeError(
        "g.batch is not the batch of the step before, whose outputs are the teacher: while sgd.repeats_batch is True "
        "the loop must take its last batch again, with the same micro-batches in the same order"
    )


def copied(batch: Batch) -> Batch:
    """The batch as it is kept; loops fill the same tensor again."""
    if isinstance(batch, Tensor):
        return batch.detach().clone()
    if isinstance(batch, bool) or not isinstance(batch, (int, str)):
        raise TypeError(f"g.batch must be a tensor of the batch, or a number or text that names it; got {batch!r}")
    return batch


def _are_equal(kept: Batch, batch: Batch) -> bool:
    if isinstance(kept, Tensor) and isinstance(batch, Tensor):
        return kept.dtype == batch.dtype and torch.equal(kept.to(batch.device), batch)
    return type(kept) is type(batch) and kept == batch


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
