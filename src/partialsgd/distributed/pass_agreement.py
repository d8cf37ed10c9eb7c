"""The processes compare what they are about to send, because reducers of different parts would mix them up, or hang."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

from partialsgd._util import randomness
from partialsgd._util.agreement import ask, device_of
from partialsgd._util.bitwise_select import rows_of
from partialsgd.distributed.hooks import Outgoing
from partialsgd.distributed.reducers import Key


@final
class PassAgreement:
    """Compares parameters, masks, t and compression of each pass over a group: eight bytes, while forward runs.

    A group that sends only from an accelerator is not asked, because the host would have to wait for the answer.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._is_asked = group.size() > 1 and device_of(group).type == "cpu"
        self._number_of: dict[Key, int] = {}

    def ask(self, key: Key, outgoing: Outgoing) -> Callable[[], None]:
        """Begin to compare a pass that sends these parameters. The result raises on all processes if they differ."""
        gradients = outgoing.gradients
        if not self._is_asked or gradients is None or torch.compiler.is_compiling():
            return _do_nothing
        names, how = key
        if key not in self._number_of:
            self._number_of[key] = randomness.key(how, repr(outgoing.compression), *sorted(names))
        t = -1 if gradients.trained is None else gradients.trained.t
        partial = {} if gradients.mask is None else gradients.mask.partial
        entries = {name: entry for name, entry in partial.items() if name in names}
        answer = ask(randomness.key(self._number_of[key], t, *_numbers(entries)), self._group)

        def require() -> None:
            if not answer():
                raise RuntimeError(
                    f"the processes do not agree on what this pass sends; this one sends gradients of {len(names)} "
                    f"parameters at t = {t}. Use the same levels, frozen parameters and compression on all of them, "
                    "and let a rule draw its mask from context.seed and context.t"
                )

        return require


def _do_nothing() -> None:
    """The answer where nothing is compared."""


def _numbers(entries: Mapping[str, Tensor]) -> list[int]:
    """A number for each mask of elements, which another mask has only by chance."""
    numbers = []
    for entry in entries.values():
        rows = rows_of(entry)
        bits = (entry if rows is None else rows).reshape(-1)
        padded = torch.nn.functional.pad(bits.view(torch.uint8), (0, -len(bits) % 8))
        words = padded.view(torch.int64)
        numbers.append((words * torch.arange(1, 2 * len(words), 2, device=words.device)).sum())
    return torch.stack(numbers).tolist() if numbers else []
