"""Every training method by name: each file without a leading underscore is one. The imports are for type checkers."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from partialsgd.methods import _registry

if TYPE_CHECKING:
    SUMMARIES: dict[str, str]
    from partialsgd.methods.ac_dc import ac_dc as ac_dc
    from partialsgd.methods.alternating import alternating as alternating
    from partialsgd.methods.block_coordinate import block_coordinate as block_coordinate
    from partialsgd.methods.compose import compose as compose
    from partialsgd.methods.compressed_gradient import compressed_gradient as compressed_gradient
    from partialsgd.methods.dropout import dropout as dropout
    from partialsgd.methods.dynamic_pruning import dynamic_pruning as dynamic_pruning
    from partialsgd.methods.dynamic_sparsity import dynamic_sparsity as dynamic_sparsity
    from partialsgd.methods.extragradient import extragradient as extragradient
    from partialsgd.methods.freezing import freezing as freezing
    from partialsgd.methods.guarded import guarded as guarded
    from partialsgd.methods.independent_subnets import independent_subnets as independent_subnets
    from partialsgd.methods.layerwise import layerwise as layerwise
    from partialsgd.methods.meprop import meprop as meprop
    from partialsgd.methods.only import only as only
    from partialsgd.methods.plain import plain as plain
    from partialsgd.methods.random_mask import random_mask as random_mask
    from partialsgd.methods.sam import sam as sam
    from partialsgd.methods.sandwich import sandwich as sandwich
    from partialsgd.methods.scaled_by_alpha import scaled_by_alpha as scaled_by_alpha
    from partialsgd.methods.slimmable import slimmable as slimmable
    from partialsgd.methods.top_k import top_k as top_k

NAMES = _registry.names()
__all__ = ["NAMES", "SUMMARIES", *NAMES]


class _Methods(ModuleType):
    """This module, in which a method's name stands for the method, also after the file of that name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        is_file = name in NAMES and isinstance(value, ModuleType)
        super().__setattr__(name, _registry.settings_only(getattr(value, name)) if is_file else value)


sys.modules[__name__].__class__ = _Methods


def __getattr__(name: str) -> object:
    if name == "SUMMARIES":
        return _registry.summaries()
    if name not in NAMES:
        raise AttributeError(f"there is no method {name!r}; there are {', '.join(NAMES)}")
    import_module(f"partialsgd.methods.{name}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
