"""What can be measured of a step while training, and of a network at a point."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd.meters import noise as noise

__all__ = ["noise"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return import_module(f"partialsgd.meters.{name}")
    raise AttributeError(f"module 'partialsgd.meters' has no attribute {name!r}")
