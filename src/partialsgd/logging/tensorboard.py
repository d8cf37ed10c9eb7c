"""The numbers of a run for TensorBoard: loss/core, lr, criteria/core/c_norm."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from partialsgd.logging.records import name_of

_NOT_DRAWN = ("t", "backwards")


def require() -> None:
    if find_spec("tensorboard") is None:
        raise ImportError("to write for TensorBoard, tensorboard is needed: pip install partialsgd[lab]")


def writer(folder: str | os.PathLike[str], t: int | None) -> Any:
    """Of an earlier run in the folder, what it wrote from step t on is no longer shown."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(os.fspath(folder), purge_step=t)


def scalars(found: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a record, each under its path; what was measured goes by the name of its probe or level."""
    for key, value in found.items():
        name = f"{path}/{key}" if path else key
        if isinstance(value, Mapping):
            yield from scalars(value, name)
        elif key == "criteria":
            for measured in value:
                yield from scalars(measured, f"{name}/{name_of(measured)}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and key not in _NOT_DRAWN:
            yield name, value
