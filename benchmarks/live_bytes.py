"""How much memory a piece of code holds at its worst moment, counted from what torch allocates, not from the system.

Every operation passes through the dispatch mode with its results. Each storage counts once, however many tensors
view it, from the operation that makes it until the last of them is gone. What an operation was given and the mode
has not seen made existed before and does not count. Scratch space inside one kernel is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@final
class LiveBytes(TorchDispatchMode):
    """`with LiveBytes() as counter:` then `counter.live` and `counter.peak`, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._counted: dict[int, int] = {}  # a storage's identity and its bytes
        self._foreign: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for storage in _storages((args, kwargs)):
            if storage._cdata not in self._counted and storage._cdata not in self._foreign:
                self._foreign.add(storage._cdata)
                _when_gone(storage, self._foreign.discard)
        result = func(*args, **(kwargs or {}))
        for storage in _storages((args, kwargs, result)):  # arguments too: `out=` and resize_ make them larger
            if storage._cdata not in self._foreign:
                self._count(storage)
        self.peak = max(self.peak, self.live)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        identity, size = storage._cdata, storage.nbytes()
        if identity not in self._counted:
            _when_gone(storage, self._uncount)
        self.live += size - self._counted.get(identity, 0)
        self._counted[identity] = size

    def _uncount(self, identity: int) -> None:
        self.live -= self._counted.pop(identity)


def _when_gone(storage: torch.UntypedStorage, call: Callable[[int], None]) -> None:
    # _cdata, the address in C++, names a storage for as long as any tensor uses it.
    weakref.finalize(storage, call, storage._cdata).atexit = False


def _storages(tree: object) -> Iterator[torch.UntypedStorage]:
    return (leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def peak_of(run: Callable[[], object]) -> int:
    """The most bytes that `run` has held at one moment, beyond what existed before it."""
    with LiveBytes() as counter:
        run()
    return counter.peak
