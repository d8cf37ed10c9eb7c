"""Communication hooks of DistributedDataParallel: they pack the elements inside a mask, or compress them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from partialsgd._util.bitwise_select import rows_of
from partialsgd.distributed.compression import Compression, Payload
from partialsgd.engine.data_parallel import GradientsToSend
from partialsgd.masks import Entry


@final
@dataclass
class Outgoing:
    """The current pass, as the hooks need it: which gradients to send, over which group, and how compressed."""

    name_of: Mapping[nn.Parameter, str]
    group: dist.ProcessGroup
    compression: Compression | None
    gradients: GradientsToSend | None = None
    """The gradients that this pass sends; None if no `PartialSGD` runs it, so that all are sent."""

    def entries(self, bucket: Any) -> list[tuple[str, Tensor, Entry]]:
        """Name, gradient and mask of each parameter in the bucket of which anything is sent."""
        mask = None if self.gradients is None else self.gradients.mask
        names = [self.name_of[parameter] for parameter in bucket.parameters()]
        entries = [True if mask is None else mask.entries[name] for name in names]
        return [each for each in zip(names, bucket.gradients(), entries, strict=True) if each[2] is not False]


def register_hook(reducer: DistributedDataParallel, how: str, outgoing: Outgoing) -> None:
    """Register the hook that sends gradients this way; "" is torch's own reduction.

    torch's PowerSGD begins further exchanges when the first has ended. With several buckets at once, the processes
    may do so in different orders, so it has one bucket.
    """
    if how == "packed":
        reducer.register_comm_hook(outgoing, _packed)
    elif how == "compressed":
        reducer.register_comm_hook(outgoing, _compressed)
    elif how == "PowerSGD" and outgoing.compression is not None:
        reducer.register_comm_hook(*outgoing.compression.power_sgd_hook(outgoing.group))


def _packed(outgoing: Outgoing, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations, not their text
    """Average the numbers inside the mask; the others become zero."""
    entries = outgoing.entries(bucket)
    if not entries:
        return _nothing(bucket)
    packed = torch.cat([inside(gradient, entry) for _, gradient, entry in entries])
    packed.mul_(1.0 / dist.get_world_size(outgoing.group))  # before the sum, as DistributedDataParallel does
    work = dist.all_reduce(packed, group=outgoing.group, async_op=True)
    assert work is not None

    def unpack(future: Future[list[Tensor]]) -> Tensor:
        return _spread(bucket, entries, future.value()[0])

    return work.get_future().then(unpack)


def _compressed(outgoing: Outgoing, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations, not their text
    """Average what the compression chooses; the rest becomes zero, and is remembered."""
    compression, gradients = outgoing.compression, outgoing.gradients
    assert compression is not None and gradients is not None and gradients.trained is not None
    context, entries = gradients.trained, outgoing.entries(bucket)
    if not entries:
        return _nothing(bucket)
    scale = 1.0 if gradients.scaler is None else gradients.scaler.scale
    payloads = [_payload(compression, context, scale, *entry) for entry in entries]
    world = dist.get_world_size(outgoing.group)
    message = compression.message(payloads)
    if compression.sends_indices:
        received = [torch.empty_like(message) for _ in range(world)]
        work = dist.all_gather(received, message, group=outgoing.group, async_op=True)
    else:
        received, work = [message], dist.all_reduce(message, group=outgoing.group, async_op=True)
    assert work is not None

    def decode(future: Future[Any]) -> Tensor:
        future.wait()
        return _spread(bucket, entries, compression.mean(received, payloads, world))

    return work.get_future().then(decode)


def _payload(
    compression: Compression, context: Any, scale: float, name: str, gradient: Tensor, entry: Entry
) -> Payload:
    """Encode a gradient that is multiplied by `scale`; the memory holds it without: a loss scale changes."""
    unsent = compression.unsent_of(name)
    payload, rest = compression.encode(
        context, name, inside(gradient, entry), None if unsent is None else inside(unsent, entry) * scale
    )
    if rest is not None:
        remembered = torch.zeros_like(gradient) if unsent is None else unsent.clone()
        put_inside(remembered, entry, rest / scale)
        compression.remember(name, remembered)
    return payload


def _nothing(bucket: Any) -> Future[Tensor]:
    """The answer for a bucket of which nothing is sent."""
    future: Future[Tensor] = Future()
    future.set_result(bucket.buffer().zero_())
    return future


def _spread(bucket: Any, entries: Sequence[tuple[str, Tensor, Entry]], numbers: Tensor) -> Tensor:
    """Put the numbers back to where they belong; what is outside becomes zero."""
    buffer: Tensor = bucket.buffer()
    buffer.zero_()
    parts = torch.split(numbers, [count(gradient, entry) for _, gradient, entry in entries])
    for (_, gradient, entry), part in zip(entries, parts, strict=True):
        put_inside(gradient, entry, part)
    return buffer


def count(tensor: Tensor, entry: Entry) -> int:
    """The number of elements inside the mask of a tensor."""
    if not isinstance(entry, Tensor):
        return tensor.numel() * entry
    rows = rows_of(entry)
    inside_rows = entry if rows is None else rows
    return int(inside_rows.count_nonzero()) * (tensor.numel() // inside_rows.numel())


def inside(tensor: Tensor, entry: Entry) -> Tensor:
    """The elements inside the mask, in one dimension."""
    if not isinstance(entry, Tensor):
        return tensor.reshape(-1)[: tensor.numel() * entry]
    rows = rows_of(entry)
    return tensor.masked_select(entry) if rows is None else tensor[rows].reshape(-1)


def put_inside(tensor: Tensor, entry: Entry, numbers: Tensor) -> None:
    """Write the elements inside the mask; the others stay."""
    if not isinstance(entry, Tensor):
        if entry:
            tensor.copy_(numbers.view(tensor.shape))
    elif (rows := rows_of(entry)) is None:
        tensor.masked_scatter_(entry, numbers)
    else:
        tensor[rows] = numbers.view(-1, *tensor.shape[1:])
