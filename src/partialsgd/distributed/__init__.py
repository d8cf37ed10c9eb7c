"""Training on several machines.

Names are resolved when they are first used. A function is not in a file of its own name: the import of that file
would hide the function.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd.distributed.active_part import DataParallel as DataParallel
    from partialsgd.distributed.active_part import data_parallel as data_parallel
    from partialsgd.distributed.compression import Compression as Compression
    from partialsgd.distributed.compression import compress as compress
    from partialsgd.distributed.dcp import load as load
    from partialsgd.distributed.dcp import save as save
    from partialsgd.distributed.replicas import ElasticReplica as ElasticReplica
    from partialsgd.distributed.replicas import elastic as elastic
    from partialsgd.distributed.sharding import shard as shard
    from partialsgd.distributed.subnet_worker import IndependentSubnets as IndependentSubnets
    from partialsgd.distributed.subnet_worker import independent_subnets as independent_subnets

__all__ = ["Compression", "DataParallel", "ElasticReplica", "IndependentSubnets", "compress", "data_parallel"]
__all__ += ["elastic", "independent_subnets", "load", "save", "shard"]

_HOMES: dict[str, tuple[str, ...]] = {
    "active_part": ("DataParallel", "data_parallel"),
    "compression": ("Compression", "compress"),
    "dcp": ("load", "save"),
    "replicas": ("ElasticReplica", "elastic"),
    "sharding": ("shard",),
    "subnet_worker": ("IndependentSubnets", "independent_subnets"),
}
"""The public names of each file of this folder."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'partialsgd.distributed' has no attribute {name!r}")
    return getattr(import_module(f"partialsgd.distributed.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
